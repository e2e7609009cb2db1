"""The fully connected layer that reads the input: its part of an update, and what the network makes of a candidate."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.base import MATCHING, refuse
from seepage.attacks.network.attacked_round import AttackedRound
from seepage.attacks.network.evidence import FAINT
from seepage.base.nn import InputLayer, last_linear
from seepage.federation.types import Knowledge


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """What the first layer's part of an update says.

    Attributes:
        attacked: The round.
        layer: The layer.
        weight: `[m, d]` the gradient of its weight, float64.
        bias: `[m]` that of its bias, which is `dL/dy` summed over the batch.
        batch_size: Examples behind the update, n.
    """

    attacked: AttackedRound
    layer: InputLayer
    weight: Tensor
    bias: Tensor
    batch_size: int

    @cached_property
    def readers(self) -> list[str]:
        """What may read the layer's m neurons: fully connected layers with m inputs."""
        first = self.layer.weight.rpartition(".")[0]
        return [
            name
            for name, module in self.attacked.model.named_modules()
            if isinstance(module, nn.Linear) and name != first and module.in_features == len(self.bias)
        ]

    @cached_property
    def last(self) -> tuple[str | None, str | None]:
        """Names of the last layer's weight, and of its bias where that was sent."""
        names = last_linear(self.attacked.model, self.attacked.knowledge.num_outputs)
        if names is None:
            return None, None
        return names[0], names[1] if names[1] in self.attacked.gradient else None

    def to_inputs(self, rows: Tensor) -> Tensor:
        """`[k, d]` rows to `[k, *shape]` inputs in the model's own precision."""
        like = self.attacked.observed.params[self.layer.weight]
        return self.layer.to_inputs(rows, self.attacked.knowledge.input_shape).to(like)

    def labels_differ(self, labels: Tensor, rounding: Tensor | float = 0.0) -> bool:
        """Whether each example has a label of its own, so that no two slopes are multiples of one another.

        Where an example's slope at the logits is below zero at its own label alone (cross-entropy, however weighted,
        and margins; of the rows that are certified it is seen), as many entries of the last bias gradient below zero
        as examples are as many labels. Every label that was found must be among them.

        Args:
            labels: `[k]` those that were found.
            rounding: How far the entries of the last bias gradient may be off.
        """
        if self.last[1] is None:
            return False
        # dL/db = sum_i (p_i - e_y_i) / n for a cross-entropy: an entry is below zero at a label alone. [classes]
        bias = self.attacked.gradient[self.last[1]].double()
        below = bias < -(FAINT * bias.abs().max()).clamp(min=torch.as_tensor(rounding).to(bias))
        return int(below.sum()) == self.batch_size and bool(below[labels].all())

    def trace(self, inputs: Tensor) -> "Trace":
        """A forward pass on `[k, *shape]` inputs."""
        first = self.layer.weight.rpartition(".")[0]
        # The inputs carry a graph so that the outputs do; no gradient is ever taken with respect to the inputs.
        with torch.enable_grad():
            logits, calls = self.attacked.forward(inputs.detach().requires_grad_(), [first, *self.readers])
        if [len(call.output) for call in calls.get(first, [])] != [len(inputs)]:
            raise refuse("network")(
                f"the network calls {first!r} on some examples and not on others, as routed experts", f"use {MATCHING}"
            )
        last = {name: calls[name][-1] for name in self.readers if name in calls}
        later = tuple(
            (f"{name}.weight", call.input.detach(), call.output)
            for name, call in last.items()
            if call.input.ndim == 2 and f"{name}.weight" in self.attacked.gradient
        )
        return Trace(calls[first][0].output, later, logits, self.attacked.knowledge)


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass on `k` candidates, from which every label's gradients are read.

    Attributes:
        first: `[k, m]` what the first layer gives.
        later: Layers that may read its `m` neurons: name of the weight, its input `[k, m]`, its output `[k, c]`.
        logits: `[k, classes]`.
        knowledge: Of the client's rule, whose loss is taken.
    """

    first: Tensor
    later: tuple[tuple[str, Tensor, Tensor], ...]
    logits: Tensor
    knowledge: Knowledge

    def slopes(self) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """For each label each candidate's own loss gradient with respect to `first` and to the outputs of `later`."""
        for label in range(self.knowledge.num_classes):
            target = torch.full((len(self.logits),), label, device=self.logits.device)
            yield self._pulled(self.knowledge.client.loss_of(self.logits, target, reduction="sum"))

    def outputs_slopes(self) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """The same of each output in turn, in place of the loss, added up over the candidates."""
        # The sum over candidates: candidate i's logits depend on its own outputs alone, so rows do not mix.
        for output in self.logits.sum(0):
            yield self._pulled(output)

    def _pulled(self, value: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        places = [self.first, *(output for _, _, output in self.later)]
        first, *later = torch.autograd.grad(value, places, retain_graph=True, materialize_grads=True)
        return first, tuple(later)

    def back(self, place: int, slopes: Tensor) -> Tensor:
        """`[k, m]` the slopes in `first` that slopes `[k, c]` at the outputs of a later layer make.

        Each candidate's output depends on its own input alone, so one pass back serves all of them.
        """
        (made,) = torch.autograd.grad(
            self.later[place][2], self.first, slopes, retain_graph=True, materialize_grads=True
        )
        return made

    def nearest_label(self, place: int, slopes: Tensor) -> Tensor:
        """`[k]` the label whose slopes at the outputs of a later layer point most nearly as `[k, c]` slopes do."""
        own = torch.stack([later[place] for _, later in self.slopes()])  # [C, k, c]
        return F.cosine_similarity(own, slopes[None], dim=2).argmax(0)
