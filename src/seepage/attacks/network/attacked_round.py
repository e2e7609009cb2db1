"""One round as an attack sees it: what is known of it, what was observed, and the network at its weights."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from seepage.base.nn import LayerCall, captured_calls, forward, in_mode
from seepage.federation.types import Knowledge, Round, Tensors, Transcript

LARGEST_MATRIX = 2**25
"""Entries of a matrix above which it is not made: 256 MiB in float64."""


@dataclass(frozen=True, eq=False)
class AttackedRound:
    """One round, and all that the attacker knows of it.

    Attributes:
        knowledge: What the attacker knows.
        observed: The round.
    """

    knowledge: Knowledge
    observed: Round

    @classmethod
    def of(cls, transcript: Transcript) -> "AttackedRound":
        """A transcript's first round."""
        return cls(transcript.knowledge, transcript[0])

    @property
    def model(self) -> nn.Module:
        return self.knowledge.model

    def over(self, share: float) -> "AttackedRound":
        """The same round where the update is `share` times what the client's rule says."""
        return AttackedRound(self.knowledge, self.observed.over(share))

    @cached_property
    def gradient(self) -> Tensors:
        """The update as a gradient of the mean loss."""
        return self.observed.gradient(self.knowledge.client)

    @cached_property
    def exact(self) -> tuple[Tensors, Tensors]:
        """All parameters in float64, those that are not trained included, and the buffers likewise."""
        return in_float64(self.model, self.observed.params, self.observed.buffers)

    def forward(
        self, inputs: Tensor, names: Iterable[str] = (), *, exact: bool = False
    ) -> tuple[Tensor, dict[str, list[LayerCall]]]:
        """The logits in eval mode, and the calls of these layers; both keep their graph where gradients are on.

        Args:
            inputs: `[n, *shape]`.
            names: Names of submodules.
            exact: At the float64 state.
        """
        params, buffers = self.exact if exact else (self.observed.params, self.observed.buffers)
        with in_mode(self.model, training=False), captured_calls(self.model, names) as calls:
            return forward(self.model, params, inputs, buffers=buffers), calls

    def like(self) -> Tensor:
        """A parameter, for its type and device."""
        return next(iter(self.observed.params.values()))

    def label(self, label: int, count: int = 1) -> Tensor:
        """`[count]` this label, on the device of the weights."""
        return torch.full((count,), label, device=self.like().device)


def in_float64(model: nn.Module, params: Tensors, buffers: Tensors | None) -> tuple[Tensors, Tensors]:
    """Parameters and buffers of a model in float64: those given, and its own where none is given."""
    own = {name: p.detach().double() for name, p in model.named_parameters() if name not in params}
    known = buffers or dict(model.named_buffers())
    statistics = {name: b.double() if b.is_floating_point() else b for name, b in known.items()}
    return own | {name: p.double() for name, p in params.items()}, statistics
