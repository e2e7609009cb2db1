"""The two bounds of epsilon hold as often as they say: exact coverage, a thousand nulls, and null scores give zero."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.measured.events import ERROR, ERRORS, best_event, lower_bound
from seepage.measure.privacy.measured.gaussian import GaussianFit, fitted

DELTA = 1e-5
NULLS = 1000


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("n1", "n0"), [(50, 50), (20, 180), (100, 40)])
@pytest.mark.parametrize("truth", [0.0, 0.5, 2.0, 4.0])
def test_the_bound_exceeds_the_truth_in_five_percent_of_all_outcomes_at_most(
    truth: float, n1: int, n0: int, error: float
) -> None:
    """Randomized response is e^truth-private, tightly: add up the probabilities of all counts with a bound above."""
    for odds in (1.0, 0.1):
        p0 = odds / (1 + math.exp(truth))
        p1 = min(1.0, p0 * math.exp(truth) + DELTA)
        k1, k0 = np.arange(n1 + 1)[:, None], np.arange(n0 + 1)[None]
        chance = binom.pmf(k1, n1, p1) * binom.pmf(k0, n0, p0)
        above = lower_bound(k1, n1, k0, n0, delta=DELTA, error=error) > truth
        assert chance[above].sum() <= ERROR


def test_the_largest_bound_of_so_many_trials_has_its_closed_form() -> None:
    """With n of n against 0 of n the ends are error^(1/n) and 1 - (ERROR - error)^(1/n)."""
    low = float(lower_bound(1000, 1000, 0, 1000, delta=DELTA, error=0.025))
    assert low == pytest.approx(math.log((0.025**0.001 - DELTA) / (1 - 0.025**0.001)))


def _measured(without: np.ndarray, included: np.ndarray) -> float:
    """Choose on half of the scores, count on the other."""
    event = best_event(without[::2], included[::2], len(without), DELTA, quick=True)
    sides = (without[1::2], included[1::2])
    mine, other = sides[event.likely], sides[1 - event.likely]
    bound = lower_bound(event.hits(mine), len(mine), event.hits(other), len(other), delta=DELTA, error=event.error)
    return float(bound)


def _at_most_five_percent(exceeded: int, tried: int) -> bool:
    return binomtest(exceeded, tried, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.slow  # a thousand choices of an event take five seconds
def test_of_a_thousand_nulls_at_most_five_percent_exceed_the_truth() -> None:
    draw = np.random.default_rng(3)
    exceeded = 0
    for number in range(NULLS):
        truth, n = draw.uniform(0, 3), 120
        law = ("response", "laplace", "gaussian")[number % 3]
        if law == "response":
            p = 1 / (1 + math.exp(truth))
            without, included = (draw.random(n) < p) * 1.0, (draw.random(n) > p) * 1.0
        elif law == "laplace":  # scale 1 / epsilon on a shift of 1
            without, included = draw.laplace(0, 1, n), truth + draw.laplace(0, 1, n)
        else:
            without, included = draw.normal(0, 1, n), truth + draw.normal(0, 1, n)
            truth = epsilon(sigma=1 / truth, delta=DELTA)
        exceeded += _measured(without, included) > truth
    assert _at_most_five_percent(exceeded, NULLS)


def _fit(without: np.ndarray, included: np.ndarray, rounds: int = 1) -> GaussianFit:
    found = fitted(without, included, canary="", statistic="", delta=DELTA, rounds=rounds, alike=True)
    assert found is not None
    return found


@pytest.mark.full  # a thousand fits with their tests take three seconds
def test_of_a_thousand_gaussian_nulls_at_most_five_percent_exceed_the_truth_by_fit() -> None:
    draw = np.random.default_rng(4)
    exceeded = missed = refused = 0
    for _ in range(NULLS):
        mu, rounds, n = draw.uniform(0, 4), int(draw.integers(1, 30)), int(draw.integers(60, 400))
        found = _fit(draw.normal(3, 2, n), draw.normal(3 + 2 * mu, 2, n), rounds)
        exceeded += found.mu[0] > mu * math.sqrt(rounds)
        missed += found.mu[2] < mu * math.sqrt(rounds)
        refused += not found.plausible
    assert _at_most_five_percent(exceeded + missed, NULLS)
    assert binomtest(refused, NULLS, 0.01, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize("n", [60, 2000], ids=["few", "many"])
def test_null_scores_give_zero(n: int) -> None:
    """A bound that took a negative shift of one direction for a shift of the other once gave 3.5 and 5.9 here."""
    for seed in range(10):
        draw = np.random.default_rng(seed)
        scores = draw.normal(0, 1, n)
        assert _measured(scores, scores[::-1].copy()) == 0
        assert _fit(scores, scores[::-1].copy()).epsilon[0] == 0
        assert _measured(np.zeros(n), np.zeros(n)) == 0


def test_separated_scores_are_seen_in_either_direction() -> None:
    draw = np.random.default_rng(0)
    a, b = draw.normal(0, 1, 2000), draw.normal(6, 1, 2000)
    assert _measured(a, b) > 5
    assert _measured(b, a) > 5
    assert _fit(a, b).epsilon[0] == pytest.approx(_fit(b, a).epsilon[0])
    assert _fit(a, b).epsilon[0] > 15


def test_other_noise_than_gaussian_is_refused_and_no_noise_has_no_fit() -> None:
    draw = np.random.default_rng(0)
    assert not _fit(draw.laplace(0, 1, 2000), draw.laplace(1, 1, 2000)).plausible
    assert not _fit(draw.normal(0, 1, 2000), draw.normal(1, 2, 2000)).plausible
    assert fitted(np.zeros(100), np.ones(100), canary="", statistic="", delta=DELTA, rounds=1, alike=True) is None
