"""The closed-form leak of a fully connected layer that reads the input: weight gradient over bias gradient."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from seepage.attacks.base import MATCHING, Attack, Needs, Progress, refuse
from seepage.attacks.linear.certificate import (
    SUM_TOLERANCE,
    account_for_all,
    distinct,
    label_of_single,
    unproven,
    vouched_by_any_loss,
    vouched_by_rule,
)
from seepage.attacks.linear.class_sums import class_sums
from seepage.attacks.linear.examples import with_errors
from seepage.attacks.network import AttackedRound, in_range
from seepage.attacks.network.first_layer import FirstLayer
from seepage.base.nn import input_layer
from seepage.base.registry import attacks
from seepage.federation.types import Reconstruction, Transcript


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
    holds that error. This is not of the papers (see `seepage.attacks.reading.rows`).

    **Zero weights.** Softmax regression that starts at zero has the same probabilities for every example, so that the
    sums of each class's examples are read off its rows, and of a class of one example that example; certified where
    some class is not there, else up to a row that is added to all (see `seepage.attacks.linear.class_sums`).

    **Regression on many outputs.** Where the last layer reads the first one's neurons, both together tell all examples
    of a batch, and each entry counts by its own error: certified is what leaves no more of the update than these make
    (see `seepage.attacks.linear.two_layers`). This is not of the papers.

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
            raise refuse("batch_norm")(
                "batch norm in train mode makes every row a mixture of the batch", f"use {MATCHING}"
            )
        weight, bias = attacked.gradient[layer.weight].double(), attacked.gradient[layer.bias].double()
        seen = FirstLayer(attacked, layer, weight, bias, size)
        # Where every class is there as often as it is likely, softmax regression has none either.
        if not bias.abs().max() > 0 and class_sums(seen) is None:
            raise refuse("zero_gradient")(
                "the first layer's bias gradient is zero everywhere (no neuron is active, or the loss is zero)",
                "nothing can be divided; use another round",
            )
        return seen

    def run(self, seen: FirstLayer, *, seed: int, progress: Progress) -> Reconstruction:
        observed = seen.attacked.observed
        if observed.personal and seen.batch_size > 1:
            raise refuse("own_weights")(
                f"{len(observed.personal)} parameters are the client's own, so no row can be distinguished from a "
                "mixture by the network's own backward pass",
                "attack an update of one example, or observe a round whose weights are all known",
            )
        sums = class_sums(seen)
        if sums is not None:
            return sums
        found = self._single(seen) if seen.batch_size == 1 else self._several(seen)
        if observed.size_inferred:
            found = unproven(found, seen)
        proven = 0 if found.certified is None else int(found.certified.sum())
        return found if proven == seen.batch_size or observed.personal else with_errors(found, seen)

    def _single(self, seen: FirstLayer) -> Reconstruction:
        # Least squares over all rows of weight = bias x^T: exact without noise, and the best average with it.
        row = seen.bias @ seen.weight / (seen.bias @ seen.bias)  # [d]
        residual = (seen.weight - seen.bias[:, None] * row).norm() / seen.weight.norm()
        note = f"rows agree to {residual:.1e}: the update comes from one example"
        if residual > self.tolerance:
            note = f"rows disagree by {residual:.1e}: the update was changed, or comes from more than one example"
        inputs, knowledge = seen.to_inputs(row[None]), seen.attacked.knowledge
        labels, turned = label_of_single(seen, inputs)
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
        labels, mismatch = vouched_by_rule(seen, inputs, live)
        sure = mismatch <= self.tolerance
        proof, alone = bool(sure.any()), torch.zeros_like(sure)
        if not proof:  # the loss is another than the rule's, or was weighted, or the gradient was scaled
            labels, mismatch, alone = vouched_by_any_loss(seen, inputs, live, self.tolerance)
            sure = mismatch <= self.tolerance
        keep = distinct(inputs[sure], mismatch[sure], self.same)
        if classes:
            differ = bool(alone[sure].all()) and seen.labels_differ(labels[sure])
        else:
            differ = account_for_all(seen, inputs[sure][keep], labels[sure][keep], self.tolerance)
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
