"""Rows that are multiples of one another, or agree by another measure: groups of them, and one of each kind.

Row j of a layer's weight gradient is `sum_i slope_ij x_i` over the examples i that unit j is on for. Where that is one
example alone, the ratios of the row's entries are those of `x_i`, and two such units have parallel rows. Rows of two
examples or more are parallel only where both units mix them at one ratio, which has measure zero with more than two
classes.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seepage.base.rounding import FLOAT32_NETWORK

LEAST_ALIKE = 3
"""Rows, tensors or classes that must agree: of a few hundred some two meet by chance."""


def groups(near: Bool[Tensor, "k k"], *, least: int) -> Iterator[tuple[int, Bool[Tensor, " k"]]]:
    """Disjoint groups, the first row's first: a row and all rows near it that are in none before, as place and mask.

    Args:
        near: Which rows agree with the row of each line; each row with itself.
        least: Smallest group.
    """
    left = near.new_ones(len(near))
    for place in range(len(near)):
        own = near[place] & left
        if left[place] and int(own.sum()) >= least:
            yield place, own
            left &= ~own


def first_of_each(near: Bool[Tensor, "k k"]) -> Bool[Tensor, " k"]:
    """Rows that are near no earlier row that is kept.

    >>> rows = torch.tensor([[1.0, 2], [2, 1], [1, 2]])
    >>> first_of_each(torch.cdist(rows, rows) < 1e-3).tolist()
    [True, True, False]
    """
    earlier = near.tril(-1)
    kept = ~earlier.any(1)
    for place in earlier.any(1).nonzero()[:, 0].tolist():  # near a row that may itself be left out
        kept[place] = not bool((earlier[place] & kept).any())
    return kept


def same_rows(wanted: Float[Tensor, "p d"], rows: Float[Tensor, "k d"]) -> Int[Tensor, " p"] | None:
    """Index of the row that equals each wanted row, up to `FLOAT32_NETWORK`, on the CPU; None where one has no equal.

    Also where two are the same row, and where a wanted row is zero, which says nothing.

    >>> rows = torch.tensor([[1.0, 2], [2, 1], [3, 4]])
    >>> same_rows(rows[[2, 0]], rows), same_rows(rows[:1] + 1, rows)
    (tensor([2, 0]), None)
    """
    # Not by products of norms, in which the distances of near rows would drown.
    nearest, place = torch.cdist(wanted, rows, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    same = bool((nearest <= FLOAT32_NETWORK * wanted.norm(dim=1)).all()) and bool(wanted.any(1).all())
    return place.cpu() if same and len(place.unique()) == len(place) else None
