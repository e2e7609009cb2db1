"""Measure epsilon from outputs that are there already, such as recorded rounds, of a filter that cannot be called."""

import numpy as np

from seepage.errors import SeepageError
from seepage.measure.privacy.accounting import check_installed
from seepage.measure.privacy.measured.canaries import Array
from seepage.measure.privacy.measured.events import Event, best_event, lower_bound
from seepage.measure.privacy.measured.gaussian import fitted
from seepage.measure.privacy.measured.measure import EpsilonClaims, MeasuredEpsilon
from seepage.measure.privacy.measured.statistics import Statistic, statistics_of

MIN_OUTPUTS = 8
"""Fewest outputs of either kind."""


def measure_outputs(
    without: Array,
    included: Array,
    claims: EpsilonClaims,
    *,
    direction: Array | None = None,
    seed: int = 0,
) -> MeasuredEpsilon:
    """Measure on outputs with and without a canary, one of each round.

    Half of them, drawn at random, serve to choose a score and an event, which are counted in the other half. What else
    is in the rounds may vary: that hides the canary and never lets the bound exceed the truth, as long as it does not
    depend on whether the canary is there.

    Args:
        without: `[m, d]` outputs without the canary, at least `MIN_OUTPUTS`.
        included: `[n, d]` outputs with it, as many or more or fewer.
        claims: What the epsilon is about; the fit takes the rounds to be alike.
        direction: `[d]` the canary itself; with it the Gaussian fit takes all outputs.
        seed: Divides the outputs.

    Raises:
        SeepageError: For too few outputs.

    >>> draw = np.random.default_rng(0)
    >>> a, b = draw.normal(size=(400, 3)), draw.normal(size=(400, 3)) + [4.0, 0.0, 0.0]
    >>> found = measure_outputs(a, b, EpsilonClaims(delta=1e-5, stated=1.0), direction=np.array([4.0, 0.0, 0.0]))
    >>> found.stated_verdict, found.fit.mu[0] < 4 < found.fit.mu[2]
    ('contradicted', True)
    """
    check_installed()
    delta, rounds = claims.delta, claims.rounds
    if min(len(without), len(included)) < MIN_OUTPUTS:
        raise SeepageError(
            f"epsilon is measured on {MIN_OUTPUTS} outputs of either kind or more, got {len(without)} without the "
            f"canary and {len(included)} with it; record more rounds"
        )
    draw = np.random.default_rng(seed)
    sides = [outputs[draw.permutation(len(outputs))] for outputs in (without, included)]
    learn, count = ([side[part::2][:, None] for side in sides] for part in (0, 1))
    share = len(count[1]) / (len(count[0]) + len(count[1]))
    statistic, event = _chosen(learn, direction, len(count[0]) + len(count[1]), delta, share)
    mine, other = (statistic.of_trials(count[side]) for side in (event.likely, 1 - event.likely))
    hits, false = event.hits(mine), event.hits(other)
    low, ceiling = (
        float(lower_bound(a, len(mine), b, len(other), delta=delta, error=event.error))
        for a, b in ((hits, false), (len(mine), 0))
    )
    linear = next((one for one in statistics_of(learn[0], learn[1], direction) if one.linear), None)
    whole = [side[:, None] for side in sides] if linear is not None and not linear.learned else count
    fit = None if linear is None else fitted(
        linear.of_trials(whole[0]), linear.of_trials(whole[1]), canary="recorded", statistic=linear.name, delta=delta,
        rounds=rounds, alike=rounds > 1,
    )  # fmt: skip
    return MeasuredEpsilon(
        delta=delta, rounds=rounds, unit=claims.unit, stated=claims.stated, computed=claims.computed, low=low,
        ceiling=ceiling, canary="recorded", statistic=statistic.name, hits=(hits, len(mine)),
        false_hits=(false, len(other)), rounds_per_trial=1, fit=fit, deterministic=False,
        calls=len(without) + len(included), seconds=0.0, tried=("recorded",),
    )  # fmt: skip


def _chosen(
    learn: list[Array], direction: Array | None, trials: int, delta: float, share: float
) -> tuple[Statistic, Event]:
    """The score and event with the largest expected bound; what was learned is judged on other outputs than taught."""
    first, rest = ([side[part::2] for side in learn] for part in (0, 1))
    best: tuple[Statistic, Event] | None = None
    for statistic in statistics_of(first[0], first[1], direction):
        part = rest if statistic.learned else learn
        event = best_event(
            statistic.of_trials(part[0]), statistic.of_trials(part[1]), trials, delta, shares=(share, 1 - share)
        )
        if best is None or event.expected > best[1].expected:
            best = statistic, event
    assert best is not None
    return best
