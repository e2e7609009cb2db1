"""What `linear` makes of an update that was rounded: examples with a stated error, and what the rounding costs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from seepage.attacks.rounded.rounding import Rounding, rounding_of
from seepage.attacks.rounded.rows import (
    LOOSE,
    MIN_LABEL_SHARE,
    MIN_ROWS,
    TIGHT,
    NetworkEvidence,
    OwnSlopes,
    RowGroup,
    agreeing_groups,
    evidence,
    fitted,
)
from seepage.core.nn import InputLayer, last_linear
from seepage.types import Knowledge, Reconstruction, Round, Tensors

CERTAIN = 0.01
"""Stated error, root mean square in units of the value range, up to which an example is certified: 40 dB."""
ROUGH = 0.1
"""The same up to which it is returned at all, as a guess."""
SINGLE = 1e-6
"""What float32 arithmetic adds to a stated error."""
MOST_NUMBERS = 2**25
"""Entries of the first layer's weight above which rounding is not looked into: copies in float64 take 256 MB each."""
TRIMS = 4
"""Times that rows are left out whose columns are not the example's."""
DEVIATIONS = 4.0
"""Standard errors by which an entry may lie outside the value range."""


class Trace(Protocol):
    """One forward pass on `k` candidates, from which every label's slopes are read."""

    @property
    def first(self) -> Tensor: ...
    @property
    def later(self) -> tuple[tuple[str, Tensor, Tensor], ...]: ...

    def gradients(self, label: int) -> tuple[Tensor, tuple[Tensor, ...]]: ...


class Leak(Protocol):
    """The first layer's part of an update, as `linear` reads it."""

    @property
    def layer(self) -> InputLayer: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def bias(self) -> Tensor: ...
    @property
    def gradient(self) -> Tensors: ...
    @property
    def observed(self) -> Round: ...
    @property
    def knowledge(self) -> Knowledge: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def readers(self) -> list[str]: ...

    def to_inputs(self, rows: Tensor) -> Tensor: ...
    def trace(self, inputs: Tensor) -> Trace: ...


@dataclass(frozen=True)
class RoundedExample:
    """An example that rows agree on, within their rounding.

    Attributes:
        inputs: `[*shape]`.
        label: The likeliest label.
        error: Stated error: root mean square over its entries, in units of the value range.
        rows: Rows that agree on it.
        any_loss: The network confirms it by the columns' own slopes alone, not by those of the stated loss.
        certified: Whether the network itself confirms it, to within `CERTAIN`.
    """

    inputs: Tensor
    label: int
    error: float
    rows: int
    any_loss: bool
    certified: bool


def with_rounding(found: Reconstruction, leak: Leak) -> Reconstruction:
    """What the rows of a rounded update agree on, in place of what was found without a word of the rounding.

    Args:
        found: What `linear` found by exact agreement.
        leak: What it read.

    Returns:
        The same where nothing was rounded, or more could be certified so; where rows agree on nothing, with a note on
        what the rounding costs.
    """
    knowledge, layer = leak.knowledge, leak.layer
    moved = len(knowledge.client.batches(leak.batch_size)) > 1  # the network moved on the way
    if knowledge.target != "class" or moved or knowledge.client.batch_coupled(knowledge.model):
        return found
    if leak.weight.numel() > MOST_NUMBERS:
        return found
    assert layer.bias is not None
    # The weights of what may read the layer's neurons, whose columns are compared, and the last bias, for labels.
    readers = [name for reader in leak.readers if (name := f"{reader}.weight") in leak.gradient]
    ends = last_linear(knowledge.model, knowledge.num_outputs)
    last = [ends[1]] if ends is not None and ends[1] is not None and ends[1] in leak.gradient else []
    names = dict.fromkeys([layer.weight, layer.bias, *readers, *last])
    rounding = rounding_of(leak.observed, knowledge.client, [*names]) if readers else None
    if rounding is None:
        return found
    examples = _without_repeats(sorted(_examples(leak, rounding), key=lambda one: one.error), leak)
    if any(one.any_loss for one in examples) and not _labels_differ(leak, rounding, [one.label for one in examples]):
        examples = [replace(one, certified=one.certified and not one.any_loss) for one in examples]
    # Of more examples than that, some of one label would have the rows of one, but for the rounding.
    if leak.observed.size_inferred or sum(one.certified for one in examples) > leak.batch_size:
        examples = [replace(one, certified=False) for one in examples]
    proven = 0 if found.certified is None else int(found.certified.sum())
    sure = sum(one.certified for one in examples)
    if sure < proven or (sure == proven and len(found) >= len(examples) and rounding.format == "float32"):
        return found
    notes = _notes(leak, rounding, examples)
    if not examples:
        return replace(found, notes=(*found.notes, *notes))
    device = leak.bias.device
    return Reconstruction(
        inputs=torch.stack([one.inputs for one in examples]),
        labels=torch.tensor([one.label for one in examples], device=device),
        objective=torch.tensor([one.error for one in examples], device=device),
        certified=torch.tensor([one.certified for one in examples], device=device),
        cost={"evaluations": len(examples) * knowledge.num_classes},
        notes=notes,
    )


