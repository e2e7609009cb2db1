"""What `linear` makes of rows that are known to an error each: examples with a stated error, and what the errors cost.

Of one example the whole first layer is one outer product, `(W, b) = s (x, 1)^T`. Of several, rows that agree within
their errors may be one example's alone, and what they agree on is held against the network's own backward pass: its
slope there, and the next layer's columns, which are `a_j(x) S` of that example alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.linear.spans import in_both_spans
from seepage.attacks.linear.two_layers import Guess, TwoLayers
from seepage.attacks.network import EXACT, LARGEST_MATRIX, in_range
from seepage.attacks.network.evidence import FAINT, READ
from seepage.attacks.network.first_layer import FirstLayer, Trace
from seepage.attacks.reading.rows import (
    AGREEING,
    FEWEST_COMMON,
    MIN_SIGNAL,
    MeasuredRows,
    RowGroup,
    agreeing_groups,
    clearness,
    fitted,
)
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.base.number_formats import SIGNIFICANT_BITS
from seepage.base.rounding import DEVIATIONS, FLOAT32_NETWORK, FLOAT32_SUM
from seepage.federation.measured import EVEN, Formats, Measured, straight
from seepage.federation.types import Reconstruction

TRIMS = 4
"""Times that rows are left out whose columns are not the example's."""
LOOSE = 0.2
"""Relative mismatch with the network's own slopes up to which what rows agree on is returned as a guess."""
TIGHT = 0.05
"""The same for it to be certified. What is left of it, along the slopes themselves, is counted into the error."""
COLUMN = 3.0
"""Mean square of a column's misfit in units of its errors up to which it is the example's; its own errors make 1."""


@dataclass(frozen=True)
class NetworkEvidence:
    """What the network itself says of an example that rows agree on.

    Attributes:
        label: `[]` the label whose slopes point most nearly as those that were sent; of values `[k]`.
        mismatch: Largest relative difference of the network's own slopes from the sent ones, beyond the tolerance.
        mismatch_tolerance: How far the errors may put off the slope that the columns give, as a share of it.
        share: Largest share of the group's rows that other examples may have: by how much the sent slopes are
            stronger or weaker than the example's own, with two standard errors.
        mismatch_any_loss: Relative difference of the sent slopes from what the network makes of the columns' slope on
            its way back, whatever the loss is.
        one_label: The columns' slope is below zero at one output alone, beyond its errors.
        kept: `[r]` bool: rows whose columns are the example's.
        slope: `[c]` of the example at the outputs of the layer whose columns were compared.
        slope_error: `[c]` its standard errors.
        at_last: That layer is the last one.
    """

    label: Tensor
    mismatch: float
    mismatch_tolerance: float
    share: float
    mismatch_any_loss: float
    one_label: bool
    kept: Tensor
    slope: Tensor
    slope_error: Tensor
    at_last: bool


@dataclass(frozen=True)
class ReadExample:
    """An example that rows agree on, within their errors.

    Attributes:
        inputs: `[*shape]`.
        label: The likeliest label, or its values.
        error: Stated error: root mean square over its entries, in units of the value range.
        rows: Rows that agree on it.
        any_loss: The network confirms it by the columns' own slopes alone, not by those of the stated loss.
        certified: Whether the network itself confirms it, to within `EXACT`.
        said: The network's evidence; None for the only example of its update.
    """

    inputs: Tensor
    label: Tensor
    error: float
    rows: int
    any_loss: bool
    certified: bool
    said: NetworkEvidence | None = None


