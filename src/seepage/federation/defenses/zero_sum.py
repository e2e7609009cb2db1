"""Noise that cancels when the updates of a group of clients are added up."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Generator

from seepage.base import nn as functional
from seepage.base.registry import defenses
from seepage.errors import SeepageError
from seepage.federation.defenses.noise import gaussian
from seepage.federation.types import ClientView, Defense, Tensors, Update


@defenses.register("zero_sum_noise")
@dataclass(frozen=True, kw_only=True)
class ZeroSumNoise(Defense):
    """Add one's own Gaussian mask and take off a neighbor's: the masks cancel in the group's sum (FedLeak, Section 7).

    Clients sit in a ring: client k adds mask k and takes off mask k - 1, which its neighbor told it. A client that is
    alone in the simulation counts as one of a pair whose other half stays outside; that half's magnitudes are taken to
    be its own. Updates that are averaged with unequal weights do not cancel.

    FedLeak proposes noise in proportion to each entry's magnitude (`proportional`). Such a mask shows the update's
    magnitudes to the neighbor, leaves entries that are zero at both clients zero, and its noise over signal is the same
    in every entry; by default all entries get equal noise.

    All but the group are taken not to know the secret. It stands in the recipe, and this package's attacks do not
    use it. The defense draws nothing from its generator, which no other client shares.

    Args:
        sigma: Standard deviation of each mask, absolute, or over each entry's magnitude where `proportional`. What a
            client adds in all has sqrt(2) times that where all masks are alike.
        proportional: Whether a mask is in proportion to the magnitudes of the update that it is made for.
        secret: What the masks are drawn from, together with the round's number.
    """

    reads_examples: ClassVar[bool] = False
    acts_on: ClassVar[Literal["update", "group", "view"]] = "group"
    secrets: ClassVar[tuple[str, ...]] = ("secret",)

    sigma: float
    proportional: bool = False
    secret: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise SeepageError(f"ZeroSumNoise needs sigma >= 0, got sigma={self.sigma}; correct the recipe")

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        theirs = update if client.neighbor is None else client.neighbor
        own = self._mask(update.tensors, client.number, client.t)
        neighbors = self._mask(theirs.tensors, (client.number - 1) % max(2, client.clients), client.t)
        masked = {name: tensor + (own[name] - neighbors[name]) for name, tensor in update.tensors.items()}
        return replace(update, tensors=masked)

    def _mask(self, like: Tensors, number: int, t: int) -> Tensors:
        draw = functional.generator(self.secret, f"zero-sum mask {number}", t)
        masks = {name: self.sigma * gaussian(tensor, draw) for name, tensor in like.items()}
        return {name: mask * like[name].abs() for name, mask in masks.items()} if self.proportional else masks

    @property
    def needs_neighbor(self) -> bool:  # type: ignore[override]
        return self.proportional
