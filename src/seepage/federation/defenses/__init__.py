"""Defenses: what a client applies to its update before sending it; one file each, composed from left to right."""

from collections.abc import Sequence
from typing import Any

from seepage.base.registry import Registry, defenses
from seepage.errors import SeepageError
from seepage.federation.defenses.adaptive_dp import AdaptiveDP
from seepage.federation.defenses.compose import Compose
from seepage.federation.defenses.dp_sgd import DPSGD
from seepage.federation.defenses.fake_gradients import FakeGradients
from seepage.federation.defenses.jacobian_damping import JacobianDamping
from seepage.federation.defenses.noise import DecayingNoise, GaussianNoise, LaplaceNoise, UnitNormNoise
from seepage.federation.defenses.outpost import Outpost
from seepage.federation.defenses.partial import PartialAccess, SelectiveEncryption, Withhold
from seepage.federation.defenses.quantize import Quantize
from seepage.federation.defenses.soteria import Soteria
from seepage.federation.defenses.sparsify import Sparsify
from seepage.federation.defenses.zero_sum import ZeroSumNoise
from seepage.federation.types import Defense

DEFENSES: Registry[Defense] = defenses
"""Every defense that has a name."""


def defense_tables(defense: Defense) -> list[dict[str, Any]]:
    """A defense as a recipe writes it: a table for each part, with its registry name as `use`, and its options.

    What the clients keep from the server, such as a shared `secret`, is left out.

    Raises:
        SeepageError: For a defense that has no name here.

    >>> defense_tables(Compose((Sparsify(keep=0.5), Quantize(bits=8))))
    [{'use': 'sparsify', 'keep': 0.5}, {'use': 'quantize', 'bits': 8}]
    """
    try:
        return [defenses.spec_of(stage).table() for stage in defense.stages()]
    except SeepageError as error:
        raise SeepageError(
            f"{error}: a folder cannot describe it to an attacker; leave 'defense' out of what is known, or keep the "
            "transcript in memory"
        ) from error


def joined(parts: Sequence[Defense]) -> Defense | None:
    """One defense that applies several from left to right; None if there are none.

    >>> joined([Sparsify(keep=0.5)])
    Sparsify(keep=0.5)
    """
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Compose(tuple(parts))


__all__ = [
    "DEFENSES",
    "AdaptiveDP",
    "Compose",
    "DPSGD",
    "DecayingNoise",
    "FakeGradients",
    "GaussianNoise",
    "JacobianDamping",
    "LaplaceNoise",
    "Outpost",
    "PartialAccess",
    "Quantize",
    "SelectiveEncryption",
    "Soteria",
    "Sparsify",
    "UnitNormNoise",
    "Withhold",
    "ZeroSumNoise",
    "defense_tables",
    "joined",
]
