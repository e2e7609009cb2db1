"""Unknowns of the generative attacks: a generator's inputs, or a low-resolution image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from seepage.attacks.generative.networks import low_size, stretched
from seepage.attacks.generative.prior import ImagePrior
from seepage.attacks.search.parameters import Parameterization, SearchSpace, check_images
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge


@dataclass(frozen=True, kw_only=True)
class Latent(Parameterization):
    """Images as outputs of a trained generator: the unknowns are its inputs.

    Args:
        prior: The generator.
        reach: Latents are `reach tanh(u / reach)` of the unknowns u; None: the unknowns themselves.
    """

    prior: ImagePrior = ImagePrior()  # noqa: RUF009 - frozen and without state
    reach: float | None = None

    def __post_init__(self) -> None:
        if self.reach is not None and not self.reach > 0:
            raise SeepageError(f"reach must be above 0, got {self.reach}; correct the recipe")

    def check(self, knowledge: Knowledge) -> None:
        self.prior.check(knowledge)

    def latents(self, unknowns: Tensor) -> Tensor:
        """What the generator is given for unknowns `[n, latent]`."""
        return unknowns if self.reach is None else self.reach * (unknowns / self.reach).tanh()

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        network = self.prior.network(knowledge, like)
        first = torch.randn((batch_size, self.prior.latent), generator=generator).to(like)

        def decode(unknowns: Sequence[Tensor]) -> Tensor:
            images: Tensor = network(self.latents(unknowns[0]))
            return images

        return SearchSpace([first], decode, lambda unknowns: list(unknowns))


@dataclass(frozen=True, kw_only=True)
class LowResolution(Parameterization):
    """Images as bicubic enlargements of small ones, which are the unknowns and start uniform over the value range.

    Args:
        scale: By how much each side is enlarged.
    """

    scale: int = 4

    def __post_init__(self) -> None:
        if self.scale < 1:
            raise SeepageError(f"scale must be from 1 up, got {self.scale}; correct the recipe")

    def check(self, knowledge: Knowledge) -> None:
        check_images(knowledge, "a low resolution")

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        channels, height, width = knowledge.input_shape
        low, high = knowledge.value_range
        small = (batch_size, channels, *low_size((height, width), self.scale))
        first = low + (high - low) * torch.rand(small, generator=generator)
        return SearchSpace(
            [first.to(like)],
            lambda unknowns: stretched(unknowns[0], (height, width)),
            lambda unknowns: [unknowns[0].clamp(low, high)],
        )
