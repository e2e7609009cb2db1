"""The closed-form leak of a fully connected layer that reads the input: weight gradient over bias gradient."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.base import MATCHING, Attack, Inapplicable, Needs, Progress
from seepage.attacks.rounded import with_rounding
from seepage.core.nn import InputLayer, captured_calls, forward, in_mode, input_layer, last_linear
from seepage.registry import attacks
from seepage.types import ClientUpdate, Knowledge, Reconstruction, Round, Tensors, Transcript

MIN_AGREEING_ROWS = 3
"""Rows with one quotient that make an example, where nothing is known of the loss; as in `seepage check`."""
MIN_LABEL_SHARE = 1e-3
"""Of the last bias gradient's largest entry: what is less below zero is taken for rounding, and for no label."""


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

    **Other losses.** The same can be told whatever the loss was (label smoothing, class weights, a clipped or scaled
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
    holds that error. This is not of the papers (see `seepage.attacks.rounded.rows`).

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
        batch_size="without it no row can be told from a mixture",
    )

    floor: float = 1e-4
    tolerance: float = 1e-5
    same: float = 1e-2

    def examine(self, transcript: Transcript) -> "_Leak":
        return _Leak.of(transcript)

    def run(self, leak: "_Leak", *, seed: int, progress: Progress) -> Reconstruction:
        if leak.observed.personal and leak.batch_size > 1:
            raise Inapplicable(
                f"{len(leak.observed.personal)} parameters are the client's own, so no row can be told from a mixture "
                "by the network's own backward pass",
                "attack an update of one example, or observe a round whose weights are all known",
            )
        found = self._single(leak) if leak.batch_size == 1 else self._several(leak)
        if leak.observed.size_inferred:
            found = _unproven(found, leak)
        proven = 0 if found.certified is None else int(found.certified.sum())
        return found if proven == leak.batch_size or leak.observed.personal else with_rounding(found, leak)

    def _single(self, leak: "_Leak") -> Reconstruction:
        # Least squares over all rows of weight = bias x^T: exact without noise, and the best average with it.
        row = leak.bias @ leak.weight / (leak.bias @ leak.bias)  # [d]
        residual = (leak.weight - leak.bias[:, None] * row).norm() / leak.weight.norm()
        note = f"rows agree to {residual:.1e}: the update comes from one example"
        if residual > self.tolerance:
            note = f"rows disagree by {residual:.1e}: the update was changed, or comes from more than one example"
        inputs = leak.to_inputs(row[None])
        labels, turned = leak.label(inputs)
        # Where weight and bias were scaled apart, the rows agree with each other but not with the model.
        certified = (residual <= self.tolerance) & leak.inside(inputs) & (turned <= 100 * self.tolerance)
        return Reconstruction(
            inputs=inputs,
            labels=labels,
            objective=residual.reshape(1).float(),
            certified=certified,
            cost={"evaluations": leak.knowledge.num_classes},
            notes=(note,),
        )

    def _several(self, leak: "_Leak") -> Reconstruction:
        # dL/db_j = sum over examples that activate neuron j; row j over it is their weighted mean. [m]
        size = leak.bias.abs()
        live = (size > self.floor * size.max()).nonzero().squeeze(1)  # [k] neurons
        inputs = leak.to_inputs(leak.weight[live] / leak.bias[live, None])
        inside = leak.inside(inputs)
        live, inputs = live[inside], inputs[inside]
        labels, mismatch = leak.certify(inputs, live)
        sure = mismatch <= self.tolerance
        proof, alone = bool(sure.any()), torch.zeros_like(sure)
        if not proof:  # the loss is another than the rule's, or was weighted, or the gradient was scaled
            labels, mismatch, alone = leak.certify_any_loss(inputs, live, self.tolerance)
            sure = mismatch <= self.tolerance
        keep = _distinct(inputs[sure], mismatch[sure], self.same)
        if leak.knowledge.target == "class":
            differ = bool(alone[sure].all()) and leak.labels_differ(labels[sure])
        else:
            differ = leak.accounts_for_all(inputs[sure][keep], labels[sure][keep], self.tolerance)
        certified = torch.full((len(keep),), proof or differ, device=inputs.device)
        note = (
            f"{int(sure.sum())} of {len(size)} rows come from one example alone and identify {len(keep)} of "
            f"{leak.batch_size} examples; no other row could be told from a mixture"
        )
        if not proof and len(keep):
            note = f"{int(sure.sum())} of {len(size)} rows agree on {len(keep)} of {leak.batch_size} examples"
            alike = "; examples of errors in proportion could look so together"
            if leak.knowledge.target == "class":
                note += ", under a loss or a scale of the gradient that the client's rule does not state"
                alike = "; examples of one label could look so together"
            note += "" if certified.all() else alike
        return Reconstruction(
            inputs=inputs[sure][keep],
            labels=None if leak.knowledge.target != "class" and labels.ndim == 1 else labels[sure][keep],
            objective=mismatch[sure][keep],
            certified=certified,
            cost={"evaluations": len(inputs) * leak.knowledge.num_classes},
            notes=(note,),
        )