def with_errors(found: Reconstruction, seen: FirstLayer) -> Reconstruction:
    """What rows agree on within their errors, in place of what was found without a word of these.

    Args:
        found: What `linear` found by exact agreement.
        seen: What it read.

    Returns:
        The same where more could be certified so; where rows agree on nothing, with a note on what the errors cost.
    """
    knowledge, observed, layer = seen.attacked.knowledge, seen.attacked.observed, seen.layer
    moved = len(knowledge.client.batches(seen.batch_size)) > 1  # the network moved on the way
    if knowledge.target == "map" or moved or (seen.batch_size > 1 and knowledge.client.batch_coupled(knowledge.model)):
        return found
    # The weights of what may read the layer's neurons, whose columns are compared, and the last bias, for labels.
    readers = [name for reader in seen.readers if (name := f"{reader}.weight") in seen.attacked.gradient]
    if seen.weight.numel() > LARGEST_MATRIX or not readers:
        return found
    names = [name for name in (layer.weight, layer.bias, *readers, seen.last[1]) if name is not None]
    measured = observed.measured(knowledge.client, [*dict.fromkeys(names)])
    assert measured.formats is not None  # as they were told by the tensors
    if measured.step is None and measured.formats.coarse is None:
        return found  # a gradient in float32 has errors of 1e-7, and mixtures none
    rows = _rows(seen, measured)
    single = seen.batch_size == 1
    spans = _of_spans(seen, rows, measured)
    if spans is not None:
        return spans
    examples = list(_only(seen, rows, measured)) if single else _one_after_another(seen, rows, measured)
    if knowledge.target == "value" and seen.batch_size > 1:
        if not _account_for_all(examples, seen, measured):
            examples = [replace(one, certified=False) for one in examples]
    elif any(one.any_loss for one in examples) and seen.batch_size > 1:
        labels = torch.stack([one.label for one in examples])
        error = measured.error[seen.last[1]].max() / EVEN if seen.last[1] in measured.error else 0.0
        if not seen.labels_differ(labels, error):
            examples = [replace(one, certified=one.certified and not one.any_loss) for one in examples]
    # Of more examples than that, some of one label would have the rows of one, but for the errors.
    if observed.size_inferred or sum(one.certified for one in examples) > seen.batch_size:
        examples = [replace(one, certified=False) for one in examples]
    examples = sorted(examples, key=lambda one: (not one.certified, one.error))[: seen.batch_size]
    proven = 0 if found.certified is None else int(found.certified.sum())
    sure, plain = sum(one.certified for one in examples), measured.formats.coarse is None and _linear(measured)
    if sure < proven or (sure == proven and len(found) >= len(examples) and plain):
        return found
    notes = _notes(seen, measured, examples)
    if not examples:
        return replace(found, notes=(*found.notes, *notes))
    device, labelled = seen.bias.device, knowledge.target == "class" or knowledge.client.loss == "mse"
    return Reconstruction(
        inputs=torch.stack([one.inputs for one in examples]),
        labels=torch.stack([one.label for one in examples]) if labelled else None,
        objective=torch.tensor([one.error for one in examples], device=device),
        certified=torch.tensor([one.certified for one in examples], device=device),
        cost={"evaluations": len(examples) * knowledge.num_classes},
        notes=notes,
    )


def _linear(measured: Measured) -> bool:
    return measured.step is None or (measured.step.linear and not math.isfinite(measured.step.limit))


def _of_spans(seen: FirstLayer, rows: MeasuredRows, measured: Measured) -> Reconstruction | None:
    """All examples of a batch of values, where the first and the last layer together tell them; None otherwise."""
    last, knowledge = seen.last, seen.attacked.knowledge
    two = last[0] is not None and last[1] in measured.value and last[0].rpartition(".")[0] in seen.readers
    coarse = measured.formats is None or measured.formats.coarse is not None
    if knowledge.target != "value" or not two or coarse:
        return None
    layers = TwoLayers(seen, rows, MeasuredRows.of_layer(measured, last[0] or "", last[1] or ""))
    for x, spread in in_both_spans(layers):
        solvable = layers.solvable(x)
        guess, spread = layers.solved(x) if solvable else (layers.guess(x, None, 0.0, unsure=spread), spread)
        if guess.misfit <= AGREEING:
            return _explained(seen, measured, guess, spread)
    return None


def _explained(seen: FirstLayer, measured: Measured, guess: Guess, spread: Tensor) -> Reconstruction | None:
    """What explains both layers, with stated errors."""
    knowledge = seen.attacked.knowledge
    inputs = seen.to_inputs(guess.x)
    low, high = knowledge.value_range
    error = 2 * spread / float(seen.layer.scale.double().abs().mean()) / (high - low) + FLOAT32_SUM
    inside = in_range(inputs.flatten(1), knowledge.value_range, EXACT + DEVIATIONS / 2 * error[:, None])
    if not bool((error <= READ).any()):
        return None
    sure = (error <= EXACT) & inside & (guess.explained and not seen.attacked.observed.size_inferred)
    outs, c = seen.trace(inputs).logits.detach(), len(guess.slopes)
    return Reconstruction(
        inputs=inputs,
        labels=outs - seen.batch_size * c * guess.slopes.T.to(outs) / 2 if knowledge.client.loss == "mse" else None,
        objective=error.float(),
        certified=sure,
        cost={"evaluations": len(inputs)},
        notes=(
            f"{_said(measured, seen.layer.weight)}: {len(inputs)} examples explain first and last layer to "
            f"{guess.misfit:.3g} times the mean square of their errors; {int(sure.sum())} certified; known to within "
            f"{float(error.amin()):.1g} to {float(error.amax()):.1g} of the value range (root mean square)",
        ),
    )


