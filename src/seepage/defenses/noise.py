"""Gaussian noise on the update, with an optional clip of its norm."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Generator

from seepage.errors import SeepageError
from seepage.functional import norm
from seepage.types import ClientView, Defense, Update


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Defense):
    """Clip the whole update to a norm, then add independent Gaussian noise to every entry.

    This is the mechanism of client-level differential privacy (Geyer et al. 2017) for one update. It states no
    epsilon: that depends on sampling and on the number of rounds, and belongs to an accountant.

    Args:
        sigma: Standard deviation of the noise, in units of `clip` where a clip is set, else absolute.
        clip: Largest Euclidean norm of the update over all tensors; None leaves it as it is.
    """

    sigma: float
    clip: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf or (self.clip is not None and not 0 < self.clip < math.inf):
            raise SeepageError(
                f"GaussianNoise needs sigma >= 0 and clip > 0, got sigma={self.sigma}, clip={self.clip}; "
                "correct the recipe"
            )

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        scale, deviation = 1.0, self.sigma
        if self.clip is not None:
            scale = min(1.0, self.clip / max(float(norm(update.tensors)), 1e-12))
            deviation = self.sigma * self.clip
        noisy = {
            name: tensor * scale + deviation * torch.randn(tensor.shape, generator=generator).to(tensor)
            for name, tensor in update.tensors.items()
        }
        return replace(update, tensors=noisy)
