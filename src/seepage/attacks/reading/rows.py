"""Rows of one example in a measured gradient: which rows agree within their errors, and what they agree on.

Row j of a fully connected layer's weight gradient is `s_j x` where one example x alone reaches neuron j, with its bias
gradient `s_j`: with the bias as one more column, `(W, b) = s (x, 1)^T`. Each entry is known to an error of its own, so
one row says little and all rows of one example together say much:

    rows j, k of one example:   W_j - r W_k is zero within (e_j^2 + r^2 e_k^2)^1/2, entry by entry
    that example:               x = sum_j s_j W_j / e_j^2 / sum_j s_j^2 / e_j^2, entry by entry, and s likewise

The rows of mixtures agree so only where every one of them mixes the same examples to the same shares. That is decided
afterwards, by what the network itself makes of the example (`seepage.attacks.linear.examples`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.algebra.rows import LEAST_ALIKE, groups
from seepage.federation.measured import Measured, straight

MIN_SIGNAL = 3.5
"""Least root mean square of a row's entries in units of their errors, for a row to count."""
AGREEING = 1.5
"""Mean square of what is left of rows, in units of its error, up to which they agree; those of one example make 1."""
FEWEST_COMMON = 8
"""Entries that are known of both rows, below which nothing is said of them."""
CHANCE = 0.05
"""Chance that two of a layer's rows agree without being one example's, up to which two are enough."""
MAX_ROWS, MAX_ENTRIES = 256, 1024
"""Rows that are compared with one another, the clearest first, and entries of them: about a second of a core."""
FIT_STEPS = 30
"""Times that shares and example are solved for in turn; without unknown entries the first few change them."""
FIXED = 5
"""The first of them, at which errors are those of the measured values; then they are those at the fit."""
SWEEPS, FIRST_FLOOR, LAST_FLOOR = 60, 0.3, 1e-4
"""Of alternating least squares for a low rank, each in both directions; and the floor of errors on the way, as shares
of the root mean square."""
At = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Values and errors of some rows, straight at what is expected of them."""


@dataclass(frozen=True)
class MeasuredRows:
    """A layer's rows, its bias as their last column.

    Attributes:
        value: `[m, d + 1]` gradients, float64.
        error: `[m, d + 1]` their standard errors, infinite where nothing is known.
        at: Of rows `[r]` and expected values `[r, d + 1]`, both at these.
        bent: Unknown entries are large ones, at the ceiling of a bent step.
    """

    value: Tensor
    error: Tensor
    at: At
    bent: bool = False

    @classmethod
    def of(cls, value: Tensor, error: Tensor) -> "MeasuredRows":
        """Rows whose errors do not depend on their values."""
        return cls(value, error, lambda rows, _: (value[rows], error[rows]))

    @classmethod
    def of_layer(cls, measured: Measured, weight: str, bias: str) -> "MeasuredRows":
        """Those of a fully connected layer."""

        def beside(tensors: Mapping[str, Tensor]) -> Tensor:
            return torch.cat([tensors[weight], tensors[bias][:, None]], 1)

        value, error, step = beside(measured.value), beside(measured.error), measured.step
        if step is None or not step.bent:
            return cls.of(value, error)
        u, spread = (beside({name: measured.moved[name][place] for name in (weight, bias)}) for place in range(2))
        return cls(value, error, lambda rows, e: straight(step, u[rows], spread[rows], e), bent=True)

    def known(self) -> Tensor:
        """`[m, d + 1]` errors; where nothing is known but a least size, that size, which is a beginning."""
        return self.error.where(self.error.isfinite(), self.value.abs()) if self.bent else self.error

    def chord(self, expected: Tensor) -> Tensor:
        """`[m, d + 1]` errors with which measured values are as far from expected ones as the moves that are behind.

        Of a bent step `|x - e| sigma_u / |u - psi(e)|`, by the chord of psi in place of a tangent.
        """
        value, error = self.at(torch.arange(len(expected), device=expected.device), expected)
        far = (value - expected) / error
        chord = ((self.value - expected) / far).abs().where(far != 0, error)
        return chord.clamp(torch.minimum(error, self.error), torch.maximum(error, self.error))


def shares(value: Tensor, trust: Tensor, basis: Tensor) -> Tensor:
    """`[m, r]` the shares of a basis `[r, d]` in each row `[m, d]`, by least squares with weights `[m, d]`."""
    equations = torch.einsum("md,rd,sd->mrs", trust, basis, basis)
    size = equations.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)
    ridge = 1e-12 * size[:, None, None] * torch.eye(len(basis), dtype=value.dtype, device=value.device)
    found: Tensor = torch.linalg.solve(equations + ridge, ((trust * value) @ basis.T)[..., None])[..., 0]
    return found


@dataclass(frozen=True, eq=False)
class LowRankFit:
    """The matrix of a stated rank that is nearest to rows with errors.

    Attributes:
        basis: `[rank, d]` orthonormal.
        parts: `[m, rank]` shares of it in each row.
        noise: Standard error of a singular value that holds errors alone.
        misfit: Mean square of what is left, in units of the errors over the last floor.
        clear: Root mean square, over the rows, of the shares of the direction that is seen least, in units of their
            errors: about 1 where the stated rank is too high.
    """

    basis: Tensor
    parts: Tensor
    noise: float
    misfit: float
    clear: float


def weighted_low_rank(rows: MeasuredRows, rank: int) -> LowRankFit:
    """A low rank by alternating least squares, each entry weighed by its own error (Gabriel and Zamir 1979).

    Errors of a bent step span many orders of magnitude, and the few entries that are known best would hold a rough
    basis fast: errors are floored, and the floor falls from sweep to sweep.

    Args:
        rows: With the errors of their entries.
        rank: Of what they would be without errors.
    """
    value, error = rows.value, rows.known()
    size = value.square().mean().sqrt().clamp(min=1e-300)
    basis = torch.linalg.svd(value, full_matrices=False)[2][:rank]
    parts, trust, off = value[:, :rank], value, value
    for sweep in range(SWEEPS):
        floor = max(FIRST_FLOOR * (LAST_FLOOR / FIRST_FLOOR) ** (sweep / (0.7 * SWEEPS)), LAST_FLOOR) * size
        trust = 1 / (error.square() + floor.square())
        most = trust.max()
        left = torch.linalg.qr(shares(value, trust / most, basis))[0]
        basis = torch.linalg.qr(shares(value.T, trust.T / most, left.T))[0].T
        parts = shares(value, trust / most, basis)
        error = rows.chord(parts @ basis)
        off = (value - parts @ basis).square() / (error.square() + floor.square())
    known = rows.error.isfinite()
    free = int(known.sum()) - rank * (value.shape[0] + value.shape[1] - rank)
    told = torch.einsum("md,rd->mr", trust, basis.square()).clamp(min=1e-300)
    clear = torch.linalg.eigvalsh(parts.T @ (told.mean(1, keepdim=True) * parts))[0].clamp(min=0) / len(parts)
    noise, misfit = float((1 / told).sum(0).mean().sqrt()), float(off[known].sum()) / max(free, 1)
    return LowRankFit(basis, parts, noise, misfit, float(clear.sqrt()))


@dataclass(frozen=True)
class RowGroup:
    """Rows that agree, and what they agree on.

    Attributes:
        rows: `[r]` neurons.
        example: `[d]` what the layer reads of the example they would come from.
        spread: `[d]` standard error of its entries; infinite where no row knows one.
        slopes: `[r]` the example's share of each row, which its bias gradient is.
        slopes_error: `[r]` their standard errors.
        scale_error: Relative standard error of the example's scale, which the bias gradients give.
        misfit: Mean square of what is left of the rows' known entries, in units of their errors.
    """

    rows: Tensor
    example: Tensor
    spread: Tensor
    slopes: Tensor
    slopes_error: Tensor
    scale_error: float
    misfit: float


def agreeing_groups(seen: MeasuredRows) -> list[RowGroup]:
    """Groups of rows that agree within their errors, disjoint, the clearest rows first.

    Of two rows the mixing ratios agree by chance about as often as they are known to a share of themselves, and k rows
    make k (k - 1) / 2 pairs. Where that may happen, `LEAST_ALIKE` rows must agree.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> x, s = torch.rand(2, 50, generator=draw).double(), torch.rand(8, 2, generator=draw).double()
        >>> s[:4, 1], s[4:, 0] = 0.0, 0.0
        >>> rows = torch.cat([s @ x, s.sum(1, keepdim=True)], 1)
        >>> found = agreeing_groups(MeasuredRows.of(rows, torch.full_like(rows, 1e-4)))
        >>> sorted(one.rows.tolist() for one in found)
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    signal = clearness(seen)
    order = signal.argsort(descending=True, stable=True)[: min(int((signal > MIN_SIGNAL).sum()), MAX_ROWS)]  # [k]
    agree = _agreement(seen.value[order], seen.error[order])  # [k, k]
    members = (order[own].sort().values for _, own in groups(agree, least=2))
    known = seen.error.isfinite().sum(1)
    share = 1 / (signal * known.sqrt()).clamp(min=1e-300)  # [m] to which a row's ratio to another is known
    pairs = len(order) * (len(order) - 1) / 2
    told = [rows for rows in members if len(rows) >= LEAST_ALIKE or pairs * float(share[rows].sum()) < CHANCE]
    return [one for rows in told if (one := fitted(rows, seen)) is not None]