def _rows(seen: FirstLayer, measured: Measured) -> MeasuredRows:
    """The first layer's rows with its bias as their last column."""
    return MeasuredRows.of_layer(measured, seen.layer.weight, seen.layer.bias or "")


def _notes(seen: FirstLayer, measured: Measured, examples: list[ReadExample]) -> tuple[str, ...]:
    """What rows agree on, and how well; or what the errors cost."""
    words = _said(measured, seen.layer.weight)
    sure = [one for one in examples if one.certified]
    if not examples:
        return (f"{words}, and no rows agree on an example that the network confirms",)
    if not sure:
        best = min(one.error for one in examples)
        which = "the one guess" if len(examples) == 1 else f"the best of {len(examples)} guesses"
        if best <= EXACT:
            unsure = f"would be good to {best:.1g} of the value range, if nothing but one example were behind its rows"
            inferred = seen.attacked.observed.size_inferred
            return (f"{words}; {which} {unsure}" + "; give the batch size, which was inferred" * inferred,)
        return (f"{words}; {which} is good to {best:.1g} of the value range only",)
    found = (
        f"{words}: {sum(one.rows for one in examples)} rows agree within their errors on {len(examples)} of "
        f"{seen.batch_size} examples, {len(sure)} of which the network's own backward pass confirms to within "
        f"{max(one.error for one in sure):.1g} of the value range (root mean square)"
    )
    if any(one.any_loss for one in sure):
        found += ", under a loss or a scale of the gradient that the client's rule does not state"
    return (found,)


def _said(measured: Measured, weight: str) -> str:
    """How well the first layer's gradient is known, in words, and by what it is limited."""
    assert measured.formats is not None  # as they were told by the tensors
    value, error = measured.value[weight], measured.error[weight]
    form = measured.formats
    if form.gradient not in ("float32", "float64"):
        words = f"the gradient is made of {form.gradient} numbers"
    else:
        words = f"the returned weights are {form.stored} numbers"
    if not _linear(measured):
        middle = measured.accuracy([weight])
        to = "the median entry not at all" if middle is None or middle > 1 else f"the median entry to {middle:.1g}"
        return (
            f"{words} and the optimizer bent their change, so {measured.known([weight]):.0%} of the first layer's live "
            f"entries are known beyond a least size, {to} of itself"
        )
    cost = float(error.norm() / value.norm().clamp(min=1e-300))
    return f"{words}, whose rounding is {cost:.2g} times as large as what is left of the first layer's gradient"


# --- the only example ----------------------------------------------------------------------------------------------


def _only(seen: FirstLayer, rows: MeasuredRows, measured: Measured) -> Iterator[ReadExample]:
    """The example of an update of one: the outer product that is nearest to all rows, held against the network."""
    clear = (clearness(rows) > MIN_SIGNAL).nonzero().squeeze(1)
    group = fitted(clear, rows) if len(clear) else None
    if group is None or not bool(group.spread.isfinite().all()):
        return
    inputs = seen.to_inputs(group.example[None])
    off, label = _of_slopes(seen, seen.trace(inputs), group, measured)
    error, inside = _stated(group, inputs, seen, measured)
    sure = inside and error <= EXACT and group.misfit <= AGREEING and off <= AGREEING
    yield ReadExample(inputs[0], label, error, len(group.rows), any_loss=False, certified=sure)


