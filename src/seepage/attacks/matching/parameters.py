"""What the unknowns are, and how inputs are rendered from them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from seepage.types import Knowledge

Start = Literal["normal", "uniform", "grey"]


class Parameterization(ABC):
    """A way to write a batch of inputs with free numbers."""

    @abstractmethod
    def start(self, batch_size: int, knowledge: Knowledge, generator: Generator) -> Tensor:
        """First unknowns of one restart."""

    @abstractmethod
    def render(self, unknowns: Tensor) -> Tensor:
        """Inputs `[batch, *shape]`, differentiable in the unknowns."""

    @abstractmethod
    def project(self, unknowns: Tensor, knowledge: Knowledge) -> Tensor:
        """The nearest unknowns whose inputs lie in the value range."""


@dataclass(frozen=True, kw_only=True)
class Pixels(Parameterization):
    """One unknown per input value: `inputs = mean + std * unknowns`.

    With mean 0.5 and std 0.25 the unknowns are normalised images, the units in which most published constants
    (learning rate 0.1, normal start) are given. With 0 and 1 they are the values themselves.

    Args:
        start_from: `normal`: standard normal unknowns. `uniform`: uniform inputs over the value range.
            `grey`: the middle of the value range.
        mean: Shift.
        std: Scale.
    """

    start_from: Start = "normal"
    mean: float = 0.0
    std: float = 1.0

    def start(self, batch_size: int, knowledge: Knowledge, generator: Generator) -> Tensor:
        shape = (batch_size, *knowledge.input_shape)
        if self.start_from == "normal":
            return torch.randn(shape, generator=generator)
        low, high = knowledge.value_range
        inputs = torch.full(shape, (low + high) / 2)
        if self.start_from == "uniform":
            inputs = low + (high - low) * torch.rand(shape, generator=generator)
        return (inputs - self.mean) / self.std

    def render(self, unknowns: Tensor) -> Tensor:
        return self.mean + self.std * unknowns

    def project(self, unknowns: Tensor, knowledge: Knowledge) -> Tensor:
        low, high = ((bound - self.mean) / self.std for bound in knowledge.value_range)
        return unknowns.clamp(low, high)
