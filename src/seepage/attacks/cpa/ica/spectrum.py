"""Whitening of mixtures, and the low-rank factorization that they start from."""

import torch
from torch import Tensor

from seepage.base.algebra.lowrank import UNSEEN_FLOOR, noise_floor
from seepage.base.algebra.lowrank import LowRank as Spectrum
from seepage.base.algebra.lowrank import low_rank as spectrum

__all__ = ["UNSEEN_FLOOR", "Spectrum", "noise_floor", "spectrum", "whitener"]


def whitener(signals: Tensor) -> Tensor:
    """`[n, n]` matrix that gives the rows of `signals [n, p]` unit mean square and no correlation.

    Second moments about zero: differences of images have no mean worth removing, and an unremoved mean keeps the
    rows exact linear images of the sources.
    """
    # E[y y^T] = V D V^T, and the whitener is D^-1/2 V^T.
    moments, vectors = torch.linalg.eigh(signals @ signals.T / signals.shape[1])
    whitening: Tensor = (vectors / moments.clamp(min=moments.max() * 1e-12).sqrt()).T
    return whitening
