"""What an attacker knows of pictures before it sees an update: a Gaussian prior with public examples' covariance."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.federation.types import Batch

MOST_DIRECTIONS = 256
"""Directions whose variance is estimated one by one; the others share one variance."""

LEAST_PUBLIC = 16
"""With fewer public examples their covariance is not estimated."""


@dataclass(frozen=True)
class GaussianPrior:
    """Example i is its own mean plus `N(0, e_i R)`, independent of the others; R has trace 1.

    Of images the attacker is *granted* the mean color m_i and the contrast e_i = ||x_i - m_i||^2 of each: that makes
    every bound more careful, it is what a score may fit from the truth, and behind endless noise the bound is then the
    PSNR of the mean color. R = U diag(s) U^T + r (I - U U^T) on what is left: the space of U from half of the public
    examples, its axes, s and r from the other half, so that what lies outside the space is not underrated.

    Attributes:
        energies: `[n]` the variance e_i of each example, summed over its values.
        basis: `[k, d]` orthonormal rows U.
        shares: `[k]` variance along them.
        rest: Variance along every other direction.
        channels: Number of channels whose means are granted; 0 for inputs that are no images.
        known: Whether public examples gave R; else all values are independent.
    """

    energies: Tensor
    basis: Tensor
    shares: Tensor
    rest: float
    channels: int
    known: bool

    @classmethod
    def of(cls, batch: Batch, public: Tensor | None, value_range: tuple[float, float] = (0.0, 1.0)) -> "GaussianPrior":
        """The prior for a batch.

        Args:
            batch: The private examples, whose mean colors and contrasts are granted where they are images.
            public: `[m, *shape]` examples that are not private; None, or fewer than 16: values are independent.
            value_range: Of the inputs.
        """
        inputs = batch.inputs.double()
        channels = inputs.shape[1] if inputs.ndim > 2 else 0
        size, known = inputs[0].numel(), public is not None and len(public) >= LEAST_PUBLIC
        seen = None if public is None or not known else public.to(inputs).reshape(len(public), -1)
        if channels:
            energies = _centered(inputs.flatten(1), channels).square().sum(1)
            rows = None if seen is None else _centered(seen, channels)
        else:
            rows = None if seen is None else seen - seen.mean(0)
            spread = size * (value_range[1] - value_range[0]) ** 2 / 12  # of independent uniform values
            total = spread if rows is None else float(rows.square().sum(1).mean())
            energies = inputs.new_full((len(inputs),), total)
        free = size - channels
        if rows is None:
            return cls(energies, inputs.new_zeros(0, size), inputs.new_zeros(0), 1 / max(free, 1), channels, False)
        return cls(energies, *_directions(rows, free, whiten=bool(channels)), channels, True)

    @property
    def size(self) -> int:
        """Values of one example."""
        return self.basis.shape[1]

    def root(self, z: Tensor) -> Tensor:
        """Sigma^(1/2) z for rows `[..., n * d]`: what turns white noise into examples less their means."""
        rows = z.reshape(-1, len(self.energies), self.size)
        rows = _centered(rows, self.channels)
        along = rows @ self.basis.T  # [., n, k]
        least = math.sqrt(self.rest)
        rows = least * rows + (along * (self.shares.sqrt() - least)) @ self.basis
        return (rows * self.energies.sqrt()[:, None]).reshape(z.shape)

    def variances(self) -> Tensor:
        """`[n * (d - channels)]` all eigenvalues of the covariance, in no order."""
        free = self.size - self.channels - len(self.shares)
        one = torch.cat([self.shares, self.shares.new_full((max(free, 0),), self.rest)])
        return (self.energies[:, None] * one).flatten()


def _centered(rows: Tensor, channels: int) -> Tensor:
    """Rows `[..., d]` less the mean of each of their channels."""
    if not channels:
        return rows
    planes = rows.reshape(*rows.shape[:-1], channels, -1)
    return (planes - planes.mean(-1, keepdim=True)).reshape(rows.shape)


def _directions(rows: Tensor, free: int, *, whiten: bool) -> tuple[Tensor, Tensor, float]:
    """Basis, shares and rest of a covariance of trace 1, from rows `[m, d]` without mean.

    Args:
        rows: Public examples.
        free: Dimension of the space they lie in.
        whiten: Give each row the length 1: the contrast of an example is not what R is about.
    """
    length = rows.norm(dim=1, keepdim=True)
    rows = rows[length.flatten() > 1e-9]
    rows = rows / (length[length > 1e-9][:, None] if whiten else length.square().mean().sqrt())
    fitted, held = rows[0::2], rows[1::2]
    found = torch.linalg.svd(fitted, full_matrices=False)
    # Beyond the rank of the examples come directions of no meaning, such as the mean colors.
    count = min(int((1e-9 * found.S[0] < found.S).sum()), MOST_DIRECTIONS, free)
    along = held @ found.Vh[:count].T  # [m / 2, k]
    # Within that space the axes are those of the held-out half: few wide axes, as an attacker may know them, and no
    # average over axes that were turned by chance, which would make the prior, and so the error, too wide.
    shares, turn = torch.linalg.eigh(along.T @ along / len(held))
    shares, basis = shares.clamp(min=0), turn.T @ found.Vh[:count]
    left = max(float(held.square().sum(1).mean() - shares.sum()), 0.0)
    rest = left / (free - count) if free > count else 0.0
    total = float(shares.sum()) + rest * (free - count)
    return basis, shares / total, rest / total
