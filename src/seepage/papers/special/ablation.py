"""FedLeak without one of the two distances of its loss (Fan et al. 2025, Table 19)."""

from dataclasses import replace
from typing import Literal

from seepage.attacks.search.adaptive import DefenseAware
from seepage.attacks.search.distances import L1, Cosine, Distance
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.optimizers import Schedule
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.presets import fedleak

RATIO = 0.5
"""FedLeak's share of matched entries."""


def fedleak_without_cosine(
    *,
    steps: int = 10_000,
    lr: float = 1e-4,
    schedule: Schedule = "constant",
    tv: float = 1e-5,
    l1: Literal["mean", "sum"] = "sum",
    variation: Literal["mean", "sum"] = "sum",
) -> GradientMatching:
    """FedLeak with its L1 distance alone; all else as in `fedleak`.

    >>> fedleak_without_cosine().distance.inner.inner
    L1(reduce='sum')
    """
    return _with(L1(l1), fedleak(steps=steps, lr=lr, schedule=schedule, tv=tv, variation=variation))


def fedleak_without_l1(
    *,
    steps: int = 10_000,
    lr: float = 1e-4,
    schedule: Schedule = "constant",
    tv: float = 1e-5,
    variation: Literal["mean", "sum"] = "sum",
) -> GradientMatching:
    """FedLeak with its cosine distance alone; all else as in `fedleak`."""
    return _with(Cosine(), fedleak(steps=steps, lr=lr, schedule=schedule, tv=tv, variation=variation))


def _with(inner: Distance, attack: GradientMatching) -> GradientMatching:
    return replace(attack, distance=DefenseAware(TopMagnitude(inner=inner, ratio=RATIO)))
