"""Digits, a small network, and recordings under the temporary folder, or where RECORDINGS says."""

import os
import tempfile
from pathlib import Path

from seepage import Architecture, FedAvg
from seepage.recorder.recorder import Recorder

SHAPE, CLASSES, LR, EXAMPLES = (1, 8, 8), 10, 0.1, 4
NET = Architecture("fc2", {"hidden": 64})
PLACE = Path(os.environ.get("RECORDINGS") or Path(tempfile.gettempdir()) / "seepage-flower")


def recorder(side: str) -> Recorder:
    """One SGD step on 4 digits is local training of one batch."""
    rule = FedAvg(lr=LR, batch_size=EXAMPLES)
    return Recorder(PLACE / side, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule, audit="inline")
