"""The row space of a mixture matrix: singular values, how many of them are signal, whitening."""

from dataclasses import dataclass

import torch
from torch import Tensor

UNSEEN_FLOOR = 2e-8
"""Rounding noise of a float32 gradient's singular values, as a share of the largest."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A thin singular value decomposition `mixtures = left @ diag(values) @ right`, in float64.

    Attributes:
        left: `[m, r]` orthonormal columns.
        values: `[r]` singular values, descending.
        right: `[r, d]` orthonormal rows.
        noise: Size of the singular values that hold rounding or noise and no source; 0 where unknown.
        rank: How many singular values stand clear of the noise: an estimate of the number of sources.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    noise: float
    rank: int

    def keep(self, r: int) -> "Spectrum":
        """The same decomposition cut to its first `r` directions."""
        return Spectrum(self.left[:, :r], self.values[:r], self.right[:r], self.noise, min(self.rank, r))

    @property
    def columns(self) -> Tensor:
        """`[m, r]` left vectors times singular values: `mixtures = columns @ right`."""
        return self.left * self.values


def spectrum(mixtures: Tensor, *, sources: int | None = None) -> Spectrum:
    """Singular values of `mixtures [m, d]` from the small Gram matrix, in float64.

    Only the `m x m` (or, for `d < m`, the `d x d`) Gram matrix is decomposed, so memory beyond the mixtures
    themselves is `min(m, d)^2`. A QR pass makes the rows orthonormal to rounding where the Gram matrix alone
    would lose the small ones.

    Args:
        mixtures: `[m, d]`.
        sources: How many sources were mixed, where that is known; it places the noise floor.

    Returns:
        All `min(m, d)` directions whose singular value is not zero to rounding, the noise floor and the rank.

    >>> mixing, sources = torch.rand(6, 2), torch.rand(2, 50)
    >>> spectrum(mixing @ sources).rank
    2
    """
    mixtures = mixtures.double()
    m, d = mixtures.shape
    if d < m:
        flipped = spectrum(mixtures.T, sources=sources)
        return Spectrum(flipped.right.T, flipped.values, flipped.left.T, flipped.noise, flipped.rank)
    # G G^T = U S^2 U^T: [m, m], however many pixels there are. Squared, values below 1e-8 of the first are lost.
    left = torch.linalg.eigh(mixtures @ mixtures.T).eigenvectors.flip(1)  # [m, m]
    # One step of subspace iteration: the Gram matrix squares the spectrum, the mixtures themselves do not.
    right, upper = torch.linalg.qr((left.T @ mixtures).T)  # [d, m], [m, m]
    # U^T G = upper^T Q^T with Q orthonormal: the small factor's own decomposition finishes it in full precision.
    inner, values, outer = torch.linalg.svd(upper.T)
    right, left = outer @ right.T, left @ inner
    floor, rank = noise_floor(values, sources)
    live = values > values[0] * 1e-14
    return Spectrum(left[:, live], values[live], right[live], floor, rank)


def noise_floor(values: Tensor, sources: int | None = None) -> tuple[float, int]:
    """Size of the singular values that are only noise, and how many values stand above it.

    With `sources` known the floor is the median of the ten values after them. Otherwise the floor is at the widest
    gap, in ratio, of the spectrum. Values within a factor 3 of the floor do not count as signal.

    Args:
        values: Singular values, descending.
        sources: Number of sources where known.

    >>> noise_floor(torch.tensor([3.0, 2.0, 1e-7, 9e-8]))[1]
    2
    """
    if len(values) == 0 or not values[0] > 0:
        return 0.0, 0
    rounding = float(values[0]) * torch.finfo(torch.float32).eps * 0.05
    if sources is not None and sources >= len(values):
        # No value is left to see the noise in: a float32 gradient's is near this, measured where it can be.
        floor = float(values[0]) * UNSEEN_FLOOR
        return floor, int((values > 3 * floor).sum())
    if sources is None:
        # The widest gap: signal and noise differ by orders of magnitude, neighbors of one kind by little.
        steps = values.clamp(min=rounding).log().diff()
        sources = int(steps.argmin()) + 1 if len(steps) and float(steps.min()) < -1.0 else len(values)
    tail = values[sources : sources + 10]
    floor = float(tail.median()) if len(tail) else 0.0
    floor = max(floor, rounding * 1e-6)
    return floor, min(sources, int((values > 3 * floor).sum()))


def whitener(signals: Tensor) -> Tensor:
    """`[n, n]` matrix that gives the rows of `signals [n, p]` unit mean square and no correlation.

    Second moments about zero: differences of images have no mean worth removing, and an unremoved mean keeps the
    rows exact linear images of the sources.
    """
    # E[y y^T] = V D V^T, and the whitener is D^-1/2 V^T.
    moments, vectors = torch.linalg.eigh(signals @ signals.T / signals.shape[1])
    whitening: Tensor = (vectors / moments.clamp(min=moments.max() * 1e-12).sqrt()).T
    return whitening
