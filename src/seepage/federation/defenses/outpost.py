"""OUTPOST: prune, then add noise where the gradient is large, less often as training proceeds."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from seepage.base.registry import defenses
from seepage.errors import SeepageError
from seepage.federation.defenses.noise import gaussian
from seepage.federation.defenses.partial import Hidden, ranked
from seepage.federation.defenses.sparsify import SMALL_ENTRY_WEIGHT
from seepage.federation.types import ClientView, Defense, DefenseModel, Update


@defenses.register("outpost")
@dataclass(frozen=True, kw_only=True)
class Outpost(Defense):
    """Prune each tensor's small entries and add noise to the large ones, with falling probability (Wang et al. 2023).

    With probability `1 / (1 + beta * t)` in round t: set all but the largest entries of each tensor to zero; then add
    Gaussian noise to the `phi` largest squared entries over the whole model (the empirical Fisher information), with
    the deviation `noise * min(var, 1)`, where var is the variance of the tensor's weights. The constants are those of
    the public code in plato; the paper's abstract and that code are what was at hand.

    Chosen here: the Fisher information is the square of each entry of the update (plato averages squares over the
    first axis of each tensor, so that all output rows share one mask); t is the round, where a client of several
    local steps would count those; the variance is the population's, so that a tensor of one entry has 0. Plato's own
    function returns its input unchanged since September 2024.

    Args:
        prune: Share of entries of each tensor set to zero, in [0, 1].
        phi: Share of entries of the model that may get noise, in [0, 1].
        noise: Deviation of the noise at weight variance 1, absolute.
        beta: How fast the defense is used less often, at least 0.
    """

    reads_examples: ClassVar[bool] = False

    prune: float = 0.8
    phi: float = 0.4
    noise: float = 0.8
    beta: float = 0.125

    def __post_init__(self) -> None:
        shares = 0 <= self.prune <= 1 and 0 <= self.phi <= 1
        if not shares or not 0 <= self.noise < math.inf or not 0 <= self.beta < math.inf:
            raise SeepageError(
                "Outpost needs prune and phi in [0, 1], noise >= 0 and beta >= 0, got "
                f"prune={self.prune}, phi={self.phi}, noise={self.noise}, beta={self.beta}; correct the recipe"
            )

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        # Drawn in every round, so that one round's noise does not depend on whether it was used.
        used = float(torch.rand((), generator=generator)) < 1 / (1 + self.beta * client.t)
        noisy = ranked(update.tensors, round(self.phi * sum(tensor.numel() for tensor in update.tensors.values())))
        sent = {}
        for name, tensor in update.tensors.items():
            risk = min(float(client.params[name].double().var(correction=0)), 1.0)
            hidden = risk * self.noise * gaussian(tensor, generator)
            sent[name] = self._pruned(tensor) + torch.where(noisy[name], hidden, 0)
        return replace(update, tensors=sent) if used else update

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return (Hidden(SMALL_ENTRY_WEIGHT),)  # pruned entries are small, but the noise hides the bound

    def _pruned(self, tensor: Tensor) -> Tensor:
        flat = tensor.flatten()
        # Each tensor by itself, and of equal magnitudes the earlier goes: not `ranked`, where the earlier stays.
        small = flat.abs().argsort(stable=True)[: round(self.prune * len(flat))]
        return flat.index_fill(0, small, 0).reshape(tensor.shape)
