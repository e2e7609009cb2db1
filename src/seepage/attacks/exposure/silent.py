"""Numbers of an example that are zero in all examples: slices of a weight that had no gradient of their own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.nn import forward, generator, in_mode, vocabulary_of
from seepage.base.rounding import DEVIATIONS
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Round

MOST_VALUES = 2**20
"""Values of all examples together up to which the network is run on made-up ones."""


@dataclass(frozen=True, eq=False)
class Silent:
    """What had no gradient.

    Attributes:
        name: The weight.
        still: `[d]` bool, in the order of an example's own numbers along `axis`.
        axis: Axis of an example along which these lie; None: all its numbers, flattened.
    """

    name: str
    still: Tensor
    axis: int | None

    @property
    def words(self) -> str:
        """In words, with numbers."""
        count, d = int(self.still.sum()), len(self.still)
        along = "" if self.axis is None else f" along axis {self.axis + 1} of an example"
        return (
            f"{count:,} of {d:,} numbers{along} are 0, or too small to show, in every example: their slices of "
            f"{self.name} had no gradient"
        )


def silent_inputs(knowledge: Knowledge, observed: Round) -> Silent | None:
    """Which numbers are zero in every example, by a weight whose slices belong to them; None where nothing shows it.

    A number that is zero leaves no gradient in what it is multiplied with. Which weight that is, and along which of its
    axes, is tried: on two made-up batches with each half of the numbers zero, just these slices have no gradient.

    Args:
        knowledge: What the attacker knows.
        observed: The round.
    """
    shape = knowledge.input_shape
    if vocabulary_of(knowledge.model) is not None:
        return None
    axes: dict[int | None, int] = {None: math.prod(shape)}
    axes |= {place: size for place, size in enumerate(shape)} if len(shape) > 1 else {}
    for name, tensor in observed.update.tensors.items():
        for own in range(tensor.ndim) if tensor.ndim > 1 else ():
            fits = [axis for axis, size in axes.items() if size == tensor.shape[own] and size > 1]
            still = _still(knowledge, observed, name, own) if fits else None
            if still is None or not 0 < int(still.sum()) < len(still):
                continue
            for axis in fits:
                if _belongs(knowledge, observed, name, own, axis):
                    return Silent(name, still, axis)
    return None


def _still(knowledge: Knowledge, observed: Round, name: str, own: int) -> Tensor | None:
    """`[d]` slices of a tensor whose entries are zero, or no more than what a step's own errors leave."""
    moved, step = observed.update.tensors[name], observed.update.step
    if step is not None:
        try:
            seen = observed.measured(knowledge.client, [name])
        except SeepageError:
            return None
        moved = seen.value[name].abs() > 2 * DEVIATIONS * seen.error[name]
        moved |= seen.error[name].isinf()  # as large as entries get
    return ~moved.movedim(own, 0).flatten(1).any(1)


def _belongs(knowledge: Knowledge, observed: Round, name: str, own: int, axis: int | None) -> bool:
    """Whether the slices along a weight's axis are those of the numbers along an axis of an example."""
    try:
        return all(torch.equal(zero, masked) for zero, masked in _trials(knowledge, observed, name, own, axis))
    except Exception:  # user code may raise anything
        return False


def _trials(
    knowledge: Knowledge, observed: Round, name: str, own: int, axis: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """`[d]` which slices have no gradient, and which numbers were zero, of two batches."""
    shape, count = knowledge.input_shape, observed.batch_size or 2
    count = count if count * math.prod(shape) <= MOST_VALUES else 2
    draw = generator(0, "numbers that are zero")
    params = {**dict(knowledge.model.named_parameters()), **observed.params}
    weight = params[name].detach().clone().requires_grad_()
    size = math.prod(shape) if axis is None else shape[axis]
    half = torch.rand(size, generator=draw) < 0.5
    for masked in (half, ~half):
        values = torch.rand((count, *shape), generator=draw, dtype=torch.float64) + 0.5
        mask = masked.reshape(shape) if axis is None else masked.reshape([-1 if a == axis else 1 for a in range(len(shape))])
        values = values.masked_fill(mask, 0.0).to(weight)
        with torch.enable_grad(), in_mode(knowledge.model, training=False):
            logits = forward(knowledge.model, {**params, name: weight}, values, buffers=observed.buffers)
            total = (logits * torch.rand(logits.shape, generator=draw).to(logits)).square().sum()
            (gradient,) = torch.autograd.grad(total, weight)
        yield ~gradient.movedim(own, 0).flatten(1).any(1).cpu(), masked