def _notes(leak: Leak, rounding: Rounding, examples: list[RoundedExample]) -> tuple[str, ...]:
    """What rows agree on, and how well; or what the rounding costs."""
    cost = float(rounding.half[leak.layer.weight].norm() / leak.weight.norm())
    lost = (
        f"{rounding.words}, whose rounding is {cost:.2g} times as large as what is left of the first layer's gradient"
    )
    sure = [one for one in examples if one.certified]
    if not examples:
        return (f"{lost}, and no rows agree on an example that the network confirms",)
    if not sure:
        best = min(one.error for one in examples)
        which = "the one guess" if len(examples) == 1 else f"the best of {len(examples)} guesses"
        if best <= CERTAIN:
            unsure = f"would be good to {best:.1g} of the value range, if nothing but one example were behind its rows"
            inferred = leak.observed.size_inferred
            return (f"{lost}; {which} {unsure}" + "; give the batch size, which was inferred" * inferred,)
        return (f"{lost}; {which} is good to {best:.1g} of the value range only",)
    found = (
        f"{rounding.words}: {sum(one.rows for one in examples)} rows agree within their rounding on {len(examples)} of "
        f"{leak.batch_size} examples, {len(sure)} of which the network's own backward pass confirms to within "
        f"{max(one.error for one in sure):.1g} of the value range (root mean square)"
    )
    if any(one.any_loss for one in sure):
        found += ", under a loss or a scale of the gradient that the client's rule does not state"
    return (found,)


def _labels_differ(leak: Leak, rounding: Rounding, labels: list[int]) -> bool:
    """Whether each example of the batch has a label of its own, as the last bias gradient says beyond its rounding."""
    if leak.batch_size == 1:
        return True
    ends = last_linear(leak.knowledge.model, leak.knowledge.num_outputs)
    if ends is None or ends[1] is None or ends[1] not in rounding.half:
        return False
    bias = leak.gradient[ends[1]].double()
    below = bias < -torch.maximum(rounding.half[ends[1]], MIN_LABEL_SHARE * bias.abs().max())
    return int(below.sum()) == leak.batch_size and bool(below[labels].all())


def _examples(leak: Leak, rounding: Rounding) -> Iterator[RoundedExample]:
    """What groups of rows agree on, where the network confirms it at least roughly."""
    assert leak.layer.bias is not None
    halves = rounding.half[leak.layer.weight], rounding.half[leak.layer.bias]
    for group in agreeing_groups(leak.weight, leak.bias, *halves):
        settled = _settled(group, leak, rounding)
        if settled is not None and settled[1].mismatch_tolerance <= LOOSE:
            example = _judged(*settled, leak, rounding)
            if example is not None:
                yield example


def _settled(group: RowGroup, leak: Leak, rounding: Rounding) -> tuple[RowGroup, NetworkEvidence] | None:
    """A group without the rows that others reach, too, and what the network says of it; None where too few are left.

    Others may reach a row by so little that its quotient agrees; its column shows them.
    """
    assert leak.layer.bias is not None
    halves = rounding.half[leak.layer.weight], rounding.half[leak.layer.bias]
    for _ in range(TRIMS):
        said = _evidence(group, leak, rounding)
        if said is None or said.kept.all():
            return None if said is None else (group, said)
        rows = group.rows[said.kept]
        if len(rows) < MIN_ROWS:
            return None
        group = fitted(rows, leak.weight, leak.bias, *halves)
    return None


