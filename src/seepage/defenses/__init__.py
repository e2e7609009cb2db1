"""What a client does to its update before sending it: one file per defense, composed left to right."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

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
from seepage.errors import SeepageError
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


def defense_tables(defense: Defense) -> list[dict[str, Any]]:
    """A defense as a recipe writes it: a table for each part, with its registry name as `use`, and its options.

    What the clients keep from the server, such as a shared `secret`, is left out.

    Raises:
        SeepageError: For a defense that has no name here.

    >>> defense_tables(Compose((Sparsify(keep=0.5), Quantize(bits=8))))
    [{'use': 'sparsify', 'keep': 0.5}, {'use': 'quantize', 'bits': 8, 'stochastic': False}]
    """
    return [_table(stage) for stage in defense.stages()]


def _table(defense: Defense) -> dict[str, Any]:
    for use, make in DEFENSES.items():
        if type(defense) is make and is_dataclass(defense):
            shown = [field.name for field in fields(defense) if field.name not in defense.secrets]
            return {"use": use, **{name: getattr(defense, name) for name in shown}}
    raise SeepageError(
        f"{type(defense).__name__} is not one of seepage's defenses ({', '.join(DEFENSES)}), so a folder cannot tell "
        "an attacker of it; leave 'defense' out of what is told, or keep the transcript in memory"
    )


def joined(parts: Sequence[Defense]) -> Defense | None:
    """One defense that does what several do from left to right; None for none.

    >>> joined([Sparsify(keep=0.5)])
    Sparsify(keep=0.5)
    """
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Compose(tuple(parts))


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
    "defense_tables",
    "joined",
]
