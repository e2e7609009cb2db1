"""Rows of one example in an update that was rounded: which rows agree within their rounding, and what they agree on.

Row j of a fully connected layer's weight gradient is `s_j x` where one example x alone reaches neuron j, with its bias
gradient `s_j`. Where the numbers were rounded to a coarse format each entry is known to an interval only, so one row
says little and all rows of one example together say much:

    rows j, k of one example:   |W_j - r W_k| <= h_j + |r| h_k entry by entry, with h half a unit in the last place
    that example:               x = sum_j w_j s_j W_j / sum_j w_j s_j^2, with weights w = 1 / h^2, entry by entry

The rows of mixtures agree so only where every one of them mixes the same examples to the same shares. That is decided
afterwards, by what the network itself makes of the example (`rounded.examples`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.algebra.rows import LEAST_ALIKE, groups

MIN_SIGNAL = 2.0
"""Least root mean square of a row, and size of its bias gradient, in units of their rounding, for a row to count."""
AGREEING = 0.5
"""Mean of the squared difference of two rows over the sum of their squared roundings, up to which they agree. Evenly
spread errors of rows of one example give 1/3."""
MAX_ROWS, MAX_ENTRIES = 256, 1024
"""Rows that are compared with one another, the clearest first, and entries of them: about a second of a core."""
FIT_STEPS = 10
"""Times that shares and example are solved for in turn; the first few change them."""


@dataclass(frozen=True)
class RowGroup:
    """Rows that agree, and what they agree on.

    Attributes:
        rows: `[r]` neurons.
        example: `[d]` what the layer reads of the example they would come from.
        spread: `[d]` standard error of its entries, from the misfit of the rows.
        slopes: `[r]` the example's share of each row, which its bias gradient is.
        scale_error: Relative standard error of the example's scale, which the bias gradients give.
    """

    rows: Tensor
    example: Tensor
    spread: Tensor
    slopes: Tensor
    scale_error: float


def agreeing_groups(weight: Tensor, bias: Tensor, half_weight: Tensor, half_bias: Tensor) -> list[RowGroup]:
    """Groups of at least `LEAST_ALIKE` rows that agree within their rounding, disjoint, the clearest rows first.

    Args:
        weight: `[m, d]` gradient of the layer's weight, float64.
        bias: `[m]` of its bias.
        half_weight: `[m, d]` how far the entries may be off, above zero.
        half_bias: `[m]` the same of the bias.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> x, s = torch.rand(2, 50, generator=draw).double(), torch.rand(8, 2, generator=draw).double()
        >>> s[:4, 1], s[4:, 0] = 0.0, 0.0
        >>> halves = (torch.full_like(of, 1e-4) for of in (s @ x, s.sum(1)))
        >>> sorted(one.rows.tolist() for one in agreeing_groups(s @ x, s.sum(1), *halves))
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    signal = weight.square().mean(1).sqrt() / half_weight.square().mean(1).sqrt()  # [m]
    clear = (signal > MIN_SIGNAL) & (bias.abs() > MIN_SIGNAL * half_bias)
    order = signal.where(clear, torch.zeros_like(signal)).argsort(descending=True, stable=True)
    order = order[: min(int(clear.sum()), MAX_ROWS)]  # [k]
    agree = _agreement(weight[order], bias[order], half_weight[order])  # [k, k]
    members = (order[own].sort().values for _, own in groups(agree, least=LEAST_ALIKE, in_order=True))
    return [fitted(rows, weight, bias, half_weight, half_bias) for rows in members]


def _agreement(weight: Tensor, bias: Tensor, half: Tensor) -> Tensor:
    """`[k, k]` bool: which rows are multiples of one another, but for their rounding."""
    every = -(-weight.shape[1] // MAX_ENTRIES)
    w, h = weight[:, ::every], half[:, ::every]  # [k, e]
    apart = torch.full((len(w), len(w)), torch.inf, dtype=w.dtype, device=w.device)
    for j in range(len(w)):
        ratio = (bias[j] / bias)[:, None]  # [k, 1], to be had more exactly from the entries
        for _ in range(2):
            weights = 1 / (h[j].square() + ratio.square() * h.square())  # [k, e]
            ratio = ((weights * w[j] * w).sum(1) / (weights * w * w).sum(1))[:, None]
        weights = 1 / (h[j].square() + ratio.square() * h.square())
        apart[j] = (weights * (w[j] - ratio * w).square()).mean(1)
    return (apart <= AGREEING) & (apart.T <= AGREEING)


def fitted(rows: Tensor, weight: Tensor, bias: Tensor, half_weight: Tensor, half_bias: Tensor) -> RowGroup:
    """The example and the slopes whose products are nearest to these rows; arguments as in `agreeing_groups`."""
    w, b, trust = weight[rows], bias[rows], 1 / half_weight[rows].square()  # [r, d], [r], [r, d]
    trust_bias = 1 / half_bias[rows].square()
    slopes = b.clone()
    for _ in range(FIT_STEPS):
        total = (trust * slopes[:, None].square()).sum(0)  # [d]
        example = (trust * slopes[:, None] * w).sum(0) / total
        slopes = (trust * w * example).sum(1) / (trust * example.square()).sum(1)
        # Rows leave the scale open: c s and x / c make the same product. The bias gradients are s themselves.
        scale = (trust_bias * b * slopes).sum() / (trust_bias * slopes.square()).sum()
        slopes, example = scale * slopes, example / scale
    total = (trust * slopes[:, None].square()).sum(0)
    misfit = w - slopes[:, None] * example
    # The error that the rows' own misfit makes of a weighted mean, whatever its distribution (White 1980); of so few
    # rows it is taken too small by one degree of freedom.
    few = len(rows) / (len(rows) - 1)
    spread = (few * (trust.square() * slopes[:, None].square() * misfit.square()).sum(0)).sqrt() / total
    size = (trust_bias * slopes.square()).sum()
    seen = (few * (trust_bias.square() * slopes.square() * (b - slopes).square()).sum()).sqrt() / size
    # No less than what even errors of that size would make.
    scale_error = max(float(seen), float((3 * size).rsqrt()))
    return RowGroup(rows, example, spread, slopes, scale_error)
