"""What a client does to its update before sending it: one file per defence, composed left to right."""

from collections.abc import Callable

from seepage.defenses.compose import Compose
from seepage.defenses.fake_gradients import FakeGradients
from seepage.defenses.noise import GaussianNoise
from seepage.defenses.sparsify import Sparsify
from seepage.types import Defense

DEFENSES: dict[str, Callable[..., Defense]] = {
    "fake_gradients": FakeGradients,
    "gaussian_noise": GaussianNoise,
    "sparsify": Sparsify,
}

__all__ = ["DEFENSES", "Compose", "FakeGradients", "GaussianNoise", "Sparsify"]
