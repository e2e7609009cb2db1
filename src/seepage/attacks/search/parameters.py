"""What the unknowns are, where they start, and how inputs are decoded from them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from seepage.attacks.base import refuse
from seepage.base.blocks import relaxed, words_at
from seepage.federation.types import Knowledge

Start = Literal["normal", "uniform", "wide", "grey"]


@dataclass(frozen=True)
class SearchSpace:
    """One restart's first unknowns, and what they stand for.

    Attributes:
        unknowns: Leaf tensors of any shapes.
        decode: Unknowns to inputs `[batch, *shape]`, differentiable and without state.
        project: The nearest unknowns whose inputs lie in the value range.
    """

    unknowns: list[Tensor]
    decode: Callable[[Sequence[Tensor]], Tensor]
    project: Callable[[Sequence[Tensor]], list[Tensor]]


class Parameterization(ABC):
    """A way to write a batch of inputs with free numbers.

    Attributes:
        std: By how much an input moves as its unknown moves by 1, where one unknown stands for one input value.
    """

    std: float = 1.0

    @abstractmethod
    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        """A space with the first unknowns of one restart, in the precision and on the device of `like`."""

    def check(self, knowledge: Knowledge) -> None:
        """Raise `Inapplicable` where inputs of this shape cannot be decoded."""
        return


def first_inputs(start: Start, shape: tuple[int, ...], bounds: tuple[float, float], draw: Generator) -> Tensor:
    """Where a search in the inputs themselves starts, `[batch, *shape]` in float32.

    Args:
        start: `uniform` over the value range. `wide`: uniform over a range twice as wide. `grey`: its middle.
        shape: `(batch, *shape)`.
        bounds: The value range.
        draw: Where the numbers come from.
    """
    low, high = bounds
    middle, span = (low + high) / 2, high - low
    if start == "grey":
        return torch.full(shape, middle)
    if start == "wide":
        return middle + span * (2 * torch.rand(shape, generator=draw) - 1)
    return low + span * torch.rand(shape, generator=draw)


@dataclass(frozen=True, kw_only=True)
class Pixels(Parameterization):
    """One unknown per input value: `inputs = mean + std * unknowns`.

    With mean 0.5 and std 0.25 the unknowns are normalized images, the units in which most published constants
    (learning rate 0.1, normal start) are given. With 0 and 1 they are the values themselves.

    Args:
        start_from: `normal`: standard normal unknowns. `uniform`: uniform inputs over the value range. `wide`: over
            twice the range. `grey`: its middle.
        mean: Shift.
        std: Scale.
    """

    start_from: Start = "normal"
    mean: float = 0.0
    std: float = 1.0

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        shape = (batch_size, *knowledge.input_shape)
        if self.start_from == "normal":
            first = torch.randn(shape, generator=generator)
        else:
            inputs = first_inputs(self.start_from, shape, knowledge.value_range, generator)
            first = (inputs - self.mean) / self.std
        low, high = ((bound - self.mean) / self.std for bound in knowledge.value_range)
        words = words_at(knowledge.blocks, shape[-1]).to(like.device)

        def decode(unknowns: Sequence[Tensor]) -> Tensor:
            values = self.mean + self.std * unknowns[0]
            # Of a block the unknowns are logits, whose softmax the network reads (Vero et al., ICML 2023).
            return relaxed(torch.where(words, unknowns[0], values), knowledge.blocks) if knowledge.blocks else values

        def project(unknowns: Sequence[Tensor]) -> list[Tensor]:
            return [torch.where(words, unknowns[0], unknowns[0].clamp(low, high))]

        return SearchSpace([first.to(like)], decode, project)


@dataclass(frozen=True, kw_only=True)
class NumbersOnly(Parameterization):
    """The numbers of a table's rows as unknowns, from those of given rows, whose words stay as they are.

    Args:
        rows: `[batch, d]` with one-hot blocks.
        std: As of `Pixels`; its mean shifts nothing here.
    """

    rows: Tensor
    std: float = 1.0

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        words, (low, high) = words_at(knowledge.blocks, self.rows.shape[1]).to(like.device), knowledge.value_range
        return SearchSpace(
            [self.rows.to(like) / self.std],
            lambda unknowns: torch.where(words, self.rows, self.std * unknowns[0]),
            lambda unknowns: [unknowns[0].clamp(low / self.std, high / self.std)],
        )


def check_images(knowledge: Knowledge, what: str) -> None:
    if len(knowledge.input_shape) != 3:
        raise refuse("no_images")(
            f"{what} needs images (channels, height, width), and an example here has shape {knowledge.input_shape}",
            "use an attack on the values themselves, such as inverting_gradients",
        )
