"""The differential-privacy guarantee of a client's defense, and reasons to doubt it."""

import math
from collections.abc import Sequence

from seepage.base.schema import Guarantee
from seepage.errors import SeepageError
from seepage.federation.types import Defense, GaussianMechanism
from seepage.measure.privacy.accounting import caveats, epsilon, epsilons

DELTA = 1e-5
"""Default delta, the usual one of the literature; it should be below one over the number of examples."""

EXACT = "dp-accounting; rounds compose to one Gaussian mechanism, whose epsilon is exact (Balle and Wang 2018)"
RENYI = "dp-accounting; rounds compose by their Renyi divergences, which gives an upper bound (Mironov 2017)"
"""Who counts epsilon and how, for noise that is alike in all rounds and that differs."""


def guarantee_of(
    defense: Defense | None, taken: Sequence[int] = (0,), delta: float = DELTA, *, participations: int = 1
) -> Guarantee | None:
    """What a defense guarantees by its own mechanism (`Defense.mechanism`); None for defenses that state none.

    What other defenses of a composition do to the noisy update alone costs nothing. Those that look at the private
    examples again, behind the noise, undo the guarantee.

    Args:
        defense: What the client does.
        taken: The rounds in which it takes part, each with all its examples.
        delta: In (0, 1).
        participations: Local steps of one round in which one example is used, at most:
            `client.max_participations(examples)`. Only `dp_sgd` adds
            noise in each.

    >>> from seepage.federation.defenses import GaussianNoise
    >>> guarantee_of(GaussianNoise(sigma=1.0)).caveats
    ('the noise has no clip to bound what one update can change, so no epsilon holds; set a clip',)
    """
    stages = () if defense is None else defense.stages()
    stated = [stage.mechanism(taken) for stage in stages]
    place = next((i for i, mechanism in enumerate(stated) if mechanism is not None), None)
    if place is None:
        return None
    mechanism = stated[place]
    assert mechanism is not None
    how = RENYI if isinstance(mechanism.sigma, tuple) else EXACT
    none = Guarantee(unit=mechanism.unit, delta=delta, rounds=len(taken), accountant=how)

    def lacking(why: str) -> Guarantee:
        return none.model_copy(update={"caveats": (why,)})

    if mechanism.clip is None:
        return lacking("the noise has no clip to bound what one update can change, so no epsilon holds; set a clip")
    looking = next((type(stage).__name__ for stage in stages[place + 1 :] if stage.reads_examples), None)
    if looking is not None:
        return lacking(
            f"{looking} looks at the private examples again behind the noise, so no epsilon holds; leave it out"
        )
    try:
        spent = _spent(mechanism, len(taken), delta, participations)
    except SeepageError as error:  # the accountant is an extra
        return lacking(str(error))
    if spent == math.inf:
        return lacking("there is no noise, so no epsilon holds")
    return none.model_copy(update={"epsilon": spent, "caveats": tuple(caveats(epsilon=spent))})


def _spent(mechanism: GaussianMechanism, rounds: int, delta: float, participations: int) -> float:
    if not rounds:
        return 0.0
    if isinstance(mechanism.sigma, tuple):
        return epsilons(mechanism.sigma, delta=delta)[-1]
    steps = rounds * (participations if mechanism.every_step else 1)
    return epsilon(sigma=mechanism.sigma, rounds=steps, delta=delta)