def _of_slopes(seen: FirstLayer, trace: Trace, group: RowGroup, measured: Measured) -> tuple[float, Tensor]:
    """The likeliest label of the only example, and how far its slopes are from the sent ones, in units of the errors.

    Mean squares, the larger one of two: of the slopes at the first layer, up to one factor, and of the next layer's
    columns `a_j S` with that factor, which show the scale of x where weight and bias were scaled apart. What an error
    of x does to both is counted in.
    """
    rows, knowledge = group.rows, seen.attacked.knowledge
    relative = float(group.spread.square().mean().sqrt() / group.example.square().mean().sqrt().clamp(min=1e-300))
    relative = 2 * math.hypot(relative, group.scale_error) + FLOAT32_NETWORK
    # What the error of x does to a neuron: by its entries, and by its scale. Nearer its kink than that it may be off.
    weight, reads = (
        seen.attacked.observed.params[seen.layer.weight].double()[rows],
        trace.first.detach()[0].double()[rows],
    )
    unsure = (weight.square() @ group.spread.square() + (group.scale_error * (weight @ group.example)).square()).sqrt()
    sure = reads.abs() > DEVIATIONS * unsure
    # A slope is a sum over outputs that may cancel, so what x does to it is a share of slopes as they are on average.
    trust = sure / (group.slopes_error.square() + relative**2 * group.slopes.square().mean())
    if knowledge.target == "value":
        pulled = list(trace.outputs_slopes())
        ways = torch.cat([first for first, _ in pulled]).double()[:, rows]  # J [k, r]
        root = trust.sqrt()[:, None]
        if len(ways) < int(sure.sum()):
            fit = (
                torch.linalg.lstsq((root * ways.T).cpu(), (root * group.slopes[:, None]).cpu()).solution[:, 0].to(ways)
            )
        else:  # any gradient has such slopes, so that only the columns tell them
            place = next((i for i, (name, _, _) in enumerate(trace.later) if name == seen.last[0]), None)
            if place is None:
                return math.inf, trace.logits[0].detach()
            fit = _slope_of_columns(trace, place, measured, rows, unsure)[0]
        firsts = (fit @ ways)[None]
        ways_later = zip(*(own for _, own in pulled), strict=True)  # of each later layer, [k] of [1, c]
        laters = [(fit @ torch.cat(way).double())[None] for way in ways_later]
        labels = trace.logits.detach()[0] - len(fit) * fit.to(trace.logits) / 2
    else:
        pulled = list(trace.slopes())
        firsts = torch.cat([first for first, _ in pulled]).double()[:, rows]  # [labels, r]
        laters = [torch.cat(way).double() for way in zip(*(own for _, own in pulled), strict=True)]
        labels = torch.arange(len(firsts), device=firsts.device)
    factor = (trust * group.slopes * firsts).sum(1) / (trust * firsts.square()).sum(1).clamp(min=1e-300)  # [labels]
    off = (trust * (group.slopes - factor[:, None] * firsts).square()).sum(1) / max(int(sure.sum()) - 1, 1)
    off = torch.where(factor > 0, off, torch.inf)
    best = int(off.argmin())
    label = labels if knowledge.target == "value" else labels[best]
    beside = []
    for later, (name, activation, _) in zip(laters, trace.later, strict=True):
        value, error = measured.value[name][:, rows], measured.error[name][:, rows]
        own = factor[best] * later[best][:, None] * activation[0].double()[rows]  # [c, r]
        if measured.step is not None and name in measured.moved:
            u, spread = (of[:, rows] for of in measured.moved[name])
            value, error = straight(measured.step, u, spread, own)
        turned = factor[best] * later[best][:, None] * unsure  # where its slope is 1, as where it is on
        spread = (error.square() + (relative * own).square() + turned.square()).sqrt()
        clear = (own.abs() > spread) & sure
        if int(clear.sum()) >= FEWEST_COMMON:
            beside.append(float(((value - own) / spread)[clear].square().mean()))
    silent = math.inf if knowledge.target == "value" or knowledge.num_outputs == 1 else 0.0
    stated = max(float(off[best]), min(beside, default=silent))
    if stated <= AGREEING:
        return stated, label
    # Another loss: the columns give the slope S at the next layer, and the network what that makes of the first.
    spread = (1 / trust.clamp(min=1e-300)).where(sure, math.inf)
    for place in range(len(trace.later)):
        slope, error = _slope_of_columns(trace, place, measured, rows, unsure)
        turned = error.norm() / slope.norm().clamp(min=1e-300)
        made = trace.back(place, slope[None].to(trace.logits))[0].double()[rows]
        allowed = spread + (turned * group.slopes.norm()) ** 2 / len(rows)
        off_any = float(((made - group.slopes).square() / allowed).sum() / max(int(sure.sum()) - 1, 1))
        stated = min(stated, off_any if float(turned) <= TIGHT else math.inf)
    return stated, label


