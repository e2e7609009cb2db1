"""A low-rank matrix in rounding or noise: its singular values, and how many of them stand clear of the noise.

    G = L diag(s) R + E      G: [m, d]      s_1 >= ... >= s_r > clear * floor >= size of the singular values of E

A layer's gradient is such a G: a sum over examples, of rank r at most their number. The floor is known (`rounding`),
seen in the values behind a known number of sources, or read off the widest gap of the spectrum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

UNSEEN_FLOOR = 2e-8
"""Rounding noise of a float32 gradient's singular values, as a share of the largest."""
INDEPENDENT = 1e-6
"""Share of the largest singular value up to which equations made in float32 say nothing of a direction."""
ZERO_GAP = 1e-3
"""Most that a value which is zero but for errors may be, over the least one which is not: else they are one."""
LOG_DROP = 1.0
"""Drop of the logarithm from one singular value to the next that may part signal from noise."""
CLEAR = 3.0
"""Times the noise floor from which a singular value is signal: noise of one size scatters by less than that."""


@dataclass(frozen=True, eq=False)
class LowRank:
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

    def keep(self, r: int) -> "LowRank":
        """The same decomposition cut to its first `r` directions."""
        return LowRank(self.left[:, :r], self.values[:r], self.right[:r], self.noise, min(self.rank, r))

    @property
    def columns(self) -> Tensor:
        """`[m, r]` left vectors times singular values: `mixtures = columns @ right`."""
        return self.left * self.values


def low_rank(
    mixtures: Tensor, *, sources: int | None = None, rounding: float | None = None, clear: float = CLEAR
) -> LowRank:
    """Singular values of `mixtures [m, d]` from the small Gram matrix, in float64.

    Only the `m x m` (or, for `d < m`, the `d x d`) Gram matrix is decomposed, so memory beyond the mixtures
    themselves is `min(m, d)^2`. A QR pass makes the rows orthonormal to rounding where the Gram matrix alone
    would lose the small ones.

    Args:
        mixtures: `[m, d]`.
        sources: How many sources were mixed, where that is known; it places the noise floor.
        rounding: The noise floor as a share of the largest value, where that is known. `sources` then counts nothing.
        clear: Times the floor from which a value is signal.

    Returns:
        All `min(m, d)` directions whose singular value is not zero to rounding, the noise floor and the rank.

    >>> mixing, sources = torch.rand(6, 2), torch.rand(2, 50)
    >>> low_rank(mixing @ sources).rank
    2
    """
    mixtures = mixtures.double()
    m, d = mixtures.shape
    if d < m:
        flipped = low_rank(mixtures.T, sources=sources, rounding=rounding, clear=clear)
        return LowRank(flipped.right.T, flipped.values, flipped.left.T, flipped.noise, flipped.rank)
    # G G^T = U S^2 U^T: [m, m], however many pixels there are. Squared, values below 1e-8 of the first are lost.
    left = torch.linalg.eigh(mixtures @ mixtures.T).eigenvectors.flip(1)  # [m, m]
    # One step of subspace iteration: the Gram matrix squares the spectrum, the mixtures themselves do not.
    right, upper = torch.linalg.qr((left.T @ mixtures).T)  # [d, m], [m, m]
    # U^T G = upper^T Q^T with Q orthonormal: the small factor's own decomposition finishes it in full precision.
    inner, values, outer = torch.linalg.svd(upper.T)
    right, left = outer @ right.T, left @ inner
    if rounding is None:
        floor, rank = noise_floor(values, sources, clear)
    else:
        floor = rounding * float(values[0])
        rank = int((values > clear * floor).sum())
    live = values > values[0] * 1e-14
    return LowRank(left[:, live], values[live], right[live], floor, rank)


def noise_floor(values: Tensor, sources: int | None = None, clear: float = CLEAR) -> tuple[float, int]:
    """Size of the singular values that are only noise, and how many values stand above it.

    With `sources` known the floor is the median of the ten values after them. Otherwise the floor is at the widest
    gap, in ratio, of the spectrum. Values up to `clear` times the floor do not count as signal.

    Args:
        values: Singular values, descending.
        sources: Number of sources where known.
        clear: As in `low_rank`.

    >>> noise_floor(torch.tensor([3.0, 2.0, 1e-7, 9e-8]))[1]
    2
    """
    if len(values) == 0 or not values[0] > 0:
        return 0.0, 0
    rounding = float(values[0]) * torch.finfo(torch.float32).eps * 0.05
    if sources is not None and sources >= len(values):
        # No value is left to see the noise in: a float32 gradient's is near this, measured where it can be.
        floor = float(values[0]) * UNSEEN_FLOOR
        return floor, int((values > clear * floor).sum())
    if sources is None:
        # The widest gap: signal and noise differ by orders of magnitude, neighbors of one kind by little.
        steps = values.clamp(min=rounding).log().diff()
        sources = int(steps.argmin()) + 1 if len(steps) and float(steps.min()) < -LOG_DROP else len(values)
    tail = values[sources : sources + 10]
    floor = float(tail.median()) if len(tail) else 0.0
    floor = max(floor, rounding * 1e-6)
    return floor, min(sources, int((values > clear * floor).sum()))
