"""Columns of a table that a batch norm reads as they are: their statistics, and whole rows.

PyTorch keeps the mean m and the unbiased variance v of each column of n rows. A fully connected layer behind the norm
reads `z_i = g h_i + s` of row i, with `h_i = (x_i - m) / (b + eps)^1/2` and the biased variance `b = v (n - 1) / n`, so

    its weight's gradient  W = sum_i d_i z_i^T,  its bias's  B = sum_i d_i:   (W - B s^T) / g = sum_i d_i h_i^T
    and over the batch     sum_i h_i = 0,   sum_i h_i^2 / n = b / (b + eps),  column by column.

Of two rows `h_2 = -h_1`, hence all rows of that matrix are multiples of `h_1`, whatever the slopes are; of more some
are multiples of one `h_i`, where row i alone reaches the neuron. Either is believed only where both sums hold in every
column, which no mixture of rows meets but by chance. Then `x_i = m + h_i (b + eps)^1/2`, in the input's own units. As
many copies of each row keep both sums, and another b: where nobody stated n, rows are those of a batch without more.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.exposure.running_statistics import (
    BatchStatistics,
    batch_statistics,
    of_raw_inputs,
    rounding_of,
    two_row_errors,
)
from seepage.attacks.reading.rows import MeasuredRows, weighted_low_rank
from seepage.base.nn import as_inputs, at_state, calls_in_pass, generator
from seepage.base.rounding import DEVIATIONS, FALSE_ALARM, FLOAT32_SUM, FLOAT32_ZERO
from seepage.base.words import plural
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Round

MOST_COLUMNS, MOST_ROWS = 8, 4
"""Columns, and whole rows of them, that are listed."""
IF_NO_MORE = ", if there are no more"
MOST_TRIED = 2000
"""Sets of rows that are held against the two sums, a second of a core."""
COARSE = 0.1
"""Error of an entry of h from which a row of a gradient is not looked at."""


@dataclass(frozen=True, eq=False)
class WholeRows:
    """Rows of the input.

    Attributes:
        layer: Weight and bias of the layer that they are read from.
        values: `[n, d]`.
        errors: `[n, d]` by how much each may be off.
    """

    layer: tuple[str, str]
    values: Tensor
    errors: Tensor


def column_findings(knowledge: Knowledge, observed: Round, size: int | None) -> list[ClosedForm]:
    """What running statistics and the layer behind them reveal of the input's columns; none where no norm reads them.

    Args:
        knowledge: What the attacker knows.
        observed: The round.
        size: Examples behind it, where somebody stated that.
    """
    found = _norm_of_columns(knowledge, observed)
    if found is None:
        return []
    norm, raw = found
    limit = "Which value is whose is not told by statistics alone."
    evidence: dict[str, Any] = {"mean": raw.mean.tolist(), "variance": raw.variance.tolist()}
    rows = _whole_rows(norm, raw, knowledge, observed, size)
    if rows is not None:
        count, off = len(rows.values), float(rows.errors[:, :MOST_COLUMNS].max())
        words = f"{plural(count, 'row')}, whole{IF_NO_MORE * (size is None)}"
        listed = "; ".join(_listed(row.tolist()) for row in rows.values[:MOST_ROWS]) + "; …" * (count > MOST_ROWS)
        evidence |= {"rows": rows.values.tolist(), "errors": rows.errors.tolist(), "stated": size is not None}
        return [
            ClosedForm(
                name="columns",
                message=f"{words}, with the returned running statistics",
                lines=(f"{words}: {listed}; to within {off:.1g}",),
                evidence=evidence,
                limit="The order of the rows in the batch is not told.",
                tensors=rows.layer,
                examples=count if size is not None else 0,
            )
        ]
    if size == 2:
        root = (raw.variance.clamp(min=0) / 2).sqrt()
        low, high = (raw.mean - root).tolist(), (raw.mean + root).tolist()
        pairs = [f"{a:.5g} and {b:.5g}" for a, b in zip(low, high, strict=True)]
        errors = two_row_errors(norm, raw)
        words = f"the values of both rows: {_some(pairs)}, to within {float(errors[:MOST_COLUMNS].max()):.1g}"
        evidence |= {"pairs": [low, high], "errors": errors.tolist()}
    else:
        words = f"means of the input's own columns: {_listed(raw.mean.tolist())}"
    return [ClosedForm(name="columns", message=words, evidence=evidence, limit=limit, lines=(words,))]


def _norm_of_columns(knowledge: Knowledge, observed: Round) -> tuple[Any, BatchStatistics] | None:
    """The norm that reads the input's columns, at the state that was sent out, and the batch's statistics."""
    shape, returned = knowledge.input_shape, observed.update.returned
    if not returned or len(shape) != 1:
        return None
    model, state = knowledge.model, (observed.params, observed.buffers)
    raw = of_raw_inputs(model, batch_statistics(model, observed.buffers, returned), shape, *state)
    if raw is None:
        return None
    place = f"{raw.norm}." if raw.norm else ""
    own = ({n.removeprefix(place): one for n, one in part.items() if n.startswith(place)} for part in state)
    return at_state(model.get_submodule(raw.norm), *own), raw


def read_by_norm(knowledge: Knowledge, observed: Round) -> tuple[tuple[str, str], Tensor, Tensor, Tensor] | None:
    """The layer that reads columns behind a norm, what they are multiplied with and moved by, and how far that is off.

    None without such a layer, or where nobody stated how many examples there are.
    """
    found, size = _norm_of_columns(knowledge, observed), observed.batch_size
    layer = None if found is None else _reader(found[1].norm, knowledge, observed)
    if found is None or layer is None or size is None or size < 2 or observed.size_inferred:
        return None
    norm, raw = found
    deviation = (raw.variance.clamp(min=0) * (size - 1) / size + norm.eps).sqrt()
    gain, shift = (one / deviation for one in _affine(norm, raw))
    mean_off, var_off = rounding_of(norm, raw)
    off = mean_off / deviation + var_off / deviation.square()  # of numbers of about a deviation
    return layer, gain, shift * deviation - gain * raw.mean, gain.abs() * deviation * off


def _affine(norm: Any, raw: BatchStatistics) -> tuple[Tensor, Tensor]:
    """Weight and bias of a norm; without any one and zero."""
    if norm.weight is None:
        return torch.ones_like(raw.mean), torch.zeros_like(raw.mean)
    return norm.weight.detach().double(), norm.bias.detach().double()


def _listed(values: list[float]) -> str:
    return _some([f"{value:.5g}" for value in values])


def _some(words: list[str]) -> str:
    return ", ".join(words[:MOST_COLUMNS]) + " …" * (len(words) > MOST_COLUMNS)


def _whole_rows(
    norm: Any, raw: BatchStatistics, knowledge: Knowledge, observed: Round, size: int | None
) -> WholeRows | None:
    layer = _reader(raw.norm, knowledge, observed)
    if layer is None:
        return None
    try:
        seen = observed.measured(knowledge.client, layer)
    except SeepageError:
        return None  # nothing tells the scale of several steps
    gain, shift = _affine(norm, raw)
    if not bool((gain != 0).all()):
        return None
    (weight, bias), (w_off, b_off) = ([part[name].double() for name in layer] for part in (seen.value, seen.error))
    rows = (weight - bias[:, None] * shift) / gain
    off = torch.hypot(w_off, b_off[:, None] * shift) / gain.abs()
    rows = rows.where(off.isfinite(), 0.0)
    mean_off, var_off = rounding_of(norm, raw)
    for hats, spread in _candidates(rows, off, bias, b_off, size):
        count = len(hats)
        biased = raw.variance.clamp(min=0) * (count - 1) / count
        deviation = (biased + norm.eps).sqrt()
        due, room = biased / deviation.square(), var_off / deviation.square()
        if count == 2:  # a multiple of h, whose size the variance tells
            scale = (due.sqrt() / hats[0].abs().clamp(min=1e-300)).median()
            hats, spread = hats * scale, spread * scale
        # The mean that the norm takes away is off, too, and sums of products in float32.
        spread = (spread.square() + (mean_off / deviation).square() + (FLOAT32_SUM * hats).square()).sqrt()
        # What errors leave of each sum, column by column; both are of numbers of about 1.
        most = DEVIATIONS * torch.stack([spread.square().sum(0).sqrt(), 2 * (hats * spread).norm(dim=0) / count + room])
        most = most + FLOAT32_ZERO
        left = torch.stack([hats.sum(0), hats.square().mean(0) - due]).abs()
        tells = (biased > 0)[None] & (torch.tensor([count > 2, True])[:, None])
        chance = float(most.clamp(max=1.0).log()[tells].sum())  # of two rows the first sum is zero by their making
        if not bool((left <= most).all()) or chance > math.log(FALSE_ALARM / (1 if count == 2 else MOST_TRIED)):
            continue
        errors = mean_off + DEVIATIONS * spread * deviation
        errors = errors + hats.abs() * torch.minimum(var_off.sqrt(), var_off / (2 * deviation))
        return WholeRows(layer, raw.mean + hats * deviation, errors)
    return None


def _candidates(
    rows: Tensor, off: Tensor, bias: Tensor, b_off: Tensor, size: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Sets `[n, d]` of what may be the h of all rows, with their errors: of two up to one factor, else of more.

    Rows of a gradient over its bias's agree where the same examples reach their neurons, of two classes however many.
    So each n of the ratios that two neurons share are tried, and each n - 1 with what is left of the sum.
    """
    known = off.isfinite()
    if size in (None, 2) and bool(known.any(0).all()):
        told = known.any(1)
        fit = weighted_low_rank(MeasuredRows.of(rows[told], off[told]), 1)
        # Of the mean of all rows over their shares, weighed by their errors.
        error = (fit.parts / off[told]).square().sum(0).rsqrt()
        scale = fit.basis[0].abs().median().clamp(min=1e-300)
        yield torch.stack([fit.basis[0], -fit.basis[0]]) / scale, error.expand(2, -1) / scale
    ratios = rows / bias[:, None]
    spread = (torch.hypot(off, ratios * b_off[:, None]) / bias[:, None].abs()).nan_to_num(torch.inf)
    fine = (spread.amax(1) < COARSE).nonzero().flatten()
    order = fine[spread[fine].amax(1).argsort()]
    ratios, spread = ratios[order], spread[order]
    found, left = list[int](), torch.ones(len(order), dtype=torch.bool)
    for j in range(len(order)):
        if left[j]:
            near = ((ratios - ratios[j]).abs() <= DEVIATIONS * (spread + spread[j]) + FLOAT32_ZERO).all(1)
            found += [j] * (int((near & left).sum()) > 1)
            left &= ~near
    counts = range(3, len(found) + 2) if size is None else [size] * (size > 2)
    sets = ((n, list(some)) for n in counts for k in (n, n - 1) for some in combinations(found, k))
    for n, some in islice(sets, MOST_TRIED):
        hats, errors = ratios[some], spread[some]
        if len(some) < n:
            hats = torch.cat([hats, -hats.sum(0, keepdim=True)])
            errors = torch.cat([errors, errors.norm(dim=0, keepdim=True)])
        yield hats, errors


def _reader(norm: str, knowledge: Knowledge, observed: Round) -> tuple[str, str] | None:
    """Weight and bias of the fully connected layer that reads what a norm returns, as it is; None without one."""
    model = knowledge.model
    names = [name for name, one in model.named_modules() if isinstance(one, nn.Linear) and one.bias is not None]
    like = next(iter(observed.params.values()))
    probe = torch.rand((2, *knowledge.input_shape), generator=generator(0, "probe")).to(like)
    with torch.no_grad():
        inputs = as_inputs(model, probe)
        calls = calls_in_pass(model, [norm, *names], observed.params, inputs, buffers=observed.buffers)
    for name in names:
        made = calls.get(name, [])
        if len(made) == 1 and made[0].input.shape == probe.shape and torch.equal(made[0].input, calls[norm][0].output):
            keys = f"{name}.weight".removeprefix("."), f"{name}.bias".removeprefix(".")
            return keys if set(keys) <= observed.update.tensors.keys() else None
    return None
