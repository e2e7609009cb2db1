"""Rows of a weight gradient that are multiples of one another: units that one example alone switches on."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SINE = 1e-3
"""Sine of the angle up to which two rows are multiples of one another."""
SHARP = 1e3
"""A row so many times larger than its error is looked at: its ratios are then good to 0.001."""


@dataclass(frozen=True, eq=False)
class ExclusiveRows:
    """Rows of one direction.

    Attributes:
        direction: `[d]` of length 1: their best common direction.
        units: `[m]` bool: the rows.
        sizes: `[m]` each row along the direction; zero elsewhere.
    """

    direction: Float[Tensor, " d"]
    units: Bool[Tensor, " m"]
    sizes: Float[Tensor, " m"]


def exclusive_rows(rows: Float[Tensor, "m d"], noise: Float[Tensor, " m"], *, least: int) -> list[ExclusiveRows]:
    """Groups of rows whose entries have the same ratios, the largest groups first.

    Row j of `dL/dW` is `sum_i slope_ij x_i` over the examples i that unit j is on for. Where that is one example alone,
    the ratios of the row's entries are those of `x_i`, and two such units have parallel rows. Rows of two examples or
    more are parallel only where both units mix them at one ratio, which has measure zero with more than two classes.

    Args:
        rows: What is left of the gradient.
        noise: Size of each row's error.
        least: Smallest group. Of 1 every row is a group at least, and only a check of another kind can tell.

    >>> x = torch.tensor([[1.0, 2, 3], [3, 1, 1]], dtype=torch.float64)
    >>> rows = torch.stack([2 * x[0], x[0] + x[1], -x[0], 3 * x[1]])
    >>> [group.units.tolist() for group in exclusive_rows(rows, 1e-6 * rows.norm(dim=1), least=2)]
    [[True, False, True, False]]
    """
    size = rows.norm(dim=1)
    left = size > SHARP * noise.clamp(min=1e-6 * float(noise.max()))
    unit = rows / size.clamp(min=1e-300)[:, None]
    # |a - (a.b) b| = sin(a, b): 1 - cos^2 loses half the digits, so it is compared with the square of the sine.
    near = (1 - (unit @ unit.T).square()) < SINE**2
    groups = []
    while left.any():
        count = (near & left).sum(1) * left
        place = int(count.argmax())
        if count[place] < least:
            break
        own = near[place] & left
        # The first right singular vector weighs rows by size, so by how little rounding they have.
        direction = torch.linalg.svd(rows[own], full_matrices=False)[2][0]
        groups.append(ExclusiveRows(direction, own, (rows @ direction) * own))
        left &= ~own
    return groups
