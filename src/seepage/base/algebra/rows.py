"""Rows that are multiples of one another, or agree by another measure: groups of them, and one of each kind.

Row j of a layer's weight gradient is `sum_i slope_ij x_i` over the examples i that unit j is on for. Where that is one
example alone, the ratios of the row's entries are those of `x_i`, and two such units have parallel rows. Rows of two
examples or more are parallel only where both units mix them at one ratio, which has measure zero with more than two
classes.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seepage.base.rounding import FLOAT32_NETWORK

LEAST_ALIKE = 3
"""Rows, tensors or classes that must agree: of a few hundred some two meet by chance."""


def groups(
    near: Bool[Tensor, "k k"],
    *,
    least: int = 1,
    left: Bool[Tensor, " k"] | None = None,
    in_order: bool = False,
) -> Iterator[tuple[int, Bool[Tensor, " k"]]]:
    """Disjoint groups: a row and all rows near it, as its place and a mask.

    Args:
        near: Which rows agree with the row of each line; each row with itself.
        least: Smallest group.
        left: Rows that may be in a group; None: all.
        in_order: The first row's group comes first, then that of the first row left. Otherwise the largest comes first.
    """
    left = near.new_ones(len(near)) if left is None else left.clone()
    if in_order:
        for place in range(len(near)):
            own = near[place] & left
            if left[place] and int(own.sum()) >= least:
                yield place, own
                left &= ~own
        return
    while left.any():
        count = (near & left).sum(1) * left
        place = int(count.argmax())
        if count[place] < least:
            return
        own = near[place] & left
        yield place, own
        left &= ~own


def first_of_each(near: Bool[Tensor, "k k"]) -> Bool[Tensor, " k"]:
    """Rows that are near no earlier row that is kept.

    >>> first_of_each(parallel(torch.tensor([[1.0, 2], [2, 1], [-2, -4]]).double(), 1e-3)).tolist()
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


def parallel(rows: Float[Tensor, "k d"], sine: float) -> Bool[Tensor, "k k"]:
    """Which rows lie at an angle of at most this sine to one another, of either sign."""
    unit = F.normalize(rows, dim=1, eps=1e-300)
    # sin^2(a, b) = 1 - (a.b)^2 for unit rows. Squares are compared: the root of 1 - cos^2 loses half the digits.
    found: Tensor = (1 - (unit @ unit.T).square()) < sine**2
    return found


def parallel_rows(
    rows: Float[Tensor, "m d"],
    noise: Float[Tensor, " m"],
    *,
    least: int,
    sine: float = 1e-3,
    sharp: float = 1e3,
) -> list[tuple[Float[Tensor, " d"], Bool[Tensor, " m"], Float[Tensor, " m"]]]:
    """Groups of rows whose entries have the same ratios, the largest groups first.

    Args:
        rows: What is left of a weight gradient.
        noise: Size of each row's error.
        least: Smallest group. Of 1 every row is a group at least, and only a check of another kind can tell.
        sine: Sine of the angle up to which two rows are multiples of one another.
        sharp: Least size of a row over its error for the row to be used; its ratios are then accurate to 1 / sharp.

    Returns:
        For each group the best common direction `[d]` of length 1, its rows `[m]`, and each row's size along the
        direction `[m]`, zero elsewhere.

    >>> x = torch.tensor([[1.0, 2, 3], [3, 1, 1]], dtype=torch.float64)
    >>> rows = torch.stack([2 * x[0], x[0] + x[1], -x[0], 3 * x[1]])
    >>> [units.tolist() for _, units, _ in parallel_rows(rows, 1e-6 * rows.norm(dim=1), least=2)]
    [[True, False, True, False]]
    """
    # Rows stated without error still have rounding: at least 1e-6 of the largest row's error.
    clear = rows.norm(dim=1) > sharp * noise.clamp(min=1e-6 * float(noise.max()))
    found = []
    for _, own in groups(parallel(rows, sine), least=least, left=clear):
        # The first right singular vector weighs rows by size, so by how little rounding they have.
        direction = torch.linalg.svd(rows[own], full_matrices=False)[2][0]
        found.append((direction, own, (rows @ direction) * own))
    return found
