"""Rows of one example in an update that was rounded: which rows agree within their rounding, and what they agree on.

Row j of a fully connected layer's weight gradient is `s_j x` where one example x alone reaches neuron j, with its bias
gradient `s_j`. Where the numbers were rounded to a coarse format each entry is known to an interval only, so one row
says little and all rows of one example together say much:

    rows j, k of one example:   |W_j - r W_k| <= h_j + |r| h_k entry by entry, with h half a unit in the last place
    that example:               x = sum_j w_j s_j W_j / sum_j w_j s_j^2, with weights w = 1 / h^2, entry by entry

The rows of mixtures agree so only where every one of them mixes the same examples to the same shares. That is told
afterwards, by what the network itself makes of the example (`NetworkEvidence`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.algebra.rows import groups

MIN_ROWS = 3
"""Rows that must agree on an example."""
MIN_SIGNAL = 2.0
"""Least root mean square of a row, and size of its bias gradient, in units of their rounding, for a row to count."""
AGREEING = 0.5
"""Mean of the squared difference of two rows over the sum of their squared roundings, up to which they agree. Evenly
spread errors of rows of one example give 1/3."""
MAX_ROWS, MAX_ENTRIES = 256, 1024
"""Rows that are compared with one another, the clearest first, and entries of them: about a second of a core."""
FIT_STEPS = 10
"""Times that shares and example are solved for in turn; the first few change them."""
LOOSE = 0.2
"""Relative mismatch with the network's own slopes up to which what rows agree on is returned as a guess."""
TIGHT = 0.05
"""The same for it to be certified. What is left of it, along the slopes themselves, is counted into the error."""
MIN_LABEL_SHARE = 1e-3
"""Of a slope's largest entry: what is less below zero names no label."""
COLUMN_ROUNDINGS = 1.0
"""Root mean square misfit of a row's column, in units of its rounding, up to which the row is kept. It is 0.58 for
even errors."""


@dataclass(frozen=True)
class RowGroup:
    """Rows that agree, and what they agree on.

    Attributes:
        rows: `[r]` neurons.
        example: `[d]` what the layer reads of the example they would come from.
        spread: `[d]` standard error of its entries, from the misfit of the rows.
        slopes: `[r]` the example's share of each row, which its bias gradient is.
        scale_error: Relative standard error of the example's scale, which the bias gradients tell.
    """

    rows: Tensor
    example: Tensor
    spread: Tensor
    slopes: Tensor
    scale_error: float


def agreeing_groups(weight: Tensor, bias: Tensor, half_weight: Tensor, half_bias: Tensor) -> list[RowGroup]:
    """Groups of at least `MIN_ROWS` rows that agree within their rounding, disjoint, the clearest rows first.

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
    members = (order[own].sort().values for _, own in groups(agree, least=MIN_ROWS, in_order=True))
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


@dataclass(frozen=True)
class NetworkEvidence:
    """What the network itself says of an example that rows agree on.

    Attributes:
        label: The label whose slopes point most nearly as those that were sent.
        mismatch: Largest relative difference of the network's own slopes from the sent ones, beyond `doubt`.
        mismatch_tolerance: How far the rounding may put off the slope that the columns tell, as a share of it.
        share: Largest share of the group's rows that other examples may have: by how much the sent slopes are
            stronger or weaker than the example's own, with two standard errors.
        mismatch_any_loss: Relative difference of the sent slopes from what the network makes of the columns' slope on
            its way back, whatever the loss is.
        one_label: The columns' slope is below zero at one output alone, beyond rounding.
        kept: `[r]` bool: rows whose columns are the example's.
    """

    label: int
    mismatch: float
    mismatch_tolerance: float
    share: float
    mismatch_any_loss: float
    one_label: bool
    kept: Tensor


@dataclass(frozen=True)
class OwnSlopes:
    """The network at one example, for each label.

    Attributes:
        first: `[labels, m]` slopes of its loss at the layer's outputs.
        activation: `[m]` what the next layer reads.
        next: `[labels, c]` slopes at the outputs of that layer.
        columns: `[c, m]` the sent gradient of that layer's weight, times the batch size.
        half: `[c, m]` how far its entries may be off.
        back: Makes of a slope `[c]` at the outputs of that layer the slopes `[m]` at the first one's.
    """

    first: Tensor
    activation: Tensor
    next: Tensor
    columns: Tensor
    half: Tensor
    back: Callable[[Tensor], Tensor]


def evidence(
    group: RowGroup, own: OwnSlopes, examples: int, reading: Tensor, product_share: float = 0.0
) -> NetworkEvidence:
    """Compare a group with the network's own pass: columns first, since they hold the whole slope at the next layer.

    Of one example alone, column j is `a_j S` with its activation `a_j` and its slope S at the next layer's outputs. Of
    a fixed mixture of examples it is the same with the sum of their slopes, so that the network's own slope at the
    mixture, which is one example's, is too small by the others' share.

    Args:
        group: Rows that agree.
        own: The network at what they agree on.
        examples: Examples behind the update, over which it is a mean.
        reading: `[m, d]` the layer's weights, which tell what an error of the example does to an activation.
        product_share: Relative error of the products that the client's own layer added up.
    """
    rows, sent = group.rows, examples * group.slopes  # [r]
    active, columns = own.activation[rows], own.columns[:, rows]  # [r], [c, r]
    # Of an activation, the sum of w x: by the error of x, and of the products. [r]
    off = group.spread.square() + (product_share * group.example).square()
    unsure = (reading[rows].square() @ off).sqrt()
    # What an error of the activation does to a column takes its slope, which plain least squares gives well enough.
    slope = columns @ active / active.square().sum()  # [c]
    allowed = own.half[:, rows].square() + (slope[:, None] * unsure).square()  # [c, r]
    trust = 1 / allowed
    slope = (trust * active * columns).sum(1) / (trust * active.square()).sum(1)
    # At worst all errors pull one way: small changes of large weights are all rounded to nothing. [c]
    worst = (trust * active.abs() * allowed.sqrt()).sum(1) / (trust * active.square()).sum(1)
    kept = ((columns - slope[:, None] * active).square() / allowed).mean(0).sqrt() <= COLUMN_ROUNDINGS
    gaps = (own.next - slope).norm(dim=1) / own.next.norm(dim=1)  # [labels]
    label = int(torch.nn.functional.cosine_similarity(own.next, slope[None]).argmax())
    first = own.first[label, rows]
    strength = float((first * sent).sum() / first.square().sum())
    behind = float((first - sent).norm() / first.norm())
    doubt = float(worst.norm() / own.next[label].norm())
    share = abs(strength - 1) + 2 * group.scale_error
    chain = float((own.back(slope)[rows] - sent).norm() / sent.norm())
    one_label = int((slope < -torch.maximum(worst, MIN_LABEL_SHARE * slope.abs().max())).sum()) == 1
    return NetworkEvidence(label, max(float(gaps[label]) - doubt, behind), doubt, share, chain, one_label, kept)
