"""The sparse columns in the span of a tall matrix: by drawn submatrices, or by reweighted least squares."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from seepage.base.algebra.rows import first_of_each
from seepage.base.algebra.sparse import falling, sparse_directions
from seepage.base.rounding import FLOAT32_NETWORK, FLOAT32_SUM, ROUNDINGS

ZERO_AT_FIRST_LOOK = 1e-2
"""A first look at a direction takes entries below this share of its mean size for zeros; rounding is blown up there."""

SEARCH_WIDTHS = (1.0, 1e-3)
"""First and last width of the reweighting, down to the count of entries that are not zero. A wider first one is nearly
least squares, and starts from everywhere end at the same few columns. Swept on batches of seeds that nothing else
scores (results/closed/spear-search.jsonl): with a last width of 0.1 or 0.01 more starts
end at a column, but at no more different ones, and of two batches of photographs the attack certified nothing (with
1e-3 all of one and 0.56 of the other)."""

MAX_CANDIDATES_REFINED = 32
"""Candidates looked at in one go, the sparsest first."""


RANDOM_START_LENGTH = 0.5
"""Length of the random part of a start, which keeps two starts from being the same one."""

REFINING_WIDTHS = (ZERO_AT_FIRST_LOOK, 1e-5)
"""Widths that take a candidate to its zeros and past entries that are only small."""


@dataclass(frozen=True, eq=False)
class Span:
    """Columns that span the sparse ones.

    Attributes:
        rows: `[p, n]` float64, orthogonal columns of mean square 1.
        rounding: `[n]` relative error of each column's entries.
    """

    rows: Tensor
    rounding: Tensor

    @property
    def n(self) -> int:
        return self.rows.shape[1]

    @property
    def noisy(self) -> bool:
        """Whether rounding, or noise that was added, hides the zeros."""
        return bool(ROUNDINGS * self.rounding.max() > ZERO_AT_FIRST_LOOK)

    def distinct(self) -> "Span":
        """The same without rows that are multiples of another: these say nothing new, and hide the others."""
        # Rows that are multiples of one another vanish together: as equations they are one.
        unit = F.normalize(self.rows, dim=1)
        return Span(self.rows[first_of_each((unit @ unit.T).abs() > 1 - 1e-9)], self.rounding)

    def zeros(self, directions: Tensor) -> Tensor:
        """`[k, p]` bool: entries of `rows @ direction` that are zero to rounding, for `[k, n]` unit directions."""
        # Independent errors: an entry of rows @ q is off by the root of sum_j (q_j rounding_j)^2.
        blur = ROUNDINGS * (directions * self.rounding).norm(dim=1, keepdim=True)
        hidden: Tensor = (directions @ self.rows.T).abs() <= blur.clamp(1e-5, ZERO_AT_FIRST_LOOK)
        return hidden


def sampled(span: Span, count: int, draw: Generator) -> Tensor:
    """`[k, n]` unit directions, each the null vector of `n - 1` rows drawn at random; `k <= count`.

    Where one sparse column is zero at all rows drawn, the null vector is its direction. With half of its entries zero
    that is one draw in `2^(n - 1)`.

    >>> span = Span(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]).double() * 2**0.5, torch.zeros(2))
    >>> torch.allclose(sampled(span, 4, torch.Generator().manual_seed(0)).abs().amax(1), torch.ones(4).double())
    True
    """
    p, n = span.rows.shape
    size = span.rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
    drawn = torch.randint(p, (count, n - 1), generator=draw).to(span.rows.device)
    picked = (span.rows / size)[drawn]  # [count, n - 1, n]
    # A generic null vector has no zero entry, so its last one may be set to 1: n - 1 equations, without an SVD.
    # A random rotation makes the last entry of the null vector generic, so that it can be set to one.
    turn = torch.linalg.qr(torch.randn((n, n), generator=draw, dtype=torch.float64)).Q.to(picked)
    picked = picked @ turn
    solved, failed = torch.linalg.solve_ex(picked[..., :-1], -picked[..., -1:])
    null = F.normalize(torch.cat([solved[..., 0], solved.new_ones((count, 1))], 1), dim=1) @ turn.T
    good: Tensor = null[(failed == 0) & null.isfinite().all(1)]
    return good


def reweighted(span: Span, count: int, draw: Generator, steps: int, known: Tensor) -> Tensor:
    """`[count, n]` unit directions, each moved from a random start to a nearby `rows @ q` with many zeros.

    Starts lie away from the `[k, n]` known directions.

    Where the columns are many times longer than they are many, a start ends at one of them far more often
    than a drawn submatrix does.
    """
    start, noise = torch.randn((2, count, span.n), generator=draw, dtype=torch.float64).to(span.rows)
    if len(known):
        # Project the found directions out, so that a start leads somewhere else.
        inside = torch.linalg.qr(known.T).Q  # [n, k]
        start = start - start @ inside @ inside.T
    start = F.normalize(start, dim=1) + RANDOM_START_LENGTH * F.normalize(noise, dim=1)
    return sparse_directions(span.rows.T, start, falling(*SEARCH_WIDTHS, steps))


@dataclass
class FoundDirections:
    """Directions found so far, no two alike.

    Attributes:
        span: Where they lie.
        least: Least share of zeros a direction must have.
        merit: What else speaks for a unit direction `[n]`, 0 or 1; counts before zeros.
        directions: `[k, n]`, the best first.
        shares: `[k]` merit plus share of zeros.
    """

    span: Span
    least: float
    merit: Callable[[Tensor], float]
    directions: Tensor = field(init=False)
    shares: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.directions = self.span.rows.new_zeros((0, self.span.n))
        self.shares = self.span.rows.new_zeros(0)

    def add(self, candidates: Tensor) -> bool:
        """Keep the sparse ones of `[k, n]` unit directions that are new; whether there were any."""
        # rows @ q has a mean square of 1 for a unit q: entries are in units of that. [k]
        share = ((candidates @ self.span.rows.T).abs() < ZERO_AT_FIRST_LOOK).double().mean(1)
        before = len(self.directions)
        left = candidates[share.argsort(descending=True, stable=True)][: int((share >= self.least).sum())]
        left = unlike(left, self.directions)
        for _ in range(MAX_CANDIDATES_REFINED):
            if not len(left):
                break
            fine, zeros = refined(self.span, left[0])
            if zeros >= self.least and len(unlike(fine[None], self.directions)):
                self.directions = torch.cat([self.directions, fine[None]])
                self.shares = torch.cat([self.shares, zeros.reshape(1) + self.merit(fine)])
            left = unlike(left, torch.stack([left[0], fine]))
        self._sort()
        return len(self.directions) > before

    def vouch(self, directions: Tensor) -> bool:
        """Put `[k, n]` unit directions that are known to be right before all others; whether there were any."""
        known = self.directions.new_zeros((0, self.span.n))
        for direction in directions:
            fine = refined(self.span, direction)[0]
            known = torch.cat([known, (fine if len(unlike(fine[None], direction[None])) == 0 else direction)[None]])
        self.directions = torch.cat([known, self.directions])
        self.shares = torch.cat([self.shares.new_full((len(known),), 3.0), self.shares])
        self._sort()
        return len(known) > 0

    def _sort(self) -> None:
        order = self.shares.argsort(descending=True, stable=True)
        self.directions, self.shares = self.directions[order], self.shares[order]

    def independent(self) -> Tensor:
        """`[r, n]`, the best directions of which none is a sum of the others; `r <= n`."""
        chosen: list[Tensor] = []
        basis = self.span.rows.new_zeros((0, self.span.n))
        for direction in self.directions:
            # Gram-Schmidt, twice for rounding: what is left beside the chosen directions must not vanish.
            rest = direction - basis.T @ (basis @ direction)
            if rest.norm() > 1e-3 and len(chosen) < self.span.n:
                chosen.append(direction)
                basis = torch.cat([basis, F.normalize(rest - basis.T @ (basis @ rest), dim=0)[None]])
        return torch.stack(chosen) if chosen else basis


def unlike(candidates: Tensor, known: Tensor) -> Tensor:
    """Those of `[k, n]` unit directions that are not the same as, or opposite to, a known one."""
    return candidates[~(1 - (candidates @ known.T).abs() < FLOAT32_SUM).any(1)]


def refined(span: Span, direction: Tensor) -> tuple[Tensor, Tensor]:
    """A direction `[n]` fitted to all of its zeros, and their share."""
    direction = sparse_directions(span.rows.T, direction[None], falling(*REFINING_WIDTHS, 6))[0]
    zeros = (span.rows @ direction).abs() < FLOAT32_NETWORK
    if int(zeros.sum()) >= span.n - 1:
        # q is the null vector of the rows at its zeros: a fit to all of them alike.
        # With fewer rows than columns the null vector is not among the thin decomposition's.
        rows = span.rows[zeros]
        direction = torch.linalg.svd(rows, full_matrices=len(rows) < span.n).Vh[-1]
    return direction, span.zeros(direction[None])[0].double().mean()
