"""Noise and clip that follow the training, from what is public alone (Fu et al. 2022)."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Generator, nn

from seepage.base.nn import norm
from seepage.base.registry import defenses
from seepage.errors import SeepageError
from seepage.federation.defenses.noise import GaussianNoise
from seepage.federation.types import ClientUpdate, ClientView, Defense, DefenseModel, GaussianMechanism, Noise, Update

CERTAIN = 4.0
"""Deviations from nothing at which a norm estimated from a noisy update is believed: by chance in one of 30,000."""


@defenses.register("adaptive_dp")
@dataclass(frozen=True, kw_only=True)
class AdaptiveDP(Defense):
    """Clip and noise that adapt to the training (Fu, Chen, Han, TrustCom 2022, Adap DP-FL).

    Each client clips its update to a norm C of its own and adds Gaussian noise of deviation `sigma C` to every entry.

    - Noise: whenever the server's validation loss has fallen `patience` times in a row, sigma is multiplied by `decay`.
    - Clip: a client's next C is `factor` times the norm of its last clipped update, estimated from what it *sent*:
      noise of deviation d on n entries adds `n d^2` to the squared norm, give or take `sqrt(2 n) d^2`. The mean is
      taken off; what is left within `CERTAIN` deviations of nothing says nothing, and C stays. That is so for all
      updates where sigma is above `(2 n CERTAIN^2)^(-1/4)`, 0.04 for 13,000 entries: then only the noise adapts.

    Both spend no privacy beyond the noise itself. The clip is computed from a noisy update that was published already;
    the loss has to be that of examples that are nobody's secret. In a simulation these are the examples that no client
    holds, on which accuracy is measured as well. In round t sigma has fallen at most `t // patience` times, whatever
    the losses were, so the epsilon counted is that of the least noise that this allows: valid before the training, and
    no less than what was spent. A loss on clients' own examples would spend privacy that nothing here counts.

    Outside of a federation's rounds it is what it is in round 0: Gaussian noise of `sigma` behind `clip`.

    Readings: of the paper its abstract and others' descriptions were at hand. Fu et al. clip and perturb gradients of
    single examples inside local training; here it is the client's update, as in `gaussian_noise`.

    Args:
        sigma: Noise multiplier in round 0, in units of the clip.
        clip: Largest Euclidean norm of a client's first update over all tensors.
        decay: Factor of sigma, in (0, 1]; 1 never decays.
        patience: Times in a row that the validation loss must fall, at least 1.
        floor: Sigma never falls below this.
        factor: The next clip over the last norm, above 0; above 1 it can grow. None keeps `clip`.
        least: The clip never falls below this share of `clip`.

    Example:
        >>> AdaptiveDP(sigma=1.0, clip=1.0, decay=0.5).begin([2.3, 2.0, 1.8, 1.5], None).sigma
        0.5
    """

    reads_examples: ClassVar[bool] = False
    follows_training: ClassVar[bool] = True

    sigma: float
    clip: float
    decay: float = 0.9
    patience: int = 3
    floor: float = 0.0
    factor: float | None = 1.5
    least: float = 0.01

    def __post_init__(self) -> None:
        noise = 0 <= self.floor <= self.sigma < math.inf and 0 < self.clip < math.inf
        steps = 0 < self.decay <= 1 and self.patience >= 1
        clips = (self.factor is None or 0 < self.factor < math.inf) and 0 < self.least <= 1
        if not (noise and steps and clips):
            raise SeepageError(
                "AdaptiveDP needs sigma >= 0, clip > 0, decay in (0, 1], patience >= 1, floor from 0 to sigma, "
                f"factor > 0 and least in (0, 1], got {self}; correct the recipe"
            )

    def begin(self, losses: Sequence[float], memory: float | None) -> "AdaptiveDP":
        """The defense as it is in a round, with its sigma and clip in the place of those of round 0."""
        clip = self.clip if memory is None else max(memory, self.least * self.clip)
        return replace(self, sigma=self.sigma_after(losses), clip=clip, floor=min(self.floor, self.sigma))

    def sigma_after(self, losses: Sequence[float]) -> float:
        """Sigma, from the validation losses of the models that were sent out so far."""
        sigma, falls = self.sigma, 0
        for before, after in itertools.pairwise(losses):
            falls = falls + 1 if after < before else 0
            if falls == self.patience:
                sigma, falls = max(self.floor, sigma * self.decay), 0
        return sigma

    def remember(self, sent: Update) -> float | None:
        """The client's next clip, from what it sent."""
        if self.factor is None:
            return None
        entries = sum(tensor.numel() for tensor in sent.tensors.values())
        variance = (self.sigma * self.clip) ** 2
        # |u + d z|^2 has mean |u|^2 + n d^2 for n standard normal entries of z, and deviation sqrt(2 n) d^2 at u = 0.
        square = float(norm(sent.tensors)) ** 2 - entries * variance
        if square <= CERTAIN * math.sqrt(2 * entries) * variance:
            return self.clip
        return self.factor * math.sqrt(min(square, self.clip**2))  # it was clipped, so it was no longer than C

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        return self._now(update, client, generator=generator)

    @property
    def _now(self) -> GaussianNoise:
        return GaussianNoise(sigma=self.sigma, clip=self.clip)

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return self._now.attacker_models(model)

    def added_noise(self, rule: ClientUpdate, examples: float, t: int) -> Noise:
        return self._now.added_noise(rule, examples, t)

    def with_less_noise(self, share: float, t: int) -> GaussianNoise:
        return self._now.with_less_noise(share, t)

    def mechanism(self, rounds: Sequence[int]) -> GaussianMechanism:
        # Adaptive composition: round t's Renyi divergence is at most that of the least sigma it can have, whatever came
        # before (Mironov 2017, Proposition 1), and sigma is in units of the clip, however that was chosen.
        least = tuple(max(self.floor, self.sigma * self.decay ** (t // self.patience)) for t in rounds)
        return GaussianMechanism("update", self.clip, least)
