"""A client with planted images of 6 x 6 pixels in four classes, and what an attacker sees of its update."""

from typing import Any

import torch

from seepage import Architecture, Batch, Transcript, build, record
from seepage.testing import planted_inputs

SHAPE, CLASSES = (1, 6, 6), 4
FC2 = Architecture("fc2", {"hidden": 24})


def victim(n: int = 1, architecture: Architecture = FC2, **known: Any) -> tuple[Transcript, Batch]:
    batch = Batch(planted_inputs(n, SHAPE), torch.arange(n) % CLASSES)
    return record(build(architecture, SHAPE, CLASSES), batch, architecture=architecture, **known), batch
