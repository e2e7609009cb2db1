"""Examples that are neither trained on nor attacked, kept for bounds: `private/[CELL/]unseen.safetensors`."""

from pathlib import Path

import torch

from seepage.core.nn import generator
from seepage.core.storage import read_tensors, write_tensors
from seepage.errors import SeepageError
from seepage.simulate.setting import Setting
from seepage.types import Batch

FILE = "unseen.safetensors"


def save_unseen(setting: Setting, private: Path) -> None:
    """Write the examples that the bounds take for the attacker's prior, if the cell is bounded and has any."""
    plan = setting.case.bounds
    if plan is None or not setting.case.bounded or not len(setting.unseen) or not plan.public:
        return
    draw = generator(setting.case.seed, "bounds")
    places = setting.unseen[torch.randperm(len(setting.unseen), generator=draw)[: plan.public]]
    batch = setting.batch(places)
    write_tensors(private / FILE, {"inputs": batch.inputs.cpu(), "labels": batch.labels.cpu()})


def open_unseen(private: Path) -> Batch | None:
    """Read them; None where there are none.

    Raises:
        SeepageError: For a damaged file.
    """
    path = private / FILE
    if not path.exists():
        return None
    tensors = read_tensors(path)
    try:
        return Batch(tensors["inputs"], tensors["labels"])
    except KeyError as error:
        raise SeepageError(f"{path} lacks {str(error)[:80]}; record it again") from error
