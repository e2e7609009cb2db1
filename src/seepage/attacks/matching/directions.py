"""What a first-order optimiser is given instead of the plain gradient."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


class Direction(ABC):
    """Turns the gradient with respect to the unknowns into what the optimiser sees."""

    @abstractmethod
    def __call__(self, gradient: Tensor) -> Tensor:
        """A tensor of the gradient's shape."""


@dataclass(frozen=True)
class Plain(Direction):
    """The gradient itself."""

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient


@dataclass(frozen=True)
class Sign(Direction):
    """Only its signs (Inverting Gradients): a step no longer depends on how steep the objective is."""

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient.sign()
