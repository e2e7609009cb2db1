"""The closed-form leak of a fully connected layer that reads the input: weight gradient over bias gradient."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.base import MATCHING, Attack, Inapplicable, Needs, Progress
from seepage.attacks.network import AttackedRound, best_labels, in_range, relative_mismatch
from seepage.attacks.network.evidence import FAINT
from seepage.attacks.network.first_layer import FirstLayer, Trace
from seepage.attacks.reading.rounded import with_rounding
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.base.nn import input_layer
from seepage.base.registry import attacks
from seepage.federation.types import Reconstruction, Transcript

SUM_TOLERANCE = 100.0
"""Times the tolerance of one row up to which what all rows, or all examples, add up to may be off."""


@attacks.register(
    "linear",
    paper="Phong et al. 2017; Geiping et al. 2020, prop. 3.1",
    cost="milliseconds (closed form)",
)
@dataclass(frozen=True, kw_only=True)
class LinearLeak(Attack):
    """Divide each row of the first layer's weight gradient by its bias gradient.

    **What it reads.** For `y = W x + b` the chain rule gives `dL/dW = dL/dy x^T` and `dL/db = dL/dy`, so for one
    example every row with a non-zero bias gradient is that example, exactly (Phong et al. 2017; Geiping et al. 2020,
    proposition 3.1).

    **When it certifies.** For more examples a row is a mixture of those that activate its neuron. A row is
    *identifiable* when it comes from one example alone, and that is checked without the truth: the model's own backward
    pass on the divided row must give back what the client sent for that neuron, both the bias gradient and the column
    of the next fully connected layer's weight gradient. Only such rows are returned; mixtures are not.

    **Other losses.** The same can be checked whatever the loss was (label smoothing, class weights, a clipped or scaled
    gradient): of one example, the next layer's column over the neuron's activation is the slope at that layer's
    outputs, and what the model makes of it on its way back to the neuron must be the bias gradient that was sent. That
    is one equation for a row, so three rows must agree on the example too. It takes more than two classes, or two
    values: with fewer, the slopes of all examples are multiples of one another, and a mixture looks like an example. So
    may one of two examples of one label; such rows are returned as guesses, and certified only where the last bias
    names as many labels as examples. Values are read off the slopes of their squared errors, and certified where those
    of all examples sum to the last bias gradient.

    **Rounded weights.** Weights that were saved as bfloat16, float16 or 8-bit integers, and gradients made under
    autocast, are known to half a unit in the last place. Then rows that agree within their rounding are put together,
    and what they agree on is certified where its stated error is at most a hundredth of the value range; `objective`
    holds that error. This is not of the papers (see `seepage.attacks.reading.rounded.rows`).

    **An inferred batch size.** Where it was read off the update itself, more examples may be behind it, and several of
    one label look like one where their slopes are in proportion. So nothing is certified then of a rounded update, or
    where two outputs or one leave slopes no other choice.

    Args:
        floor: Rows whose bias gradient is below this share of the largest are left out; float32 rounding grows as
            they shrink.
        tolerance: Largest relative mismatch for a row to count as identified. Rounding reaches about 1e-6; a mixture
            may pass by chance, more often with a wider tolerance, and with two classes, whose columns say nothing new.
        same: Two identified rows closer than this (relative Euclidean distance) are the same example.

    Example:
        >>> from seepage.attacks import LinearLeak
        >>> LinearLeak()
        LinearLeak(floor=0.0001, tolerance=1e-05, same=0.01)
    """

    needs: ClassVar[Needs] = Needs(
        text="a fully connected first layer with bias",
        input_layer=True,
        bias="to divide by",
        weights=None,
        linear_in_gradient="no row is a multiple of an example",
        batch_size="without it no row can be distinguished from a mixture",
    )

    floor: float = 1e-4
    tolerance: float = 1e-5
    same: float = 1e-2

    def examine(self, transcript: Transcript) -> FirstLayer:
        """The first layer's part of the first round; `Inapplicable` where nothing can be divided or certified."""
        attacked = AttackedRound.of(transcript)
        layer, size = (
            input_layer(attacked.model, attacked.observed.params, attacked.knowledge.input_shape),
            attacked.observed.batch_size,
        )
        # What the attack needs was checked before: there is such a layer, and the batch size is known.
        assert layer is not None
        assert layer.bias is not None
        assert size is not None
        # One example alone is not coupled to any other, whatever the batch norm does.
        if size > 1 and attacked.knowledge.client.batch_coupled(attacked.model):
            raise Inapplicable("batch norm in train mode makes every row a mixture of the batch", f"use {MATCHING}")
        weight, bias = attacked.gradient[layer.weight].double(), attacked.gradient[layer.bias].double()
        if not bias.abs().max() > 0:
            raise Inapplicable(
                "the first layer's bias gradient is zero everywhere (no neuron is active, or the loss is zero)",
                "nothing can be divided; use another round",
            )
        return FirstLayer(attacked, layer, weight, bias, size)

    def run(self, seen: FirstLayer, *, seed: int, progress: Progress) -> Reconstruction:
        observed = seen.attacked.observed
        if observed.personal and seen.batch_size > 1:
            raise Inapplicable(
                f"{len(observed.personal)} parameters are the client's own, so no row can be distinguished from a "
                "mixture by the network's own backward pass",
                "attack an update of one example, or observe a round whose weights are all known",
            )
        found = self._single(seen) if seen.batch_size == 1 else self._several(seen)
        if observed.size_inferred:
            found = _unproven(found, seen)
        proven = 0 if found.certified is None else int(found.certified.sum())
        return found if proven == seen.batch_size or observed.personal else with_rounding(found, seen)

    def _single(self, seen: FirstLayer) -> Reconstruction:
        # Least squares over all rows of weight = bias x^T: exact without noise, and the best average with it.
        row = seen.bias @ seen.weight / (seen.bias @ seen.bias)  # [d]
        residual = (seen.weight - seen.bias[:, None] * row).norm() / seen.weight.norm()
        note = f"rows agree to {residual:.1e}: the update comes from one example"
        if residual > self.tolerance:
            note = f"rows disagree by {residual:.1e}: the update was changed, or comes from more than one example"
        inputs, knowledge = seen.to_inputs(row[None]), seen.attacked.knowledge
        labels, turned = _label(seen, inputs)
        # Where weight and bias were scaled apart, the rows agree with each other but not with the model.
        inside = in_range(inputs, knowledge.value_range)
        return Reconstruction(
            inputs=inputs,
            labels=labels,
            objective=residual.reshape(1).float(),
            certified=(residual <= self.tolerance) & inside & (turned <= SUM_TOLERANCE * self.tolerance),
            cost={"evaluations": knowledge.num_classes},
            notes=(note,),
        )

    def _several(self, seen: FirstLayer) -> Reconstruction:
        # dL/db_j = sum over examples that activate neuron j; row j over it is their weighted mean. [m]
        size, knowledge = seen.bias.abs(), seen.attacked.knowledge
        classes = knowledge.target == "class"
        live = (size > self.floor * size.max()).nonzero().squeeze(1)  # [k] neurons
        inputs = seen.to_inputs(seen.weight[live] / seen.bias[live, None])
        inside = in_range(inputs, knowledge.value_range)
        live, inputs = live[inside], inputs[inside]
        labels, mismatch = _certified(seen, inputs, live)
        sure = mismatch <= self.tolerance
        proof, alone = bool(sure.any()), torch.zeros_like(sure)
        if not proof:  # the loss is another than the rule's, or was weighted, or the gradient was scaled
            labels, mismatch, alone = _certified_any_loss(seen, inputs, live, self.tolerance)
            sure = mismatch <= self.tolerance
        keep = _distinct(inputs[sure], mismatch[sure], self.same)
        if classes:
            differ = bool(alone[sure].all()) and seen.labels_differ(labels[sure])
        else:
            differ = _account_for_all(seen, inputs[sure][keep], labels[sure][keep], self.tolerance)
        certified = torch.full((len(keep),), proof or differ, device=inputs.device)
        note = (
            f"{int(sure.sum())} of {len(size)} rows come from one example alone and identify {len(keep)} of "
            f"{seen.batch_size} examples; no other row could be distinguished from a mixture"
        )
        if not proof and len(keep):
            note = f"{int(sure.sum())} of {len(size)} rows agree on {len(keep)} of {seen.batch_size} examples"
            alike = "; examples of errors in proportion could look so together"
            if classes:
                note += ", under a loss or a scale of the gradient that the client's rule does not state"
                alike = "; examples of one label could look so together"
            note += "" if certified.all() else alike
        return Reconstruction(
            inputs=inputs[sure][keep],
            labels=None if not classes and labels.ndim == 1 else labels[sure][keep],
            objective=mismatch[sure][keep],
            certified=certified,
            cost={"evaluations": len(inputs) * knowledge.num_classes},
            notes=(note,),
        )