def _unproven(found: Reconstruction, leak: "_Leak") -> Reconstruction:
    """What was found where the batch size was inferred: no proof, where slopes of all examples are in proportion."""
    if found.certified is None or not bool(found.certified.any()):
        return found
    told = "the batch size was read off the update, and more examples may be behind it"
    if leak.knowledge.num_outputs > (1 if leak.knowledge.target == "value" else 2):
        return replace(found, notes=(*found.notes, f"{told}: alike ones of one label would look like one"))
    note = f"{told}, whose slopes are all in proportion, so nothing is certified; give --batch-size"
    return replace(found, certified=torch.zeros_like(found.certified), notes=(*found.notes, note))


@dataclass(frozen=True)
class _Leak:
    """What the first layer's part of an update says.

    Attributes:
        weight: `[m, d]` its gradient, float64.
        bias: `[m]` likewise.
        gradient: The whole update, as a gradient.
    """

    layer: InputLayer
    weight: Tensor
    bias: Tensor
    gradient: Tensors
    observed: Round
    knowledge: Knowledge
    batch_size: int

    @classmethod
    def of(cls, transcript: Transcript) -> "_Leak":
        """Read a transcript's first round; `Inapplicable` where nothing can be divided or certified."""
        knowledge, observed = transcript.knowledge, transcript[0]
        layer = input_layer(knowledge.model, observed.params, knowledge.input_shape)
        # What the attack needs was checked before: there is such a layer, and the batch size is known.
        assert layer is not None
        assert layer.bias is not None
        assert observed.batch_size is not None
        # One example alone is not coupled to any other, whatever the batch norm does.
        if observed.batch_size > 1 and knowledge.client.batch_coupled(knowledge.model):
            raise Inapplicable("batch norm in train mode makes every row a mixture of the batch", f"use {MATCHING}")
        gradient = observed.gradient(knowledge.client)
        weight, bias = gradient[layer.weight].double(), gradient[layer.bias].double()
        if not bias.abs().max() > 0:
            raise Inapplicable(
                "the first layer's bias gradient is zero everywhere (no neuron is active, or the loss is zero)",
                "nothing can be divided; use another round",
            )
        return cls(layer, weight, bias, gradient, observed, knowledge, observed.batch_size)

    @property
    def readers(self) -> list[str]:
        """What may read the layer's m neurons: fully connected layers with m inputs."""
        first = self.layer.weight.rpartition(".")[0]
        return [
            name
            for name, module in self.knowledge.model.named_modules()
            if isinstance(module, nn.Linear) and name != first and module.in_features == len(self.bias)
        ]

    def to_inputs(self, rows: Tensor) -> Tensor:
        """`[k, d]` rows to `[k, *shape]` inputs in the model's own precision."""
        like = self.observed.params[self.layer.weight]
        return self.layer.to_inputs(rows, self.knowledge.input_shape).to(like)

    def inside(self, inputs: Tensor) -> Tensor:
        """`[k]` bool: which of `[k, *shape]` inputs lie in the value range, give or take rounding."""
        low, high = self.knowledge.value_range
        slack = 0.01 * (high - low)
        return ((inputs >= low - slack) & (inputs <= high + slack)).flatten(1).all(1)

    def trace(self, inputs: Tensor) -> "_Trace":
        """A forward pass on `[k, *shape]` inputs."""
        return _Trace.of(inputs, self)

    def label(self, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """The label `[1]` whose bias gradient, at the only example `[1, *shape]`, is nearest the sent one.

        And by how much the two differ in direction, `[1]`, or the next layer's weight gradients if that is more. Where
        batch norm in train mode makes the model's own gradient another, weights are the client's own, or each pixel has
        a label, there is none, and the difference is infinite.
        """
        knowledge, unknown = self.knowledge, torch.full((1,), torch.inf, device=inputs.device)
        if knowledge.client.batch_coupled(knowledge.model) or self.observed.personal or knowledge.target == "map":
            return None, unknown
        trace = _Trace.of(inputs, self)
        if knowledge.target == "value":
            return self._value(trace)
        slopes = [trace.gradients(label) for label in range(self.knowledge.num_classes)]
        own = torch.cat([first for first, _ in slopes])  # [classes, m]
        nearest = (own - self.bias).norm(dim=1).argmin().reshape(1)
        sent, first = F.normalize(self.bias[None], dim=1), own[nearest].to(self.bias)
        turned = _mismatch(F.normalize(first, dim=1), sent)
        # A gradient that was scaled as a whole is as good.
        factor = self.bias.norm() / first.norm()
        next_slopes = [factor * slope.double() for slope in slopes[int(nearest)][1]]
        return nearest, torch.maximum(turned, self._next_layer(trace, next_slopes))

    def _next_layer(self, trace: "_Trace", slopes: Sequence[Tensor]) -> Tensor:
        """How far the next layer's weight gradient is from what the only example makes of slopes `[1, c]` there, `[1]`.

        That of one example is `s a(x)^T`, so it tells the scale of x, which rows that were divided do not tell where
        weight and bias were scaled apart: by a clip of each tensor, or a learning rate of its own for biases. Any one
        of the layers that may read the neurons is enough. Where no such layer's gradient was sent, the direction of a
        softmax's slopes tells of x too and this is 0; values and one logit have no such direction, and it is infinite.
        """
        silent = 0.0 if self.knowledge.target == "class" and self.knowledge.num_outputs > 1 else torch.inf
        found = [
            _mismatch((slope.T @ activation.double()).reshape(1, -1), self.gradient[name].double().reshape(1, -1))
            for slope, (name, activation, _) in zip(slopes, trace.later, strict=True)
        ]
        return torch.stack(found).amin(0) if found else self.bias.new_full((1,), silent)

    def _value(self, trace: "_Trace") -> tuple[Tensor | None, Tensor]:
        """The target `[1, k]` of the only example, and how far the sent bias gradient is from what one can make `[1]`.

        With slopes s at the k outputs f the chain rule gives db = J^T s, where row o of J is the gradient of output o
        at the first layer. So s is known by least squares, whatever the loss is, and of a squared error
        s = 2 (f - y) / k, so that y = f - k s / 2.
        """
        outputs = trace.logits.reshape(-1)  # [k]
        places = [trace.first, *(output for _, _, output in trace.later)]
        rows = [torch.autograd.grad(one, places, retain_graph=True, materialize_grads=True) for one in outputs]
        ways, sent = torch.cat([row[0] for row in rows]).double(), self.bias  # J [k, m], [m]
        if len(outputs) >= len(sent):
            return None, torch.full((1,), torch.inf, device=sent.device)  # any gradient has such slopes
        slopes = torch.linalg.lstsq(ways.T.cpu(), sent[:, None].cpu()).solution[:, 0].to(sent)  # [k]
        turned = _mismatch((slopes @ ways)[None], sent[None])
        next_slopes = [(slopes @ torch.cat(way).double())[None] for way in list(zip(*rows, strict=True))[1:]]
        turned = torch.maximum(turned, self._next_layer(trace, next_slopes))
        if self.knowledge.client.loss != "mse":
            return None, turned
        return (outputs.detach() - len(outputs) * slopes.to(outputs) / 2)[None], turned

    def certify(self, inputs: Tensor, neurons: Tensor) -> tuple[Tensor, Tensor]:
        """Best label and relative mismatch, `[k]` each, of rows divided at the given neurons.

        If one example alone reaches neuron j, the sent bias gradient and the sent column j of the next layer's
        weight gradient are that example's own, divided by the batch size.
        """
        labels = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        best = torch.full((len(inputs),), torch.inf, dtype=inputs.dtype, device=inputs.device)
        if not len(inputs) or self.knowledge.target != "class":  # there is no label to try
            return labels, best
        trace = _Trace.of(inputs, self)
        # The update is a mean over the batch, so one example's own bias gradient is batch_size times the sent one.
        # [k, 1]
        sent = self.batch_size * self.bias[neurons].to(inputs)[:, None]  # [k, 1]
        for label in range(self.knowledge.num_classes):
            first, later = trace.gradients(label)
            mismatch = _mismatch(first.gather(1, neurons[:, None]), sent)
            columns = torch.full_like(best, torch.inf)
            for slope, (name, activation, _) in zip(later, trace.later, strict=True):
                # Column j of the next layer's weight gradient: the example's activation of neuron j times the
                # output's gradient.
                own = activation.gather(1, neurons[:, None]) * slope  # [k, c]
                column = self.batch_size * self.gradient[name][:, neurons].T
                # Any one of the layers that read these neurons may confirm a row.
                columns = torch.minimum(columns, _mismatch(own, column))
            mismatch = torch.maximum(mismatch, columns)
            labels = torch.where(mismatch < best, label, labels)
            best = torch.minimum(best, mismatch)
        return labels, best

    def certify_any_loss(self, inputs: Tensor, neurons: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
        """The same without a word of the loss: likeliest label and mismatch, `[k]` each; infinite for lone rows.

        And `[k]` whether the slope at the logits is seen, and below zero at one label alone.

        Of one example x alone at neuron j, column j of the next layer's weight gradient is a_j(x) s, with the
        activation a_j and the slope s at that layer's outputs. So s is known, and the chain rule gives the bias
        gradient from it: db_j = d(s . output) / d(first_j). A mixture of examples whose slopes are no multiples of one
        another fulfils this for no three rows with one quotient.
        """
        labels = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        best = torch.full((len(inputs),), torch.inf, dtype=inputs.dtype, device=inputs.device)
        alone = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        if not len(inputs) or self.knowledge.num_outputs < (2 if self.knowledge.target == "value" else 3):
            return labels, best, alone
        ends = last_linear(self.knowledge.model, self.knowledge.num_outputs)
        trace, sent = _Trace.of(inputs, self), self.bias[neurons].to(inputs)[:, None]  # [k, 1]
        for name, activation, output in trace.later:
            column = self.gradient[name][:, neurons].T.to(inputs)  # [k, c]
            slope = column / activation.gather(1, neurons[:, None])  # [k, c]
            # Each candidate's output depends on its own input alone, so one pass back serves all rows.
            (back,) = torch.autograd.grad(output, trace.first, slope, retain_graph=True, materialize_grads=True)
            best = torch.minimum(best, _mismatch(back.gather(1, neurons[:, None]), sent))
            if self.knowledge.target == "class":
                labels = trace.nearest_label(name, slope)
            elif ends is not None and name == ends[0] and self.knowledge.client.loss == "mse":
                # n s = 2 (f - y) / k of an example's own squared error, so its target is y = f - k n s / 2.
                labels = output.detach() - slope.shape[1] * self.batch_size * slope / 2  # [k, values]
            if ends is not None and name == ends[0]:
                alone = (slope < -MIN_LABEL_SHARE * slope.abs().amax(1, keepdim=True)).sum(1) == 1
        passed = best <= tolerance
        agreeing = _agreeing(inputs.flatten(1), passed, tolerance)
        return labels, torch.where(passed & (agreeing >= MIN_AGREEING_ROWS), best, torch.inf), alone

    def labels_differ(self, labels: Tensor) -> bool:
        """Whether each example has a label of its own, so that no two slopes are multiples of one another.

        Where an example's slope at the logits is below zero at its own label alone (cross-entropy, however weighted,
        and margins; of the rows that are certified it is seen), as many entries of the last bias gradient below zero
        as examples are as many labels. Every label that was found must be among them.
        """
        names = last_linear(self.knowledge.model, self.knowledge.num_outputs)
        bias = None if names is None or names[1] is None else self.gradient.get(names[1])
        if bias is None:
            return False
        below = bias < -MIN_LABEL_SHARE * bias.abs().max()
        return int(below.sum()) == self.batch_size and bool(below[labels].all())

    def accounts_for_all(self, inputs: Tensor, values: Tensor, tolerance: float) -> bool:
        """Whether these are all examples of the batch: as many, and their slopes sum to the last bias gradient.

        A mixture that stood in for two examples would leave one too few, and one beside its own examples would add its
        slope once more.
        """
        names = last_linear(self.knowledge.model, self.knowledge.num_outputs)
        bias = None if names is None or names[1] is None else self.gradient.get(names[1])
        if bias is None or len(inputs) != self.batch_size or values.ndim != 2:
            return False
        slopes = 2 * (_Trace.of(inputs, self).logits.detach() - values) / (values.shape[1] * self.batch_size)  # [n, k]
        off = (slopes.sum(0) - bias).norm()
        return bool(off <= 100 * tolerance * slopes.norm(dim=1).sum())


@dataclass(frozen=True)
class _Trace:
    """One forward pass on `k` candidates, from which every label's gradients are read.

    Attributes:
        first: `[k, m]` what the first layer gives.
        later: Layers that may read its `m` neurons: name of the weight, its input `[k, m]`, its output `[k, c]`.
        logits: `[k, classes]`.
        rule: The client's, whose loss is taken.
    """

    first: Tensor
    later: tuple[tuple[str, Tensor, Tensor], ...]
    logits: Tensor
    rule: ClientUpdate

    @classmethod
    def of(cls, inputs: Tensor, leak: _Leak) -> "_Trace":
        model, observed = leak.knowledge.model, leak.observed
        first, readers = leak.layer.weight.rpartition(".")[0], leak.readers
        # The inputs carry a graph so that the outputs do; no gradient is ever taken with respect to the inputs.
        leaf = inputs.detach().requires_grad_()
        with torch.enable_grad(), in_mode(model, training=False), captured_calls(model, [first, *readers]) as calls:
            logits = forward(model, observed.params, leaf, buffers=observed.buffers)
        last = {name: calls[name][-1] for name in readers if name in calls}
        later = tuple(
            (f"{name}.weight", call.input.detach(), call.output)
            for name, call in last.items()
            if call.input.ndim == 2 and f"{name}.weight" in leak.gradient
        )
        return cls(calls[first][0].output, later, logits, leak.knowledge.client)

    def gradients(self, label: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Each candidate's own loss gradient with respect to `first` and to the outputs of `later`."""
        target = torch.full((len(self.logits),), label, device=self.logits.device)
        loss = self.rule.loss_of(self.logits, target, reduction="sum")
        outputs = [output for _, _, output in self.later]
        slopes = torch.autograd.grad(loss, [self.first, *outputs], retain_graph=True, materialize_grads=True)
        return slopes[0], slopes[1:]

    def nearest_label(self, name: str, slope: Tensor) -> Tensor:
        """`[k]` the label whose slope at the outputs of a later layer points most nearly as `[k, c]` slopes do."""
        place = [found for found, _, _ in self.later].index(name)
        own = torch.stack([self.gradients(label)[1][place] for label in range(self.logits.shape[1])])  # [C, k, c]
        return F.cosine_similarity(own, slope[None], dim=2).argmax(0)


def _agreeing(rows: Tensor, passed: Tensor, tolerance: float) -> Tensor:
    """`[k]` how many of the rows `[k, d]` that passed are within the tolerance of each, relative to its size."""
    gaps = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")  # [k, k]
    near = gaps <= tolerance * rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    found: Tensor = (near & passed[None]).sum(1)
    return found


def _mismatch(own: Tensor, sent: Tensor) -> Tensor:
    """`[k]` relative distances of the rows of two `[k, c]` tensors; not finite where nothing was sent."""
    relative: Tensor = (own - sent).norm(dim=1) / sent.norm(dim=1)
    return relative.nan_to_num(nan=torch.inf)


def _distinct(inputs: Tensor, mismatch: Tensor, same: float) -> Tensor:
    """Places of rows that are not the same example as a better row, best first."""
    flat, left = inputs.flatten(1), mismatch.argsort(stable=True)
    kept = [left[:0]]
    while len(left):
        best = flat[left[0]]
        kept.append(left[:1])
        left = left[(flat[left] - best).norm(dim=1) > same * best.norm().clamp(min=1e-12)]
    return torch.cat(kept)