def _stated(group: RowGroup, inputs: Tensor, seen: FirstLayer, measured: Measured) -> tuple[float, bool]:
    """The stated error of what rows agree on, as a share of the value range, and whether it lies in that range."""
    value_range, scale = seen.attacked.knowledge.value_range, seen.layer.scale.double().abs()
    low, high = value_range
    spread, shown = group.spread / scale, inputs.flatten().double()  # [d] in units of the input
    read, size = float((group.example / scale).square().mean().sqrt()), float(shown.square().mean().sqrt())
    errors = {
        "two standard errors of the rows and of the scale": 2
        * math.hypot(float(spread.square().mean().sqrt()), group.scale_error * read),
        # A client that computes in a coarse format rounds its examples, before and after they are normalized.
        "rounding of the example itself": _input_share(measured.formats) * (size + read),
    }
    inside = in_range(shown[None], value_range, EXACT + DEVIATIONS * spread / (high - low))
    return sum(errors.values()) / (high - low) + FLOAT32_SUM, bool(inside)


def _input_share(formats: Formats | None) -> float:
    """Relative error of an example that the client may have rounded itself, before it computed anything."""
    bits = SIGNIFICANT_BITS.get((formats.coarse if formats is not None else None) or "")
    return 0.0 if bits is None else 2.0**-bits


# --- one of several ------------------------------------------------------------------------------------------------


def _examples(seen: FirstLayer, rows: MeasuredRows, measured: Measured) -> Iterator[ReadExample]:
    """What groups of rows agree on, where the network confirms it at least roughly."""
    for group in agreeing_groups(rows):
        settled = _settled(group, seen, rows, measured)
        if settled is not None and settled[1].mismatch_tolerance <= LOOSE:
            example = _judged(*settled, seen, measured)
            if example is not None:
                yield example


def _one_after_another(seen: FirstLayer, rows: MeasuredRows, measured: Measured) -> list[ReadExample]:
    """What rows agree on, then what is left of all rows without what was found: rows that it shared with one more."""
    found = _without_repeats(sorted(_examples(seen, rows, measured), key=lambda one: one.error), seen)
    for _ in range(seen.batch_size):
        known = [one for one in found if one.said is not None and one.said.at_last and one.error <= EXACT]
        if not known or len(known) >= seen.batch_size:
            break
        left = _without(known, seen, measured)
        more = sorted(_examples(seen, _rows(seen, left), left), key=lambda one: one.error)
        both = _without_repeats([*found, *more], seen)
        if len(both) == len(found):
            break
        found = both
    return found


def _without(known: list[ReadExample], seen: FirstLayer, measured: Measured) -> Measured:
    """The measured gradients less what some examples gave to them, by their slopes S at the last layer.

    Each gave `s (x, 1)^T / n` to the first layer, with s what the network makes of S on its way back, and `S a^T / n`
    to the last one. What is not known of S and x is an error more.
    """
    value, error, n = dict(measured.value), dict(measured.error), seen.batch_size
    weight, bias = seen.layer.weight, seen.layer.bias or ""
    for one in known:
        assert one.said is not None  # or its slope is not known
        trace, slope = seen.trace(one.inputs[None]), one.said.slope
        place = next(i for i, (name, _, _) in enumerate(trace.later) if name == seen.last[0])
        name, activation, output = trace.later[place]
        back = trace.back(place, slope[None].to(output))[0].double()  # [m]
        read = one.inputs.flatten().double() * seen.layer.scale.double() + seen.layer.shift.double()
        low, high = seen.attacked.knowledge.value_range
        off = one.error * (high - low) * float(seen.layer.scale.double().abs().max())
        share = float(one.said.slope_error.norm() / slope.norm())
        parts = {
            weight: (back[:, None] * read, back.abs()[:, None] * (share * read.abs() + off)),
            bias: (back, share * back.abs()),
            name: (
                slope[:, None] * activation[0].double(),
                one.said.slope_error[:, None] * activation[0].double().abs(),
            ),
        }
        for part, (given, unsure) in parts.items():
            value[part] = value[part] - given / n
            error[part] = (error[part].square() + (unsure / n).square()).sqrt()
    return Measured(value, error, None, measured.formats)


