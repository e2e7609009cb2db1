"""Which rows of a table moved by more than all of its rows did.

A row of an embedding that nobody looked up has no gradient, in no local step and with no optimizer, so that it moves
as every such row does:

    E'_v = (1 - a) E_v + e_v      a: what weight decay took off, the same share of every row      e_v: rounding

With a = 0 the row is returned bit for bit, or as its number format rounds it. With a > 0 both are read off the rows
that agree with one another.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.text.span import FORMATS, spacing
from seepage.base.rounding import FALSE_ALARM

LEAST_EXPLAINED = 0.9
"""Share of what rows without a gradient of their own moved, as a square, that weight decay must explain."""
MIXED = 100.0
"""How many times more than those of other still rows a row's largest number moved, so that it is no rounding."""
MOST_SHRUNK = 0.5
"""Share up to which all rows may have shrunk by weight decay; where they lost more, the decay was in the gradient of an
optimizer that divides each entry by a size of its own, and took off what was there."""


@dataclass(frozen=True, eq=False)
class MovedRows:
    """What the rows of a table did.

    Attributes:
        moved: `[v]` bool: rows that nothing but a gradient of their own explains.
        sure: `[v]` bool: those of them of which so many numbers moved as single numbers of noise that a compression
            lets through would leave in no row.
        still: How many rows moved as all rows do.
        share: What all rows shrank by; 0 where they were returned unchanged.
        unit: Units of the last place that rounding is allowed; 0 where still rows are equal bit for bit.
    """

    moved: Tensor
    sure: Tensor
    still: int
    share: float
    unit: float


def moved_rows(change: Tensor, before: Tensor | None = None, like: MovedRows | None = None) -> MovedRows | None:
    """Tell rows that moved on their own from those that did not; None where no two rows moved alike.

    Args:
        change: `[v, d]` a gradient, or weights after minus before; of float64 where they are computed.
        before: `[v, d]` the weights before, of a difference of weights; None: a gradient, which has no decay.
        like: What another table of the update tells of its decay, for a table of which all rows may have been used.

    >>> before = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    >>> after = before * (1 - 1e-4)
    >>> after[7] += 0.01 * before[8]
    >>> found = moved_rows(after - before, before)
    >>> found.moved.nonzero().flatten().tolist(), round(found.share, 6)
    ([7], 0.0001)
    """
    if before is None:
        exact = ~change.bool().any(1)
        return _by_equality(change.double(), None, exact) if exact.any() or like is not None else None
    number_format = before.dtype
    after = (before.double() + change.double()).to(number_format)
    for coarse in FORMATS:
        # A number of a finer format is one of a coarser format by chance once in thousands.
        if (after.to(coarse).to(number_format) == after).double().mean() > 0.5:
            number_format = coarse
    # What was sent is a difference, so weights are compared as the client stored them, in their own format. [v, d]
    beyond = after.double() - before.to(number_format).double()
    unit = spacing(torch.maximum(before.abs(), after.abs()), number_format)
    start = before.double()
    change = after.double() - start
    filled = start.any(1)  # a row of zeros does not shrink, and shows nothing of the others
    exact = ~beyond.bool().any(1)
    shrunk = _by_share(start, change, unit, filled)
    # Equality decides where it explains at least half as many rows as decay does.
    if exact[filled].any() and (shrunk is None or 2 * int(exact[filled].sum()) >= shrunk.still):
        return _by_equality(beyond, start, exact, (beyond.abs() <= 1.5 * unit.amax(1, keepdim=True)).all(1))
    return _by_another(start, change, unit, like) if shrunk is None and like is not None else shrunk


def _by_equality(beyond: Tensor, start: Tensor | None, exact: Tensor, barely: Tensor | None = None) -> MovedRows:
    """Rows that are not equal, bit for bit.

    Decay, or an offset, that is lost in rounding but for single numbers takes these all one way: towards zero, or up,
    or down. A gradient of d numbers does so by a chance of 2^(1 - d): where d is so small that some row would, those
    that moved in every number count as moved.
    """
    signs = beyond.sign()
    one_way = ~((signs > 0).any(1) & (signs < 0).any(1))
    if start is not None:
        one_way |= (signs * start.sign() <= 0).all(1) & start.any(1)
    if 2.0 ** (1 - signs.shape[1]) * int((~exact).sum()) > FALSE_ALARM:
        one_way &= (signs == 0).any(1)
    moved = ~exact & ~one_way
    if barely is not None and bool((barely & ~exact & ~moved).any()):
        # Faint noise that is lost in rounding moves single numbers by a unit of their row's last place, some both ways.
        moved &= ~barely | _no_single_numbers(beyond.bool(), beyond.bool()[~moved].double().mean())
    return MovedRows(moved, moved & _no_single_numbers(beyond.bool()), int(exact.sum()), 0.0, 0.0)


