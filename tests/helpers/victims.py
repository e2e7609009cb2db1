"""A client with planted images of 6 x 6 pixels in four classes, what is seen of its update, and a search on it."""

from typing import Any

import torch

from seepage import Architecture, Batch, Transcript, build, record
from seepage.attacks.search.distances import Distance
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.labels import LABEL_RULES
from seepage.attacks.search.optimizers import LBFGS
from seepage.attacks.search.parameters import Pixels
from seepage.testing import planted_inputs

SHAPE, CLASSES = (1, 6, 6), 4
FC2 = Architecture("fc2", {"hidden": 24})


def victim(n: int = 1, architecture: Architecture = FC2, **known: Any) -> tuple[Transcript, Batch]:
    batch = Batch(planted_inputs(n, SHAPE), torch.arange(n) % CLASSES)
    return record(build(architecture, SHAPE, CLASSES), batch, architecture=architecture, **known), batch


def precise(distance: Distance, steps: int) -> GradientMatching:
    """A search that converges on so small a network, so that the distance is what sets the outcome."""
    optimizer, start = LBFGS(lr=1.0, line_search=True), Pixels(start_from="uniform")
    return GradientMatching(
        distance=distance, optimizer=optimizer, steps=steps, labels=LABEL_RULES["given"], parameters=start
    )
