"""The span test: an example is in the batch iff it lies in the row space of the first layer's update."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.membership.base import Detector, Done, MembershipTest, nothing
from seepage.base.algebra.lowrank import INDEPENDENT, low_rank
from seepage.base.nn import captured_calls, forward, in_mode
from seepage.base.registry import membership_tests
from seepage.errors import Inapplicable
from seepage.federation.types import Batch, Knowledge, Round


@dataclass(frozen=True)
class _Span(Detector):
    knowledge: Knowledge
    observed: Round
    layer: str

    def templates(self, examples: Batch, done: Done = nothing) -> Tensor:
        """`[k, d]` the layer's input for each example, of norm 1, in float64."""
        model, rows = self.knowledge.model, []
        with in_mode(model, training=False), torch.no_grad():
            for x in examples.inputs.split(1):
                with captured_calls(model, [self.layer]) as calls:
                    forward(model, self.observed.params, x, buffers=self.observed.buffers or None)
                rows.append(calls[self.layer][0].input.reshape(1, -1))
                done()
        inputs = torch.cat(rows).double()
        lengths: Tensor = inputs.norm(dim=1, keepdim=True)
        return inputs / lengths.clamp_min(1e-30)

    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        """`[k]` minus the logarithm of the share of each input that lies outside the row space; a member's is large."""
        # [out, d] = sum_i delta_i x_i'
        sent = observed.gradient(self.knowledge.client)[f"{self.layer}.weight"].double()
        parts = low_rank(sent, rounding=INDEPENDENT, clear=1.0)
        rank = min(parts.rank, observed.batch_size or parts.rank)  # more than n directions are noise, or rounding
        if rank >= sent.shape[1]:
            raise Inapplicable(
                f"the first layer's update has rank {rank}, so that its row space holds every input",
                "use matched_filter, or a batch smaller than the number of inputs",
            )
        basis = parts.right[:rank]  # [rank, d], orthonormal
        # What of each x, of norm 1, is left outside the row space: x - B'B x. [k, d]
        outside: Tensor = templates - (templates @ basis.T) @ basis
        shares: Tensor = outside.norm(dim=1).clamp_min(1e-12)
        return -shares.log10()


@membership_tests.register(
    "first_layer_span",
    paper="none; the row space of a fully connected first layer's gradient",
    cost="a forward pass for each example",
)
@dataclass(frozen=True, kw_only=True)
class FirstLayerSpan(MembershipTest):
    """Does the candidate lie in the row space of the first layer's update?

    The gradient of a fully connected layer's weight is `G = sum_i delta_i x_i'`, over the batch's examples. With no
    more examples than neurons and backpropagated errors delta_i that are linearly independent, the rows of G span
    exactly the inputs x_i, so that a member's residual is rounding (about 1e-6), and another's is not zero unless it
    lies in that span by chance: exact membership, however the loss, the labels or the later layers look. Local steps
    keep the span, and so do clips of the whole update; noise fills it. The batch's size, where it is known, bounds the
    rank. With more examples than neurons the span holds mixtures of members only, and the test gets weak.
    """

    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: Done = nothing
    ) -> Detector:
        """A detector for this model; it learns nothing from the reference. See `MembershipTest.fit`.

        Raises:
            Inapplicable: Where the first layer is not fully connected, or its weight was not sent.
        """
        layers = knowledge.model.named_modules()
        holding = ((name, layer) for name, layer in layers if next(layer.parameters(recurse=False), None) is not None)
        name, layer = next(holding, ("", nn.Identity()))
        if not isinstance(layer, nn.Linear) or f"{name}.weight" not in observed.update.tensors:
            raise Inapplicable(
                f"the span test needs a fully connected first layer whose weight was sent, and the first is a "
                f"{type(layer).__name__}",
                "use matched_filter",
            )
        for _ in range(len(reference)):
            done()
        return _Span(knowledge, observed, name)