def _evidence(group: RowGroup, leak: Leak, rounding: Rounding) -> NetworkEvidence | None:
    """The network's own pass at what a group agrees on; of several layers that read the neurons, the likeliest."""
    trace, n = leak.trace(leak.to_inputs(group.example[None])), leak.batch_size
    slopes = [trace.gradients(label) for label in range(leak.knowledge.num_classes)]
    first = torch.cat([one for one, _ in slopes]).double()  # [labels, m]
    reading = leak.observed.params[leak.layer.weight].double()
    ends = last_linear(leak.knowledge.model, leak.knowledge.num_outputs)
    found = []
    for place, (name, activation, output) in enumerate(trace.later):

        def back(slope: Tensor, output: Tensor = output) -> Tensor:
            at = slope[None].to(output)
            (made,) = torch.autograd.grad(output, trace.first, at, retain_graph=True, materialize_grads=True)
            return made[0].double()

        own = OwnSlopes(
            first=first,
            activation=activation[0].double(),
            next=torch.cat([later[place] for _, later in slopes]).double(),  # [labels, c]
            columns=n * leak.gradient[name].double(),
            half=n * rounding.half[name].clamp(min=1e-30),
            back=back,
        )
        said = evidence(group, own, n, reading, rounding.product_share)
        found.append(said if ends is not None and name == ends[0] else replace(said, one_label=False))
    return min(found, key=lambda one: one.mismatch, default=None)


def _judged(group: RowGroup, said: NetworkEvidence, leak: Leak, rounding: Rounding) -> RoundedExample | None:
    """The example with its stated error; None where the network says otherwise, or it is known too roughly."""
    low, high = leak.knowledge.value_range
    inputs = leak.to_inputs(group.example[None])
    shown, scale = inputs.flatten().double(), leak.layer.scale.double().abs()
    spread = group.spread / scale  # [d] in units of the input
    slack = 0.01 * (high - low) + DEVIATIONS * spread
    if bool(((shown < low - slack) | (shown > high + slack)).any()):
        return None
    # Two standard errors of the rows' rounding and of the scale.
    read = (group.example / scale).square().mean().sqrt()
    error = 2 * float((spread.square().mean() + (group.scale_error * read).square()).sqrt())
    # Where weight and bias were scaled apart, rows agree on a wrong scale, and columns do not fit what they agree on.
    error += 2 * float(said.mismatch_any_loss > said.mismatch_tolerance) * said.mismatch_any_loss * float(read)
    # A client that computes in the format rounds its examples, before and after they are normalized.
    error += rounding.input_share * float(shown.square().mean().sqrt() + read)
    alone, any_loss = leak.batch_size == 1, said.mismatch > TIGHT
    if not alone:
        # Others may have a share q of the rows: then the example is (what was read - q others) / (1 - q), and others
        # are anywhere in the value range. Under another loss strengths say nothing, and what is hidden by the rounding
        # of the rows is all that others may have.
        rows, half = leak.weight[group.rows], rounding.half[leak.layer.weight][group.rows]
        share = min(float(half.norm() / rows.norm()) if any_loss else said.share, 0.5)
        farthest = torch.maximum((shown - low).abs(), (high - shown).abs()).square().mean().sqrt()
        error += share / (1 - share) * float(farthest)
    error = error / (high - low) + SINGLE
    mismatch = said.mismatch_any_loss if any_loss else said.mismatch
    if error > ROUGH or min(mismatch, said.mismatch) > LOOSE:
        return None
    # With two classes all slopes are multiples of one another, and a mixture looks like an example by chance.
    told = alone or (leak.knowledge.num_outputs > 2 and (said.one_label or not any_loss))
    sure = mismatch <= TIGHT and error <= CERTAIN and told
    return RoundedExample(inputs[0], said.label, error, len(group.rows), any_loss, sure)


def _without_repeats(examples: list[RoundedExample], leak: Leak) -> list[RoundedExample]:
    """Without those that a better one is, within both errors."""
    low, high = leak.knowledge.value_range
    kept: list[RoundedExample] = []
    for one in examples:
        apart = [float((one.inputs - other.inputs).double().square().mean().sqrt()) / (high - low) for other in kept]
        if all(gap > one.error + other.error for gap, other in zip(apart, kept, strict=True)):
            kept.append(one)
    return kept
