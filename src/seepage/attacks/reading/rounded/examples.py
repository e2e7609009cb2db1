"""What `linear` makes of an update that was rounded: examples with a stated error, and what the rounding costs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.network import EXACT, LARGEST_MATRIX, in_range
from seepage.attacks.network.evidence import FAINT, READ
from seepage.attacks.network.first_layer import FirstLayer
from seepage.attacks.reading.rounded.rounding import Rounding, rounding_of
from seepage.attacks.reading.rounded.rows import RowGroup, agreeing_groups, fitted
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.base.rounding import DEVIATIONS, FLOAT32_SUM
from seepage.federation.types import Reconstruction

TRIMS = 4
"""Times that rows are left out whose columns are not the example's."""
LOOSE = 0.2
"""Relative mismatch with the network's own slopes up to which what rows agree on is returned as a guess."""
TIGHT = 0.05
"""The same for it to be certified. What is left of it, along the slopes themselves, is counted into the error."""


@dataclass(frozen=True)
class NetworkEvidence:
    """What the network itself says of an example that rows agree on.

    Attributes:
        label: The label whose slopes point most nearly as those that were sent.
        mismatch: Largest relative difference of the network's own slopes from the sent ones, beyond the tolerance.
        mismatch_tolerance: How far the rounding may put off the slope that the columns give, as a share of it.
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
class RoundedExample:
    """An example that rows agree on, within their rounding.

    Attributes:
        inputs: `[*shape]`.
        label: The likeliest label.
        error: Stated error: root mean square over its entries, in units of the value range.
        rows: Rows that agree on it.
        any_loss: The network confirms it by the columns' own slopes alone, not by those of the stated loss.
        certified: Whether the network itself confirms it, to within `EXACT`.
    """

    inputs: Tensor
    label: int
    error: float
    rows: int
    any_loss: bool
    certified: bool


def with_rounding(found: Reconstruction, seen: FirstLayer) -> Reconstruction:
    """What the rows of a rounded update agree on, in place of what was found without a word of the rounding.

    Args:
        found: What `linear` found by exact agreement.
        seen: What it read.

    Returns:
        The same where nothing was rounded, or more could be certified so; where rows agree on nothing, with a note on
        what the rounding costs.
    """
    knowledge, observed, layer = seen.attacked.knowledge, seen.attacked.observed, seen.layer
    moved = len(knowledge.client.batches(seen.batch_size)) > 1  # the network moved on the way
    if knowledge.target != "class" or moved or knowledge.client.batch_coupled(knowledge.model):
        return found
    # The weights of what may read the layer's neurons, whose columns are compared, and the last bias, for labels.
    readers = [name for reader in seen.readers if (name := f"{reader}.weight") in seen.attacked.gradient]
    if seen.weight.numel() > LARGEST_MATRIX or not readers:
        return found
    names = [name for name in (layer.weight, layer.bias, *readers, seen.last[1]) if name is not None]
    rounding = rounding_of(observed, knowledge.client, [*dict.fromkeys(names)])
    if rounding is None:
        return found
    examples = _without_repeats(sorted(_examples(seen, rounding), key=lambda one: one.error), seen)
    if any(one.any_loss for one in examples) and seen.batch_size > 1:
        labels = torch.tensor([one.label for one in examples], device=seen.bias.device)
        if not seen.labels_differ(labels, rounding.half.get(seen.last[1] or "", 0.0)):
            examples = [replace(one, certified=one.certified and not one.any_loss) for one in examples]
    # Of more examples than that, some of one label would have the rows of one, but for the rounding.
    if observed.size_inferred or sum(one.certified for one in examples) > seen.batch_size:
        examples = [replace(one, certified=False) for one in examples]
    proven = 0 if found.certified is None else int(found.certified.sum())
    sure = sum(one.certified for one in examples)
    if sure < proven or (sure == proven and len(found) >= len(examples) and rounding.format == "float32"):
        return found
    notes = _notes(seen, rounding, examples)
    if not examples:
        return replace(found, notes=(*found.notes, *notes))
    device = seen.bias.device
    return Reconstruction(
        inputs=torch.stack([one.inputs for one in examples]),
        labels=torch.tensor([one.label for one in examples], device=device),
        objective=torch.tensor([one.error for one in examples], device=device),
        certified=torch.tensor([one.certified for one in examples], device=device),
        cost={"evaluations": len(examples) * knowledge.num_classes},
        notes=notes,
    )


def _notes(seen: FirstLayer, rounding: Rounding, examples: list[RoundedExample]) -> tuple[str, ...]:
    """What rows agree on, and how well; or what the rounding costs."""
    cost = float(rounding.half[seen.layer.weight].norm() / seen.weight.norm())
    lost = (
        f"{rounding.words}, whose rounding is {cost:.2g} times as large as what is left of the first layer's gradient"
    )
    sure = [one for one in examples if one.certified]
    if not examples:
        return (f"{lost}, and no rows agree on an example that the network confirms",)
    if not sure:
        best = min(one.error for one in examples)
        which = "the one guess" if len(examples) == 1 else f"the best of {len(examples)} guesses"
        if best <= EXACT:
            unsure = f"would be good to {best:.1g} of the value range, if nothing but one example were behind its rows"
            inferred = seen.attacked.observed.size_inferred
            return (f"{lost}; {which} {unsure}" + "; give the batch size, which was inferred" * inferred,)
        return (f"{lost}; {which} is good to {best:.1g} of the value range only",)
    found = (
        f"{rounding.words}: {sum(one.rows for one in examples)} rows agree within their rounding on {len(examples)} of "
        f"{seen.batch_size} examples, {len(sure)} of which the network's own backward pass confirms to within "
        f"{max(one.error for one in sure):.1g} of the value range (root mean square)"
    )
    if any(one.any_loss for one in sure):
        found += ", under a loss or a scale of the gradient that the client's rule does not state"
    return (found,)


def _examples(seen: FirstLayer, rounding: Rounding) -> Iterator[RoundedExample]:
    """What groups of rows agree on, where the network confirms it at least roughly."""
    halves = rounding.half[seen.layer.weight], rounding.half[seen.layer.bias or ""]
    for group in agreeing_groups(seen.weight, seen.bias, *halves):
        settled = _settled(group, seen, rounding)
        if settled is not None and settled[1].mismatch_tolerance <= LOOSE:
            example = _judged(*settled, seen, rounding)
            if example is not None:
                yield example


def _settled(group: RowGroup, seen: FirstLayer, rounding: Rounding) -> tuple[RowGroup, NetworkEvidence] | None:
    """A group without the rows that others reach, too, and what the network says of it; None where too few are left.

    Others may reach a row by so little that its quotient agrees; its column shows them.
    """
    halves = rounding.half[seen.layer.weight], rounding.half[seen.layer.bias or ""]
    for _ in range(TRIMS):
        said = _evidence(group, seen, rounding)
        if said is None or said.kept.all():
            return None if said is None else (group, said)
        rows = group.rows[said.kept]
        if len(rows) < LEAST_ALIKE:
            return None
        group = fitted(rows, seen.weight, seen.bias, *halves)
    return None


def _evidence(group: RowGroup, seen: FirstLayer, rounding: Rounding) -> NetworkEvidence | None:
    """Compare a group with the network's own pass: columns first, since they hold the whole slope at the next layer.

    Of one example alone, column j is `a_j S` with its activation `a_j` and its slope S at the next layer's outputs. Of
    a fixed mixture of examples it is the same with the sum of their slopes, so that the network's own slope at the
    mixture, which is one example's, is too small by the others' share. Of several layers that read the neurons the
    likeliest counts.
    """
    trace, n, rows = seen.trace(seen.to_inputs(group.example[None])), seen.batch_size, group.rows
    slopes, sent = list(trace.slopes()), n * group.slopes  # [r]
    first = torch.cat([one for one, _ in slopes]).double()[:, rows]  # [labels, r]
    # Of an activation, the sum of w x: by the error of x, and of the products that the client's layer added up. [r]
    off = group.spread.square() + (rounding.product_share * group.example).square()
    unsure = (seen.attacked.observed.params[seen.layer.weight].double()[rows].square() @ off).sqrt()
    found = []
    for place, (name, activation, output) in enumerate(trace.later):
        own = torch.cat([later[place] for _, later in slopes]).double()  # [labels, c]
        columns = n * seen.attacked.gradient[name].double()[:, rows]  # [c, r]
        half = n * rounding.half[name].clamp(min=1e-30)[:, rows]  # [c, r]
        active = activation[0].double()[rows]  # [r]
        # What an error of the activation does to a column takes its slope, which plain least squares gives well enough.
        slope = columns @ active / active.square().sum()  # [c]
        allowed = half.square() + (slope[:, None] * unsure).square()  # [c, r]
        trust = 1 / allowed
        slope = (trust * active * columns).sum(1) / (trust * active.square()).sum(1)
        # At worst all errors pull one way: small changes of large weights are all rounded to nothing. [c]
        worst = (trust * active.abs() * allowed.sqrt()).sum(1) / (trust * active.square()).sum(1)
        # A row is kept where its column is off by no more than its rounding, root mean square; even errors make 0.58.
        kept = ((columns - slope[:, None] * active).square() / allowed).mean(0).sqrt() <= 1
        label = int(F.cosine_similarity(own, slope[None]).argmax())
        size = own[label].norm()
        tolerance = float(worst.norm() / size)
        apart = float((own[label] - slope).norm() / size) - tolerance
        behind = float((first[label] - sent).norm() / first[label].norm())
        strength = float((first[label] * sent).sum() / first[label].square().sum())
        share = abs(strength - 1) + 2 * group.scale_error
        back = trace.back(place, slope[None].to(output))[0].double()[rows]
        below = slope < -torch.maximum(worst, FAINT * slope.abs().max())
        one_label = int(below.sum()) == 1 and name == seen.last[0]
        any_loss = float((back - sent).norm() / sent.norm())
        found.append(NetworkEvidence(label, max(apart, behind), tolerance, share, any_loss, one_label, kept))
    return min(found, key=lambda one: one.mismatch, default=None)


def _judged(group: RowGroup, said: NetworkEvidence, seen: FirstLayer, rounding: Rounding) -> RoundedExample | None:
    """The example with its stated error; None where the network says otherwise, or it is known too roughly."""
    value_range = seen.attacked.knowledge.value_range
    low, high = value_range
    inputs = seen.to_inputs(group.example[None])
    shown, scale = inputs.flatten().double(), seen.layer.scale.double().abs()
    spread = group.spread / scale  # [d] in units of the input
    if not in_range(shown[None], value_range, EXACT + DEVIATIONS * spread / (high - low)):
        return None
    read, size = float((group.example / scale).square().mean().sqrt()), float(shown.square().mean().sqrt())
    alone, any_loss = seen.batch_size == 1, said.mismatch > TIGHT
    # Others may have a share q of the rows: then the example is (what was read - q others) / (1 - q), and others are
    # anywhere in the value range. Under another loss strengths say nothing, and what is hidden by the rounding of the
    # rows is all that others may have.
    rows, half = seen.weight[group.rows], rounding.half[seen.layer.weight][group.rows]
    share = 0.0 if alone else min(float(half.norm() / rows.norm()) if any_loss else said.share, 0.5)
    farthest = float(torch.maximum((shown - low).abs(), (high - shown).abs()).square().mean().sqrt())
    # Where weight and bias were scaled apart, rows agree on a wrong scale, and columns do not fit what they agree on.
    apart = said.mismatch_any_loss if said.mismatch_any_loss > said.mismatch_tolerance else 0.0
    errors = {
        "two standard errors of the rows' rounding and of the scale": 2
        * math.hypot(float(spread.square().mean().sqrt()), group.scale_error * read),
        "a scale that rows agree on and columns do not": 2 * apart * read,
        # A client that computes in the format rounds its examples, before and after they are normalized.
        "rounding of the example itself": rounding.input_share * (size + read),
        "other examples behind the rows": share / (1 - share) * farthest,
    }
    error = sum(errors.values()) / (high - low) + FLOAT32_SUM
    mismatch = said.mismatch_any_loss if any_loss else said.mismatch
    if error > READ or min(mismatch, said.mismatch) > LOOSE:
        return None
    # With two classes all slopes are multiples of one another, and a mixture looks like an example by chance.
    stated = alone or (seen.attacked.knowledge.num_outputs > 2 and (said.one_label or not any_loss))
    sure = mismatch <= TIGHT and error <= EXACT and stated
    return RoundedExample(inputs[0], said.label, error, len(group.rows), any_loss, sure)


def _without_repeats(examples: list[RoundedExample], seen: FirstLayer) -> list[RoundedExample]:
    """Without those that a better one is, within both errors."""
    low, high = seen.attacked.knowledge.value_range
    kept: list[RoundedExample] = []
    for one in examples:
        apart = [float((one.inputs - other.inputs).double().square().mean().sqrt()) / (high - low) for other in kept]
        if all(gap > one.error + other.error for gap, other in zip(apart, kept, strict=True)):
            kept.append(one)
    return kept