def _settled(
    group: RowGroup, seen: FirstLayer, rows: MeasuredRows, measured: Measured
) -> tuple[RowGroup, NetworkEvidence] | None:
    """A group without the rows that others reach, too, and what the network says of it; None where too few are left.

    Others may reach a row by so little that its quotient agrees; its column shows them.
    """
    for _ in range(TRIMS):
        said = _evidence(group, seen, measured)
        if said is None or said.kept.all():
            return None if said is None else (group, said)
        left = group.rows[said.kept]
        again = fitted(left, rows) if len(left) >= min(LEAST_ALIKE, len(group.rows)) else None
        if again is None:
            return None
        group = again
    return None


def _weighted(columns: Tensor, spread: Tensor, active: Tensor, unsure: Tensor) -> tuple[Tensor, Tensor]:
    """`[c]` the slope S with `a_j S` nearest to columns `[c, r]`, and the weights `[c, r]` of their entries.

    What an error of an activation does to a column takes its slope, which the first pass gives.
    """
    slope, trust = columns.new_zeros(len(columns)), columns
    for _ in range(2):
        trust = 1 / (spread.square() + (slope[:, None] * unsure).square()).clamp(min=1e-300)
        slope = (trust * active * columns).sum(1) / (trust * active.square()).sum(1).clamp(min=1e-300)
    return slope, trust


def _slope_of_columns(
    trace: Trace, place: int, measured: Measured, rows: Tensor, unsure: Tensor
) -> tuple[Tensor, Tensor]:
    """The slope `[c]` of the only example at a later layer, by its columns, and its standard errors."""
    name, activation, _ = trace.later[place]
    active = activation[0].double()[rows]
    slope, trust = _weighted(measured.value[name][:, rows], measured.error[name][:, rows], active, unsure)
    return slope, (trust * active.square()).sum(1).clamp(min=1e-300).rsqrt()


def _evidence(group: RowGroup, seen: FirstLayer, measured: Measured) -> NetworkEvidence | None:
    """Compare a group with the network's own pass: columns first, since they hold the whole slope at the next layer.

    Of one example alone, column j is `a_j S` with its activation `a_j` and its slope S at the next layer's outputs. Of
    a fixed mixture of examples it is the same with the sum of their slopes, so that the network's own slope at the
    mixture, which is one example's, is too small by the others' share. Of several layers that read the neurons the
    likeliest counts.
    """
    knowledge, n, rows = seen.attacked.knowledge, seen.batch_size, group.rows
    trace, form = seen.trace(seen.to_inputs(group.example[None])), measured.formats
    assert form is not None  # as it was told by the tensors
    named = knowledge.target == "class"
    slopes, sent = list(trace.slopes()) if named else [], n * group.slopes  # [r]
    first = torch.cat([one for one, _ in slopes]).double()[:, rows] if named else None  # [labels, r]
    # Of an activation, the sum of w x: by the error of x, and of the products that the client's layer added up. [r]
    product = _input_share(form) if form.gradient != "float32" else 0.0
    off = group.spread.square() + (product * group.example).square()
    unsure = (seen.attacked.observed.params[seen.layer.weight].double()[rows].square() @ off).sqrt()
    found = []
    for place, (name, activation, output) in enumerate(trace.later):
        columns, spread = n * measured.value[name][:, rows], n * measured.error[name][:, rows]  # [c, r]
        active, known = activation[0].double()[rows], spread.isfinite()  # [r], [c, r]
        slope, trust = _weighted(columns, spread, active, unsure)
        squares = (trust * active.square()).sum(1).clamp(min=1e-300)
        error = squares.rsqrt()
        # At worst all errors pull one way: small changes of large weights are all rounded to nothing. [c]
        worst = 2 * error if form.coarse is None else (trust.sqrt() * active.abs()).sum(1) / squares / EVEN
        misfit = (trust * (columns - slope[:, None] * active).square()).sum(0) / known.sum(0).clamp(min=1)
        kept = misfit <= COLUMN
        back = trace.back(place, slope[None].to(output))[0].double()[rows]
        any_loss = float((back - sent).norm() / sent.norm())
        at_last = name == seen.last[0]
        if first is not None:
            own = torch.cat([later[place] for _, later in slopes]).double()  # [labels, c]
            label = F.cosine_similarity(own, slope[None]).argmax()
            size = own[label].norm()
            tolerance = float(worst.norm() / size)
            apart = float((own[label] - slope).norm() / size) - tolerance
            behind = float((first[label] - sent).norm() / first[label].norm())
            strength = float((first[label] * sent).sum() / first[label].square().sum())
            below = slope < -torch.maximum(worst, FAINT * slope.abs().max())
            one_label = int(below.sum()) == 1 and at_last
            mismatch, share = max(apart, behind), abs(strength - 1)
        else:
            # Of an example's own squared error n s = 2 (f - y) / k; of any other loss its values stay unknown.
            label = (output.detach()[0] - len(slope) * slope.to(output) / 2) if at_last else output.detach()[0]
            tolerance, mismatch, share, one_label = float(worst.norm() / slope.norm()), any_loss, 0.0, False
        share += 2 * group.scale_error
        found.append(
            NetworkEvidence(label, mismatch, tolerance, share, any_loss, one_label, kept, slope, error, at_last)
        )
    return min(found, key=lambda one: one.mismatch, default=None)


