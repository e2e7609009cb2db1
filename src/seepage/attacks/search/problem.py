"""The matching problem of one update: objective and gradient at a candidate, in one shot or in micro-batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from seepage.attacks.search.adaptive import defended_rule
from seepage.attacks.search.distances import Distance, weighted
from seepage.base.nn import dot
from seepage.base.second_derivatives import twice_differentiable
from seepage.federation.types import Batch, ClientUpdate, Knowledge, Round, Tensors

Local = Literal["unrolled", "averaged"]
"""How an update of several local steps is matched: through all of them, or as a mean of gradients."""
Extra = Callable[[], Tensor]
"""A penalty on what hooks saw in the last forward pass."""


@dataclass(frozen=True)
class Evaluation:
    """The objective at one candidate, and its gradients.

    Attributes:
        value: The distance, and what `extra` added.
        by_inputs: `[n, *shape]`.
        by_labels: `[n, classes]` for soft labels, else None.
    """

    value: float
    by_inputs: Float[Tensor, "n *shape"]
    by_labels: Float[Tensor, "n *classes"] | None


@dataclass(eq=False)
class Problem:
    """Find a batch whose update is the observed one.

    The client's own rule computes the dummy update, so whatever protocol the client follows is followed here.

    Attributes:
        target: The observed gradient, of the tensors that were sent.
        microbatch: Examples per chunk, or None for the whole batch at once.
    """

    model: nn.Module
    client: ClientUpdate
    params: Tensors
    buffers: Tensors
    target: Tensors
    distance: Distance
    microbatch: int | None = None

    @classmethod
    def of(
        cls,
        observed: Round,
        knowledge: Knowledge,
        distance: Distance,
        microbatch: int | None,
        local: Local = "unrolled",
    ) -> "Problem":
        """The problem of one round; `local` says how an update of several local steps is matched.

        What is known of a defense that makes the update inside the client is the client's rule here. A gradient that
        was read off a bent step is matched where its entries are known.
        """
        rule = defended_rule(knowledge, observed)
        distance = weighted(distance, observed, knowledge.client)
        return cls(
            knowledge.model,
            rule if local == "unrolled" else rule.first_order_rule(),
            observed.params,
            observed.buffers,
            observed.gradient(knowledge.client),
            distance,
            microbatch,
        )

    def evaluate(
        self,
        inputs: Float[Tensor, "n *shape"],
        labels: Shaped[Tensor, "n ..."],
        extra: Extra | None = None,
    ) -> Evaluation:
        """Distance and exact gradients at `inputs [n, *shape]` and `labels` (`[n]` or soft `[n, classes]`).

        Args:
            inputs: The candidate.
            labels: Its labels.
            extra: Called after each forward pass of the dummy batch; a scalar that is differentiable in the inputs,
                made of what hooks saw in that pass, and added to the objective. In micro-batches it is taken of each
                and weighed by its share of the examples, so it must be a mean over examples.
        """
        with twice_differentiable(self.model):
            if len(self._chunks(len(inputs))) > 1:
                return self._in_chunks(inputs, labels, extra)
            return self._at_once(inputs, labels, extra)

    def distance_at(self, inputs: Float[Tensor, "n *shape"], labels: Shaped[Tensor, "n ..."]) -> float:
        """The distance alone, taken in float64 of gradients in the model's precision.

        Near an explained update a float32 cosine rounds to 1, and one minus it to 0, long before the gradients agree.
        """
        gradient = self._gradient(inputs, labels, create_graph=False)
        # The gradients themselves stay in the model's precision: only the comparison is finer.
        dummy = {name: tensor.double() for name, tensor in gradient.items()}
        return self.distance(dummy, {name: tensor.double() for name, tensor in self.target.items()}).item()

    def _gradient(self, inputs: Tensor, labels: Tensor, *, create_graph: bool) -> Tensors:
        update = self.client(
            self.model,
            self.params,
            Batch(inputs, labels),
            buffers=self.buffers,
            create_graph=create_graph,
        )
        whole = self.client.as_gradient(update, len(inputs))
        # What the client trained and did not send moves with its local steps, and there is nothing to compare it with.
        return {name: tensor for name, tensor in whole.items() if name in self.target}

    def _at_once(self, inputs: Tensor, labels: Tensor, extra: Extra | None) -> Evaluation:
        leaves = leaves_of(inputs, labels)
        # The dummy gradient g'(x) = dL/dw keeps its graph, so that dD/dx goes through it: a double backward pass.
        value = self.distance(self._gradient(*leaves, create_graph=True), self.target)
        if extra is not None:  # hooks saw the pass that made the dummy gradient
            value = value + extra()
        by_inputs, by_labels = _differentiate(value, leaves)
        return Evaluation(value.item(), by_inputs, by_labels)

    def _in_chunks(self, inputs: Tensor, labels: Tensor, extra: Extra | None) -> Evaluation:
        """The same numbers with the memory of one chunk.

        The dummy gradient g' is a mean over examples. Pass 1 adds it up without a graph; the distance gives
        v = dD/dg'; pass 2 gives d<v, g'_chunk>/dx chunk by chunk, which is dD/dx by the chain rule.
        """
        n, added = len(inputs), 0.0
        total = {name: torch.zeros_like(tensor) for name, tensor in self.target.items()}
        # Pass 1: g' = sum over chunks of (|chunk| / n) g'_chunk, without a graph, in the memory of one chunk.
        for chunk in self._chunks(n):
            gradient = self._gradient(inputs[chunk], labels[chunk], create_graph=False)
            for name, tensor in gradient.items():
                total[name] += tensor * (len(inputs[chunk]) / n)
            if extra is not None:
                added += extra().item() * (len(inputs[chunk]) / n)
        # v = dD/dg', shaped like the parameters; this graph holds the distance alone and no network.
        dummy = {name: tensor.requires_grad_() for name, tensor in total.items()}
        value = self.distance(dummy, self.target)
        gradients = torch.autograd.grad(value, list(dummy.values()), materialize_grads=True)
        v = dict(zip(dummy, gradients, strict=True))

        by_inputs, by_labels = [], []
        for chunk in self._chunks(n):
            leaves = leaves_of(inputs[chunk], labels[chunk])
            share = len(leaves[0]) / n
            # Pass 2: dD/dx = d<v, g'>/dx with v held fixed; an example's inputs reach g' through its own chunk alone.
            along = dot(self._gradient(*leaves, create_graph=True), v) * share
            if extra is not None:
                along = along + share * extra()
            gradient_inputs, gradient_labels = _differentiate(along, leaves)
            by_inputs.append(gradient_inputs)
            by_labels.append(gradient_labels)
        soft = [gradient for gradient in by_labels if gradient is not None]
        return Evaluation(value.item() + added, torch.cat(by_inputs), torch.cat(soft) if soft else None)

    def _chunks(self, n: int) -> list[Any]:  # slices; a check of a list's items draws from the global generator
        # Where examples are coupled the update is no mean over chunks, and the whole batch is one chunk.
        size = n if self.microbatch is None or not self.client.separable(self.model) else self.microbatch
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def leaves_of(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What the objective is differentiated by: the inputs and, where they are chances, the labels."""
    leaf = inputs.detach().requires_grad_()
    soft = labels.is_floating_point()
    return leaf, labels.detach().requires_grad_() if soft else labels


def _differentiate(value: Tensor, leaves: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    inputs, labels = leaves
    if not labels.requires_grad:
        return torch.autograd.grad(value, inputs)[0], None
    # A loss that takes class numbers alone does not depend on the chances.
    by_inputs, by_labels = torch.autograd.grad(value, (inputs, labels), materialize_grads=True)
    return by_inputs, by_labels
