"""What a client does to its update before sending it: one file per defense, composed left to right."""

from collections.abc import Callable

from seepage.defenses.compose import Compose
from seepage.defenses.dp_sgd import DPSGD
from seepage.defenses.fake_gradients import FakeGradients
from seepage.defenses.guardian import Guardian
from seepage.defenses.noise import DecayingNoise, GaussianNoise, LaplaceNoise, UnitNormNoise
from seepage.defenses.outpost import Outpost
from seepage.defenses.partial import PartialAccess, SelectiveEncryption
from seepage.defenses.quantize import Quantize
from seepage.defenses.soteria import Soteria
from seepage.defenses.sparsify import Sparsify
from seepage.defenses.zero_sum import ZeroSumNoise
from seepage.types import Defense

DEFENSES: dict[str, Callable[..., Defense]] = {
    "decaying_noise": DecayingNoise,
    "dp_sgd": DPSGD,
    "fake_gradients": FakeGradients,
    "gaussian_noise": GaussianNoise,
    "guardian": Guardian,
    "laplace_noise": LaplaceNoise,
    "outpost": Outpost,
    "partial_access": PartialAccess,
    "quantize": Quantize,
    "selective_encryption": SelectiveEncryption,
    "soteria": Soteria,
    "sparsify": Sparsify,
    "unit_norm_noise": UnitNormNoise,
    "zero_sum_noise": ZeroSumNoise,
}

__all__ = [
    "DEFENSES",
    "Compose",
    "DPSGD",
    "DecayingNoise",
    "FakeGradients",
    "GaussianNoise",
    "Guardian",
    "LaplaceNoise",
    "Outpost",
    "PartialAccess",
    "Quantize",
    "SelectiveEncryption",
    "Soteria",
    "Sparsify",
    "UnitNormNoise",
    "ZeroSumNoise",
]