def _judged(group: RowGroup, said: NetworkEvidence, seen: FirstLayer, measured: Measured) -> ReadExample | None:
    """The example with its stated error; None where the network says otherwise, or it is known too roughly."""
    low, high = seen.attacked.knowledge.value_range
    inputs = seen.to_inputs(group.example[None])
    stated, inside = _stated(group, inputs, seen, measured)
    if not inside or not bool(group.spread.isfinite().all()):
        return None
    shown, values = inputs.flatten().double(), seen.attacked.knowledge.target == "value"
    read = float((group.example / seen.layer.scale.double().abs()).square().mean().sqrt())
    any_loss = values or said.mismatch > TIGHT
    # Others may have a share q of the rows: then the example is (what was read - q others) / (1 - q), and others are
    # anywhere in the value range. Under another loss strengths say nothing, and what is hidden by the errors of the
    # rows is all that others may have.
    weight, spread = (of[seen.layer.weight][group.rows] for of in (measured.value, measured.error))
    # One over the entries' root mean square in units of the most that each may be off.
    clear = (weight / spread).square().sum() / spread.isfinite().sum().clamp(min=1)
    hidden = float(clear.clamp(min=1e-300).rsqrt()) / EVEN
    share = min(hidden if any_loss else said.share, 0.5)
    farthest = float(torch.maximum((shown - low).abs(), (high - shown).abs()).square().mean().sqrt())
    # Where weight and bias were scaled apart, rows agree on a wrong scale, and columns do not fit what they agree on.
    apart = said.mismatch_any_loss if said.mismatch_any_loss > said.mismatch_tolerance else 0.0
    error = stated + (2 * apart * read + share / (1 - share) * farthest) / (high - low)
    mismatch = said.mismatch_any_loss if any_loss else said.mismatch
    if error > READ or min(mismatch, said.mismatch) > LOOSE:
        return None
    # With two classes all slopes are multiples of one another, and a mixture looks like an example by chance.
    least = 1 if values else 2
    certain = seen.attacked.knowledge.num_outputs > least and (values or said.one_label or not any_loss)
    sure = mismatch <= TIGHT and error <= EXACT and certain
    return ReadExample(inputs[0], said.label, error, len(group.rows), any_loss and not values, sure, said)


def _account_for_all(examples: list[ReadExample], seen: FirstLayer, measured: Measured) -> bool:
    """Whether these are all examples of the batch: as many, and their slopes sum to the last bias gradient.

    A mixture that stood in for two examples would leave one too few, and one beside its own examples would add its
    slope once more.
    """
    name, said = seen.last[1], [one.said for one in examples if one.said is not None and one.said.at_last]
    if name is None or len(said) != seen.batch_size:
        return False
    off = torch.stack([one.slope for one in said]).sum(0) / seen.batch_size - measured.value[name]
    spread = torch.stack([one.slope_error for one in said]).square().sum(0) / seen.batch_size**2
    spread = spread + measured.error[name].square()
    spread = spread + (TIGHT / seen.batch_size * torch.stack([one.slope.norm() for one in said]).norm()) ** 2 / len(off)
    return float((off.square() / spread).mean()) <= DEVIATIONS


def _without_repeats(examples: list[ReadExample], seen: FirstLayer) -> list[ReadExample]:
    """Without those that a better one is, within both errors."""
    low, high = seen.attacked.knowledge.value_range
    kept: list[ReadExample] = []
    for one in examples:
        apart = [float((one.inputs - other.inputs).double().square().mean().sqrt()) / (high - low) for other in kept]
        if all(gap > one.error + other.error for gap, other in zip(apart, kept, strict=True)):
            kept.append(one)
    return kept
