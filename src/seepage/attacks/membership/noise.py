"""What an attacker who knows of a client's noise and clip makes of them in a membership test."""

import math
from dataclasses import dataclass

from torch import Tensor

from seepage.attacks.search.adaptive import known_noise
from seepage.federation.types import Knowledge, Round


@dataclass(frozen=True)
class KnownNoise:
    """The client sends `s u + e`: its update u scaled by an unknown s in (0, 1], and white Gaussian noise e.

    Attributes:
        deviation: Standard deviation of e in each entry, in units of the gradient that the update is read as.
        length: Largest norm of `s u`; None: nothing is scaled, and s = 1.
        always: The update is scaled to that norm also where it is shorter.
    """

    deviation: float
    length: float | None = None
    always: bool = False

    @classmethod
    def of(cls, knowledge: Knowledge, observed: Round) -> "KnownNoise | None":
        """The noise that is known; None where there is none, or none that is known to be Gaussian and white."""
        noise = known_noise(knowledge, observed)
        if noise is None:
            return None
        return cls(noise.deviation, 1.0 if noise.unit else noise.clip, noise.unit)

    def scale(self, norm: float) -> float:
        """The factor by which the client scales an update of this norm; 1 where it does not clip.

        >>> KnownNoise(0.1, length=1.0).scale(4.0), KnownNoise(0.1, length=1.0).scale(0.5), KnownNoise(0.1).scale(4.0)
        (0.25, 1.0, 1.0)
        """
        if self.length is None:
            return 1.0
        found = self.length / max(norm, 1e-30)
        return found if self.always else min(1.0, found)

    def variance(self, gradients: Tensor, weights: Tensor, examples: int) -> float:
        """What the noise adds to the variance of an entry, in units of one example's gradient.

        The update of n examples is `s (g_c + the others) / n + e`, so that `n / s` times it is g_c, and the other
        `n - 1` gradients, whose covariance is about n S, and noise of variance `(n sigma / s)^2`. Divided by n beside
        the S of one example: `n sigma^2 / s^2`. The client's own norm is not seen; that of means of n public gradients
        stands in for it.

        Args:
            gradients: `[m, d]` gradients of public examples, some entries of each.
            weights: `[d]` how many entries of the whole gradient each of these stands for.
            examples: n.
        """
        means = [part.mean(0) for part in gradients.split(examples) if len(part) == examples] or [gradients.mean(0)]
        norms = sorted(float((mean.square() * weights).sum().sqrt()) for mean in means)
        scale = self.scale(norms[len(norms) // 2])
        return examples * (self.deviation / scale) ** 2


def example_clip(knowledge: Knowledge, observed: Round) -> float:
    """The largest norm of a single example's gradient, where the attacker knows of such a clip; else infinite."""
    mechanism = None if knowledge.defense is None else knowledge.defense.mechanism([observed.t])
    if mechanism is None or mechanism.unit != "example" or mechanism.clip is None:
        return math.inf
    return mechanism.clip
