"""A small network, two examples, and an update recorded of both: what a stranger's file is made of."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage import Architecture, Batch, build, record, save_transcript

SHAPE, CLASSES = (1, 3, 3), 3
ARCHITECTURE = Architecture("fc2", {"hidden": 6})


def small_model() -> nn.Module:
    return build(ARCHITECTURE, SHAPE, CLASSES)


def small_state() -> dict[str, Tensor]:
    """Its weights, which share nothing with it."""
    return {name: tensor.clone() for name, tensor in small_model().state_dict().items()}


def small_batch() -> Batch:
    """Two random images of 3 x 3 pixels, of the classes 0 and 2."""
    return Batch(torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2]))


def write_observed(folder: Path, **more: Any) -> Path:
    """The folder of their update; `more` are options of `record`."""
    save_transcript(record(small_model(), small_batch(), architecture=ARCHITECTURE, **more), folder)
    return folder
