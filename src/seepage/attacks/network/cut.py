"""A network cut at one layer: what is behind it as a function of the layer's outputs, and labels by trying each."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.base import MATCHING, Inapplicable, refuse
from seepage.attacks.network.attacked_round import AttackedRound, in_float64
from seepage.base.nn import as_inputs, forward, in_mode
from seepage.federation.types import Tensors

ROWS_AT_ONCE = 4_096
"""Outputs of a layer that are passed through the network behind it, or multiplied, at a time."""


@dataclass(frozen=True, eq=False)
class NetworkCut:
    """The network behind one fully connected layer, as a function of the layer's output, in float64.

    Attributes:
        model: The whole model.
        layer: Name of the layer (`""`: the model itself).
        params: Its parameters.
        buffers: Its buffers.
        input_shape: Shape of one example of the whole model.
    """

    model: nn.Module
    layer: str
    params: Tensors
    buffers: Tensors
    input_shape: tuple[int, ...]

    @classmethod
    def at(cls, attacked: AttackedRound, layer: str) -> "NetworkCut":
        """The network of a round, cut at a layer."""
        return cls(
            attacked.model, layer, attacked.observed.params, attacked.observed.buffers, attacked.knowledge.input_shape
        )

    @cached_property
    def _state(self) -> tuple[Tensors, Tensors]:
        return in_float64(self.model, self.params, self.buffers)

    def logits(self, outputs: Tensor) -> Tensor:
        """`[r, m]` outputs of the layer to `[r, k]` logits.

        The layer is called on next to nothing, and the outputs take the place of what it gives.
        """

        def instead(_: nn.Module, __: tuple[Any, ...], own: Tensor) -> Tensor:
            # A copy each time: the layer behind may write to it. A row may stand behind axes of length one.
            return outputs.clone().reshape(len(outputs), *own.shape[1:-1], outputs.shape[1])

        handle = self.model.get_submodule(self.layer).register_forward_hook(instead)
        try:
            with in_mode(self.model, training=False):
                found = self._through(*self._state, outputs)
        finally:
            handle.remove()
        # Where the layer only chooses which others are called, as of routed experts, nothing of it is passed on.
        if len(found) != len(outputs) or (outputs.requires_grad and not found.requires_grad):
            raise self._inseparable("nothing depends on them")
        return found

    def _through(self, params: Tensors, buffers: Tensors, like: Tensor) -> Tensor:
        """Run the model on an empty batch, which skips the layers in front; if that fails, on one zero image."""
        none, one = (as_inputs(self.model, like.new_zeros((n, *self.input_shape))) for n in (0, 1))
        try:
            return forward(self.model, params, none, buffers=buffers)
        # A reshape to (n, -1) is not possible with n = 0, nor are some normalizations, which say so in other ways.
        except (RuntimeError, IndexError, ValueError):
            pass
        try:
            return forward(self.model, params, one, buffers=buffers)
        except (RuntimeError, IndexError, ValueError) as error:
            if len(like) == 1:
                raise
            # Rows of this layer beside one row of another.
            raise self._inseparable(str(error)) from None

    def _inseparable(self, why: str) -> Inapplicable:
        return refuse("not_separable")(
            f"the network behind layer {self.layer!r} is no function of its outputs alone: other layers' outputs, "
            f"or as many examples, are wanted beside them ({why})",
            f"use cocktail_party, or {MATCHING}",
        )

    def probabilities(self, outputs: Tensor) -> Tensor:
        """`[r, k]` predicted probabilities."""
        with torch.no_grad():
            return self.logits(outputs).softmax(1)

    def backward(self, outputs: Tensor, errors: Tensor) -> Tensor:
        """`[r, m, ...]`: `L_i^T e` for each row's own errors `[r, k]` or several of them `[c, r, k]`."""
        several = errors if errors.dim() == 3 else errors[None]
        pulled = []
        for some in several.split(max(1, ROWS_AT_ONCE // len(outputs))):
            # L_i = d logits_i / d outputs_i [k, m]. Example i's logits depend on its own outputs only, so one pass over
            # the outputs, repeated for each set of errors, gives all rows L_i^T e_i [r, m].
            leaf = outputs.detach().repeat(len(some), 1).requires_grad_()
            (found,) = torch.autograd.grad(self.logits(leaf), leaf, some.flatten(0, 1))
            pulled.append(found.view(len(some), *outputs.shape))
        return torch.cat(pulled) if errors.dim() == 3 else pulled[0][0]

    def rows_of_errors(self, outputs: Tensor, classes: int) -> Tensor:
        """`[classes, m]` the slopes at the outputs `[1, m]` for a basis of the errors of a cross-entropy.

        These add up to zero, `e_c - 1 / classes`, and `L^T e` is linear in e, so the rows span all slopes there are.
        """
        # The k rows e_c - 1/k [k, k] have rank k - 1, like the differences p - e_y of vectors that each add up to 1.
        errors = torch.eye(classes).to(outputs) - 1 / classes
        return self.backward(outputs, errors[:, None])[:, 0]

    def nearest_labels(self, outputs: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
        """`[r]` the label whose own cross-entropy gives slopes nearest to the sent `[r, m]`, and their mismatch `[r]`.

        With p the probabilities at example i's outputs, its slopes are `L_i^T (p_i - e_y)` with label y.
        """
        chances = self.probabilities(outputs)
        wanted = torch.eye(chances.shape[1]).to(chances)
        return best_labels(relative_mismatch(self.backward(outputs, chances - own), sent) for own in wanted)


def best_labels(mismatches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The label with the least mismatch, label by label, and that mismatch.

    Args:
        mismatches: For label 0, 1, ... the mismatch of each of k candidates, `[k]`.

    Returns:
        `[k]` each. Label 0 with an infinite mismatch where none is finite.

    >>> best_labels([torch.tensor([0.3, torch.inf]), torch.tensor([0.1, torch.inf])])
    (tensor([1, 0]), tensor([0.1000,    inf]))
    """
    tries = iter(mismatches)
    best = next(tries).nan_to_num(nan=torch.inf, posinf=torch.inf)
    labels = torch.zeros(best.shape, dtype=torch.int64, device=best.device)
    for label, mismatch in enumerate(tries, 1):
        labels = torch.where(mismatch < best, label, labels)
        best = torch.where(mismatch < best, mismatch, best)
    return labels, best


def relative_mismatch(own: Tensor, sent: Tensor) -> Tensor:
    """`[k]` relative distances of the rows of two `[k, c]` tensors; infinite where nothing was sent."""
    relative: Tensor = (own - sent).norm(dim=1) / sent.norm(dim=1)
    return relative.nan_to_num(nan=torch.inf, posinf=torch.inf)