def _unproven(found: Reconstruction, seen: FirstLayer) -> Reconstruction:
    """What was found where the batch size was inferred: no proof, where slopes of all examples are in proportion."""
    if found.certified is None or not bool(found.certified.any()):
        return found
    stated = "the batch size was read off the update, and more examples may be behind it"
    if seen.attacked.knowledge.num_outputs > (1 if seen.attacked.knowledge.target == "value" else 2):
        return replace(found, notes=(*found.notes, f"{stated}: alike ones of one label would look like one"))
    note = f"{stated}, whose slopes are all in proportion, so nothing is certified; give --batch-size"
    return replace(found, certified=torch.zeros_like(found.certified), notes=(*found.notes, note))


def _label(seen: FirstLayer, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
    """The label `[1]` whose bias gradient, at the only example `[1, *shape]`, is nearest the sent one.

    And by how much the two differ in direction, `[1]`, or the next layer's weight gradients if that is more. Where
    batch norm in train mode makes the model's own gradient another, weights are the client's own, or each pixel has a
    label, there is none, and the difference is infinite.
    """
    knowledge, unknown = seen.attacked.knowledge, torch.full((1,), torch.inf, device=inputs.device)
    if knowledge.client.batch_coupled(knowledge.model) or seen.attacked.observed.personal or knowledge.target == "map":
        return None, unknown
    trace = seen.trace(inputs)
    if knowledge.target == "value":
        return _value(seen, trace)
    slopes = list(trace.slopes())
    own = torch.cat([first for first, _ in slopes])  # [classes, m]
    nearest = (own - seen.bias).norm(dim=1).argmin().reshape(1)
    sent, first = F.normalize(seen.bias[None], dim=1), own[nearest].to(seen.bias)
    turned = relative_mismatch(F.normalize(first, dim=1), sent)
    # A gradient that was scaled as a whole is as good.
    factor = seen.bias.norm() / first.norm()
    next_slopes = [factor * slope.double() for slope in slopes[int(nearest)][1]]
    return nearest, torch.maximum(turned, _next_layer(seen, trace, next_slopes))


def _next_layer(seen: FirstLayer, trace: Trace, slopes: Sequence[Tensor]) -> Tensor:
    """How far the next layer's weight gradient is from what the only example makes of slopes `[1, c]` there, `[1]`.

    That of one example is `s a(x)^T`, so it shows the scale of x, which rows that were divided do not show where
    weight and bias were scaled apart: by a clip of each tensor, or a learning rate of its own for biases. Any one
    of the layers that may read the neurons is enough. Where no such layer's gradient was sent, the direction of a
    softmax's slopes depends on x too and this is 0; values and one logit have no such direction, and it is infinite.
    """
    knowledge = seen.attacked.knowledge
    silent = 0.0 if knowledge.target == "class" and knowledge.num_outputs > 1 else torch.inf
    found = [
        relative_mismatch(
            (slope.T @ read.double()).reshape(1, -1), seen.attacked.gradient[name].double().reshape(1, -1)
        )
        for slope, (name, read, _) in zip(slopes, trace.later, strict=True)
    ]
    return torch.stack(found).amin(0) if found else seen.bias.new_full((1,), silent)


def _value(seen: FirstLayer, trace: Trace) -> tuple[Tensor | None, Tensor]:
    """The target `[1, k]` of the only example, and how far the sent bias gradient is from what one can make `[1]`.

    With slopes s at the k outputs f the chain rule gives db = J^T s, where row o of J is the gradient of output o
    at the first layer. So s is known by least squares, whatever the loss is, and of a squared error
    s = 2 (f - y) / k, so that y = f - k s / 2.
    """
    outputs, sent = trace.logits.reshape(-1), seen.bias  # [k], [m]
    rows = list(trace.outputs_slopes())
    ways = torch.cat([first for first, _ in rows]).double()  # J [k, m]
    if len(outputs) >= len(sent):
        return None, torch.full((1,), torch.inf, device=sent.device)  # any gradient has such slopes
    slopes = torch.linalg.lstsq(ways.T.cpu(), sent[:, None].cpu()).solution[:, 0].to(sent)  # [k]
    turned = relative_mismatch((slopes @ ways)[None], sent[None])
    later = zip(*(own for _, own in rows), strict=True)
    next_slopes = [(slopes @ torch.cat(way).double())[None] for way in later]
    turned = torch.maximum(turned, _next_layer(seen, trace, next_slopes))
    if seen.attacked.knowledge.client.loss != "mse":
        return None, turned
    return (outputs.detach() - len(outputs) * slopes.to(outputs) / 2)[None], turned


def _certified(seen: FirstLayer, inputs: Tensor, neurons: Tensor) -> tuple[Tensor, Tensor]:
    """Best label and relative mismatch, `[k]` each, of rows divided at the given neurons.

    If one example alone reaches neuron j, the sent bias gradient and the sent column j of the next layer's weight
    gradient are that example's own, divided by the batch size.
    """
    if not len(inputs) or seen.attacked.knowledge.target != "class":  # there is no label to try
        return neurons.new_zeros(len(inputs)), inputs.new_full((len(inputs),), torch.inf)
    trace, n, at = seen.trace(inputs), seen.batch_size, neurons[:, None]
    # The update is a mean over the batch, so one example's own bias gradient is batch_size times the sent one. [k, 1]
    sent = n * seen.bias[neurons].to(inputs)[:, None]
    columns = [n * seen.attacked.gradient[name][:, neurons].T for name, _, _ in trace.later]  # [k, c] each

    def mismatches() -> Iterator[Tensor]:
        for first, later in trace.slopes():
            # Column j of the next layer's weight gradient: the example's activation of neuron j times the output's
            # gradient. Any one of the layers that read these neurons may confirm a row.
            nearest = inputs.new_full((len(inputs),), torch.inf)
            for slope, (_, activation, _), column in zip(later, trace.later, columns, strict=True):
                nearest = torch.minimum(nearest, relative_mismatch(activation.gather(1, at) * slope, column))
            yield torch.maximum(relative_mismatch(first.gather(1, at), sent), nearest)

    return best_labels(mismatches())


def _certified_any_loss(
    seen: FirstLayer, inputs: Tensor, neurons: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same without a word of the loss: likeliest label and mismatch, `[k]` each; infinite for lone rows.

    And `[k]` whether the slope at the logits is seen, and below zero at one label alone.

    Of one example x alone at neuron j, column j of the next layer's weight gradient is a_j(x) s, with the activation
    a_j and the slope s at that layer's outputs. So s is known, and the chain rule gives the bias gradient from it:
    db_j = d(s . output) / d(first_j). A mixture of examples whose slopes are no multiples of one another fulfils this
    for no three rows with one quotient.
    """
    knowledge = seen.attacked.knowledge
    labels, best = neurons.new_zeros(len(inputs)), inputs.new_full((len(inputs),), torch.inf)
    alone = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
    if not len(inputs) or knowledge.num_outputs < (2 if knowledge.target == "value" else 3):
        return labels, best, alone
    trace, sent, at = seen.trace(inputs), seen.bias[neurons].to(inputs)[:, None], neurons[:, None]  # [k, 1] each
    for place, (name, activation, output) in enumerate(trace.later):
        column = seen.attacked.gradient[name][:, neurons].T.to(inputs)  # [k, c]
        slope = column / activation.gather(1, at)  # [k, c]
        best = torch.minimum(best, relative_mismatch(trace.back(place, slope).gather(1, at), sent))
        if knowledge.target == "class":
            labels = trace.nearest_label(place, slope)
        elif name == seen.last[0] and knowledge.client.loss == "mse":
            # n s = 2 (f - y) / k of an example's own squared error, so its target is y = f - k n s / 2.
            labels = output.detach() - slope.shape[1] * seen.batch_size * slope / 2  # [k, values]
        if name == seen.last[0]:
            alone = (slope < -FAINT * slope.abs().amax(1, keepdim=True)).sum(1) == 1
    passed = best <= tolerance
    agreeing = _agreeing(inputs.flatten(1), passed, tolerance)
    return labels, torch.where(passed & (agreeing >= LEAST_ALIKE), best, torch.inf), alone


def _account_for_all(seen: FirstLayer, inputs: Tensor, values: Tensor, tolerance: float) -> bool:
    """Whether these are all examples of the batch: as many, and their slopes sum to the last bias gradient.

    A mixture that stood in for two examples would leave one too few, and one beside its own examples would add its
    slope once more.
    """
    if seen.last[1] is None or len(inputs) != seen.batch_size or values.ndim != 2:
        return False
    logits = seen.trace(inputs).logits.detach()
    slopes = 2 * (logits - values) / (values.shape[1] * seen.batch_size)  # [n, k]
    off = (slopes.sum(0) - seen.attacked.gradient[seen.last[1]]).norm()
    return bool(off <= SUM_TOLERANCE * tolerance * slopes.norm(dim=1).sum())


def _agreeing(rows: Tensor, passed: Tensor, tolerance: float) -> Tensor:
    """`[k]` how many of the rows `[k, d]` that passed are within the tolerance of each, relative to its size."""
    gaps = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")  # [k, k]
    near = gaps <= tolerance * rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    found: Tensor = (near & passed[None]).sum(1)
    return found


def _distinct(inputs: Tensor, mismatch: Tensor, same: float) -> Tensor:
    """Places of rows that are not the same example as a better row, best first."""
    flat, left = inputs.flatten(1), mismatch.argsort(stable=True)
    kept = [left[:0]]
    while len(left):
        best = flat[left[0]]
        kept.append(left[:1])
        left = left[(flat[left] - best).norm(dim=1) > same * best.norm().clamp(min=1e-12)]
    return torch.cat(kept)