def clearness(seen: MeasuredRows) -> Tensor:
    """`[m]` root mean square of each row's known entries in units of their errors."""
    trust, known = 1 / seen.error.square(), seen.error.isfinite()
    found: Tensor = ((trust * seen.value.square()).sum(1) / known.sum(1).clamp(min=FEWEST_COMMON)).sqrt()
    return found


def _agreement(value: Tensor, error: Tensor) -> Tensor:
    """`[k, k]` bool: which rows are multiples of one another, but for their errors."""
    every = -(-value.shape[1] // MAX_ENTRIES)
    w, e = value[:, ::every], error[:, ::every]  # [k, n]
    w, e = (torch.cat([some, whole[:, -1:]], 1) for some, whole in ((w, value), (e, error)))  # the bias besides
    apart = torch.full((len(w), len(w)), torch.inf, dtype=w.dtype, device=w.device)
    for j in range(len(w)):
        both = e.isfinite() & e[j].isfinite()
        sizes = [((one * both).square().sum(1)).sqrt() for one in (w[j].expand_as(w), w)]
        ratio = (sizes[0] / sizes[1].clamp(min=1e-300))[:, None]  # [k, 1], to be had more exactly from the entries
        ratio = ratio * (w[j] * w * both).sum(1, keepdim=True).sign()
        for _ in range(3):
            trust = both / (e[j].square() + ratio.square() * e.square()).clamp(max=1e300)  # [k, n]
            ratio = ((trust * w[j] * w).sum(1) / (trust * w * w).sum(1).clamp(min=1e-300))[:, None]
        trust = both / (e[j].square() + ratio.square() * e.square()).clamp(max=1e300)
        count = both.sum(1)
        off = (trust * (w[j] - ratio * w).square()).sum(1) / count.clamp(min=1)
        # Entries that both know as zero alone agree with anything.
        clear = (trust * w[j].square()).sum(1) > MIN_SIGNAL**2 * count
        apart[j] = torch.where((count >= FEWEST_COMMON) & clear, off, torch.inf)
    return (apart <= AGREEING) & (apart.T <= AGREEING)


def fitted(rows: Tensor, seen: MeasuredRows) -> RowGroup | None:
    """The example and the slopes whose products are nearest to these rows; None where nothing tells its scale.

    Args:
        rows: `[r]` neurons.
        seen: The layer's rows.
    """
    value, error = seen.value[rows], seen.known()[rows]  # [r, d + 1]
    trust = 1 / error.square()
    slopes = value[:, -1].where(error[:, -1].isfinite(), 0.0)
    example = value.new_zeros(value.shape[1])
    for step in range(FIT_STEPS):
        total = (trust * slopes[:, None].square()).sum(0)  # [d + 1]
        example = (trust * slopes[:, None] * value).sum(0) / total.clamp(min=1e-300)
        if not bool(example[-1].abs() > 0):
            return None
        # Rows leave the scale open: c s and x / c make the same product. The bias gradients are s themselves.
        example = example / example[-1]
        squares = (trust * example.square()).sum(1)
        slopes = (trust * value * example).sum(1) / squares.clamp(min=1e-300)
        if step >= FIXED:
            value, error = seen.at(rows, slopes[:, None] * example)
            trust = 1 / error.square()
    total = (trust * slopes[:, None].square()).sum(0)
    squares = (trust * example.square()).sum(1)
    misfit = value - slopes[:, None] * example
    # The error that the rows' own misfit makes of a weighted mean, whatever its distribution (White 1980), of so few
    # rows taken too small by one degree of freedom; and no less than their stated errors make.
    few = len(rows) / max(len(rows) - 1, 1)
    own = few * (trust.square() * slopes[:, None].square() * misfit.square()).sum(0) / total.clamp(min=1e-300).square()
    spread = torch.maximum(own, 1 / total.clamp(min=1e-300)).sqrt()
    known = trust > 0
    left = float((trust * misfit.square()).sum() / (known.sum() - len(rows) - len(example)).clamp(min=1))
    slopes_error = (max(left, 1.0) / squares.clamp(min=1e-300)).sqrt()
    scale = float(spread[-1])
    return RowGroup(rows, example[:-1], spread[:-1], slopes, slopes_error, scale if math.isfinite(scale) else 1.0, left)
