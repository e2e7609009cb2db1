"""What a client's defense promises in differential privacy, and why to doubt it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.defenses import DPSGD, Compose, DecayingNoise, GaussianNoise, Guardian, Soteria
from seepage.errors import SeepageError
from seepage.privacy.accounting import doubts, epsilon, epsilons
from seepage.types import Defense

DELTA = 1e-5
LOOKING = (Guardian, Soteria)
"""Defenses that look at the private examples, whatever update they are given."""


@dataclass(frozen=True)
class DPGuarantee:
    """Differential privacy towards the server, which sees who takes part.

    Attributes:
        epsilon: After all rounds; None where none holds or it could not be counted: `doubts` says why.
        unit: What it protects: one `example`, or one `update` of a client.
        delta: The chance that it does not hold.
        rounds: Rounds that were counted.
        doubts: Why not to trust it, one sentence each.
    """

    epsilon: float | None
    unit: str
    delta: float
    rounds: int
    doubts: tuple[str, ...] = ()


def guarantee_of(
    defense: Defense | None, taken: Sequence[int] = (0,), delta: float = DELTA, *, participations: int = 1
) -> DPGuarantee | None:
    """The promise of `dp_sgd`, `gaussian_noise` and `decaying_noise`; None for defenses that make none.

    What other defenses of a composition do to the noisy update alone costs nothing. Those that look at the private
    examples again, behind the noise, undo the promise.

    Args:
        defense: What the client does.
        taken: The rounds in which it takes part, each with all its examples.
        delta: In (0, 1).
        participations: Local steps of one round in which one example is used, at most:
            `client.max_participations(examples)`. Only `dp_sgd` adds
            noise in each.

    >>> guarantee_of(GaussianNoise(sigma=1.0)).doubts
    ('the noise has no clip to bound what one update can change, so no epsilon holds; set a clip',)
    """
    parts = defense.parts if isinstance(defense, Compose) else (defense,)
    place = next((i for i, part in enumerate(parts) if isinstance(part, DPSGD | GaussianNoise | DecayingNoise)), None)
    if place is None:
        return None
    noise = parts[place]
    assert isinstance(noise, DPSGD | GaussianNoise | DecayingNoise)
    unit = "example" if isinstance(noise, DPSGD) else "update"
    if noise.clip is None:
        why = "the noise has no clip to bound what one update can change, so no epsilon holds; set a clip"
        return DPGuarantee(None, unit, delta, len(taken), (why,))
    looking = next((type(part).__name__ for part in parts[place + 1 :] if isinstance(part, LOOKING)), None)
    if looking is not None:
        why = f"{looking} looks at the private examples again behind the noise, so no epsilon holds; leave it out"
        return DPGuarantee(None, unit, delta, len(taken), (why,))
    try:
        spent = _spent(noise, taken, delta, participations)
    except SeepageError as error:  # the accountant is an extra
        return DPGuarantee(None, unit, delta, len(taken), (str(error),))
    if spent == math.inf:
        return DPGuarantee(None, unit, delta, len(taken), ("there is no noise, so no epsilon holds",))
    return DPGuarantee(spent, unit, delta, len(taken), tuple(doubts(epsilon=spent)))


def _spent(
    noise: DPSGD | GaussianNoise | DecayingNoise, taken: Sequence[int], delta: float, participations: int
) -> float:
    if not taken:
        return 0.0
    if isinstance(noise, DecayingNoise):
        return epsilons([noise.sigma_at(t) for t in taken], delta=delta)[-1]
    steps = len(taken) * (participations if isinstance(noise, DPSGD) else 1)
    return epsilon(sigma=noise.sigma, rounds=steps, delta=delta)
