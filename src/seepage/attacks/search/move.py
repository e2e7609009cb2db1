"""Weights moved along the slope of a distance: where the second pass of a first-order step is made."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from seepage.attacks.search.distance_gradients import Products, combination, value_and_gradients
from seepage.attacks.search.problem import Problem
from seepage.federation.types import Tensors

Move = tuple[float, float, Tensors]
"""The distance at the weights themselves; how far along v; and the weights `w + step v` after it, until the next move
is made: they lie in the mover's own memory."""


@dataclass(frozen=True)
class Mover:
    """Moves the weights of a problem along `v = dD/dg'`, into the same tensors each time.

    An attack makes thousands of moves, and tensors as large as all weights together, given back and asked for anew each
    time, cost a page fault per 4 KiB: on a ResNet-18 a tenth of a step.

    Attributes:
        exact: Whose weights, target and distance.
    """

    exact: Problem

    def __call__(self, dummy: Sequence[Tensor], reach: float) -> Move:
        """The weights moved by `reach` times their own length, given the dummy gradient g'."""
        names, weights = list(self.exact.params), list(self.exact.params.values())
        with torch.no_grad():
            products = Products.of(dummy, self._target, self._target_square)
            found = combination(self.exact.distance, products)
            if found is not None:
                # v = a g' + b g is never made: w + step b g + step a g' takes two passes over the weights.
                step = self._step(found.length, reach)
                for to, weight, own, theirs in zip(self._room, weights, dummy, self._target, strict=True):
                    torch.add(weight, theirs, alpha=step * found.b, out=to).add_(own, alpha=step * found.a)
                return found.value, step, dict(zip(names, self._room, strict=True))
        value, v = value_and_gradients(self.exact.distance, dict(zip(names, dummy, strict=True)), self.exact.target)
        step = self._step(float(get_total_norm(list(v.values()))), reach)
        with torch.no_grad():
            for to, name, weight in zip(self._room, names, weights, strict=True):
                torch.add(weight, v[name], alpha=step, out=to)
        return value, step, dict(zip(names, self._room, strict=True))

    def _step(self, length: float, reach: float) -> float:
        # |step v| = reach |w|: the move's length is a share of the weights', whatever the distance's units are.
        return reach * (self._size or 1.0) / length if length > 0 else 1.0

    @cached_property
    def _size(self) -> float:
        """Length of all weights together."""
        return float(get_total_norm(list(self.exact.params.values())))

    @cached_property
    def _target(self) -> list[Tensor]:
        """The observed gradient, in the order of the weights."""
        return [self.exact.target[name] for name in self.exact.params]

    @cached_property
    def _target_square(self) -> float:
        return Products.of(self._target, self._target).own

    @cached_property
    def _room(self) -> list[Tensor]:
        return [torch.empty_like(weight) for weight in self.exact.params.values()]