def _no_single_numbers(moved: Tensor, chance: Tensor | None = None) -> Tensor:
    """`[v]` rows with more moved numbers than single ones, each as likely anywhere, would leave in any row of all.

    By Chernoff's bound m or more of d numbers, each of which moved with chance q, did so with a chance of at most
    `exp(-d KL(m / d, q))`, which has to be `FALSE_ALARM` by the number of rows. q is read off all rows that did not
    move as a whole, also those that moved on their own, so that it is too large rather than too small.
    """
    rows, width = moved.shape
    shares = moved.double().mean(1)
    part = shares < 1
    if chance is None:
        chance = shares[part].mean() if part.any() else shares.new_tensor(1.0)
    # KL(m/d, q) = p log(p/q) + (1-p) log((1-p)/(1-q)), with p = m/d of each row; xlogy is 0 at p = 0 and p = 1. [v]
    gain = torch.xlogy(shares, shares / chance) + torch.xlogy(1 - shares, (1 - shares) / (1 - chance))
    return (shares > chance) & (width * gain >= math.log(rows / FALSE_ALARM))


def _by_share(start: Tensor, change: Tensor, unit: Tensor, filled: Tensor) -> MovedRows | None:
    """Rows that did not shrink by the share by which the still ones did, by more than their rounding.

    A row is moved where half of its residuals, in units of the last place, lie beyond x. Of still rows they do with a
    chance p each, so that by Chernoff's bound half of d do with at most `(4 p (1 - p))^(d / 2)`. x is where this is
    `FALSE_ALARM` by the number of rows, by the still rows' own residuals: nothing is assumed of how they are spread.
    """
    rows, width = start.shape
    # Least squares for a in `change = -a start`, row by row; rows that only decayed agree. [filled rows]
    ratios = -(change * start).sum(1)[filled] / start.square().sum(1)[filled]
    if len(ratios) < 2:
        return None
    share = _densest(ratios)
    off = change + share * start  # what decay leaves unexplained [v, d]
    sizes = off.abs() / unit
    # The median, which half of a row's numbers exceed: the statistic of the bound above.
    middle = sizes.median(1).values
    chance = _chance_of_one(rows, width)
    own, numbers = middle[filled], sizes[filled]
    limit, still = _stillest(own, numbers, chance)
    tops = numbers.amax(1)
    # Two clients' steps of one size cancel in half of a row's numbers: such rows, of both kinds, are left out.
    if bool((tops[still] > MIXED * tops[still].median()).any()):
        pure = tops <= MIXED * tops[own <= max(0.5, float(own.min()))].median()
        limit, still = _stillest(own.where(pure, torch.inf), numbers, chance)
    # 1 - R^2 of the regression over the still rows: real decay explains nearly all that they moved.
    left, whole = off[filled][still].square().sum(), change[filled][still].square().sum()
    decayed = 0 < share < MOST_SHRUNK and float(left) <= (1 - LEAST_EXPLAINED) * float(whole)
    # Half of the numbers moved by at most a unit of the last place: rounding alone, as of a mean of clients' weights.
    rounded = float((change.abs() / unit)[filled][still].median()) <= 1
    if int(still.sum()) < 2 or not (decayed or rounded):
        return None
    moved = torch.where(filled, middle > limit, change.bool().any(1))
    return MovedRows(moved, moved, int(still.sum()), share, limit)


def _stillest(own: Tensor, numbers: Tensor, chance: float) -> tuple[float, Tensor]:
    """The limit x, and `[rows]` bool: from the stillest row up to all that are like it; arguments as of `_by_share`."""
    # Rounding to the nearest number is off by half a unit.
    limit, still = max(0.5, float(own.min())), own <= -1
    while not torch.equal(found := own <= limit, still):
        still = found
        limit = max(limit, _quantile(numbers[still], 1 - chance))
    return limit, still


def _by_another(start: Tensor, change: Tensor, unit: Tensor, like: MovedRows) -> MovedRows:
    """Rows that neither the decay of another table explains nor, where that has none, any decay of their own."""
    own = -(change * start).sum(1) / start.square().sum(1).clamp(min=1e-300)
    share = torch.full_like(own, like.share) if like.share else own.clamp(0, MOST_SHRUNK)
    limit = max(like.unit, 0.5) + 1  # the other share is off by up to a unit of the last place
    moved = ((change + share[:, None] * start).abs() / unit).median(1).values > limit
    return MovedRows(moved, moved, int((~moved).sum()), like.share, limit)


def _densest(values: Tensor) -> float:
    """Where most values lie: the densest half of them, of that the densest half, and so on."""
    values = values.sort().values
    while len(values) > 2:
        half = (len(values) + 1) // 2
        # The shortest interval that holds half of the values.
        start = int((values[half - 1 :] - values[: len(values) - half + 1]).argmin())
        values = values[start : start + half]
    return float(values.mean())


def _chance_of_one(rows: int, width: int) -> float:
    """P at which half of `width` numbers lie beyond the limit in any of so many rows with chance `FALSE_ALARM`."""
    least = math.exp(-2 * math.log(rows / FALSE_ALARM) / width)  # 4 p (1 - p)
    return (1 - math.sqrt(1 - least)) / 2


def _quantile(values: Tensor, share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    values = values.flatten()
    return float(values.kthvalue(max(1, min(len(values), math.ceil(share * len(values))))).values)
