"""A lower bound of epsilon from the frequencies of an event with and without the canary, without further assumptions.

A mechanism that is (epsilon, delta)-private has P(S | x) <= e^epsilon P(S | x') + delta for every event S and all
neighbors x, x' (Dwork and Roth 2014, Definition 2.4). So ln((P(S | x) - delta) / P(S | x')) never exceeds epsilon.
Here the probabilities are replaced by the ends of two intervals of Clopper and Pearson (1934), the lower end of the
first and the upper end of the second; the bound then fails at most with the chance that one of the intervals fails.
The event is fixed on other outputs than those that are counted.

"Condition" below: with the canary (x) or without it (x').
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seepage.measure.privacy.measured.canaries import Array

ERROR = 0.05
"""Largest chance that a bound exceeds the true epsilon: bounds hold with 95 % confidence."""
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
"""Shares of the trials that may go to the likely condition; the best is chosen.

Small ones are tried since the other condition, whose upper end is divided by, needs many trials for a small rate.
"""
ERRORS = (0.002, 0.01, 0.025)
"""Parts of `ERROR` (0.05) that may go to the likely condition's interval; the rest goes to the other's."""
MIN_P_NORMAL = 0.01
"""P-value of normality below which shares are estimated by counting, not by the normal law.

It steers only the choice of the event; no bound rests on it.
"""
FEWEST_FOR_NORMAL = 8
"""Scores below which normality is not tested: `scipy.stats.normaltest` needs 8."""
MOST_FOR_SHAPIRO = 5000
"""Scores up to which scipy states that the p-value of Shapiro and Wilk's test is accurate."""
MIN_SPREAD = 1e-12
"""Standard deviation, as a share of the largest score, up to which float64 scores count as constant."""
FEW_IN_TAIL = 5
"""Scores in a tail below which its share is estimated by the normal law: a count of 4 is uncertain by 50 %."""
TAILS = np.logspace(-4, math.log10(0.9), 24)
"""Shares of a condition's scores above the thresholds that are tried, from 0.0001 to 0.9, evenly in the logarithm."""


@dataclass(frozen=True)
class Event:
    """The event `sign * score >= threshold` of a trial.

    Attributes:
        likely: The condition under which it is likelier: 1 with the canary, 0 without.
        sign: 1 or -1.
        threshold: The threshold, in the unit of `sign * score`.
        share: Share of the trials that goes to the likely condition.
        error: Part of `ERROR` that goes to the likely condition's interval.
        expected: Lower bound of epsilon that was expected when the event was fixed.
    """

    likely: int
    sign: int
    threshold: float
    share: float
    error: float
    expected: float

    def hits(self, scores: Array) -> int:
        """Number of `[n]` scores for which the event happened."""
        return int((self.sign * scores >= self.threshold).sum())


def lower_bound(
    hits: Array | float,
    trials: Array | float,
    false_hits: Array | float,
    false_trials: Array | float,
    *,
    delta: float,
    error: Array | float,
) -> Array:
    """Lower bound of epsilon from counts, elementwise; it exceeds the true one with a chance of `ERROR` at most.

    Args:
        hits: Trials of the likely condition in which the event happened.
        trials: All trials of the likely condition.
        false_hits: Trials of the other condition in which the event happened.
        false_trials: All trials of the other condition.
        delta: In (0, 1).
        error: Chance that the likely condition's interval fails; `ERROR - error` is left to the other's.

    Returns:
        The bounds, at least 0, in the shape to which the arguments broadcast.

    >>> float(lower_bound(100, 100, 0, 100, delta=1e-5, error=0.025).round(2))
    3.28
    """
    from scipy.special import betaincinv

    k1, n1, k0, n0 = (np.asarray(value, dtype=float) for value in (hits, trials, false_hits, false_trials))
    # One-sided ends of Clopper and Pearson: quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k).
    low = np.where(k1 > 0, betaincinv(np.maximum(k1, 1e-9), n1 - k1 + 1, error), 0.0)
    high = np.where(k0 < n0, betaincinv(k0 + 1, np.maximum(n0 - k0, 1e-9), 1 - (ERROR - np.asarray(error))), 1.0)
    found: Array = np.log(np.maximum(low - delta, 1e-300) / high)
    return np.maximum(found, 0.0)


def best_event(
    without: Array,
    included: Array,
    trials: float,
    delta: float,
    *,
    quick: bool = False,
) -> Event:
    """The event with the largest expected bound, by the scores of trials that are not counted afterwards.

    Args:
        without: `[m]` scores without the canary.
        included: `[n]` scores with it.
        trials: Number of trials that will be counted, of both conditions together.
        delta: In (0, 1).
        quick: Try one division of the trials only, for comparing statistics.
    """
    tried, errors = ((0.2,), (0.01,)) if quick else (SHARES, ERRORS)
    best: Event | None = None
    for likely, sign in ((1, 1), (0, -1), (1, -1), (0, 1)):
        mine, other = (included, without) if likely else (without, included)
        found = _best_threshold(sign * mine, sign * other, trials, delta, tried, errors)
        threshold, share, error, expected = found
        if best is None or expected > best.expected:
            best = Event(likely, sign, threshold, share, error, expected)
    assert best is not None
    return best


def _best_threshold(
    mine: Array, other: Array, trials: float, delta: float, shares: tuple[float, ...], errors: tuple[float, ...]
) -> tuple[float, float, float, float]:
    """The threshold and division of trials with the largest expected bound.

    Args:
        mine: `[n]` signed scores under the likely condition.
        other: `[m]` signed scores under the other.
        trials: Number of trials that will be counted.
        delta: In (0, 1).
        shares: Shares of the trials for the likely condition that are tried.
        errors: Parts of `ERROR` for the likely condition that are tried; with one, every second threshold is tried.

    Returns:
        Threshold, share, error, and expected bound of epsilon.
    """
    thresholds = _thresholds(mine, other)[:: 1 if len(errors) > 1 else 2]
    apart = (thresholds > other.max()) & (thresholds <= mine.min())
    p1, p0 = _share_above(mine, thresholds, apart), _share_above(other, thresholds, apart)
    share, error = (axis.ravel()[:, None] for axis in np.meshgrid(shares, errors))
    n1, n0 = np.maximum(share * trials, 1.0), np.maximum((1 - share) * trials, 1.0)
    expected = lower_bound(p1 * n1, n1, p0 * n0, n0, delta=delta, error=error)  # [divisions, thresholds]
    row = int(expected.max(1).argmax())
    # Where many thresholds are equally good, as in a gap between the two conditions, the one in the middle is safest.
    tied = np.flatnonzero(expected[row] >= expected[row].max() - 1e-9)
    middle = (thresholds[tied[0]] + thresholds[tied[-1]]) / 2
    column = int(tied[np.abs(thresholds[tied] - middle).argmin()])
    return (
        float(thresholds[column]),
        float(share[row, 0]),
        float(error[row, 0]),
        float(expected[row, column]),
    )


def _thresholds(mine: Array, other: Array) -> Array:
    """`[m]` sorted thresholds to try, for signed scores `[n]` under the likely condition and under the other."""
    ends = [*_tail_points(mine), *_tail_points(other)]
    low, high = float(other.max()), float(mine.min())
    if low < high:  # a gap between the conditions
        ends.append(np.linspace(low, high, 9)[1:-1])
    found = np.unique(np.concatenate(ends))
    # Midpoints, so that no threshold is an observed value and rounding decides nothing.
    return np.unique(np.concatenate([(found[1:] + found[:-1]) / 2, [found[-1]]])) if len(found) > 1 else found


def _tail_points(scores: Array) -> Iterator[Array]:
    """Thresholds at the quantiles of `TAILS`, and every quarter of a standard deviation from -4 to 4.5."""
    yield np.quantile(scores, 1 - TAILS)
    deviation = float(scores.std())
    if deviation > 0:
        yield scores.mean() + deviation * np.linspace(-4, 4.5, 35)


def _share_above(scores: Array, thresholds: Array, apart: npt.NDArray[np.bool_]) -> Array:
    """`[m]` estimated shares of scores at or above each threshold. They steer the choice; no bound rests on them.

    Args:
        scores: `[n]` scores.
        thresholds: `[m]` thresholds.
        apart: `[m]` bool: whether a threshold lies in a gap between the two conditions.
    """
    n = len(scores)
    count = n - np.searchsorted(np.sort(scores), thresholds, side="left")
    if p_normal(scores) < MIN_P_NORMAL:
        # Half a score more on either side of the threshold; in a gap the counts stand as they are.
        return np.where(apart, count / n, (count + 0.5) / (n + 1))
    from scipy.special import ndtr

    normal = ndtr((scores.mean() - thresholds) / scores.std())  # [m]
    found: Array = np.where((count < FEW_IN_TAIL) | (count > n - FEW_IN_TAIL), normal, count / n)
    return found


def p_normal(scores: Array) -> float:
    """P-value of the hypothesis that the scores are normal; 0 for few scores and for constant ones.

    Up to `MOST_FOR_SHAPIRO` scores by Shapiro and Wilk (1965), whose error rate holds in small samples too, and beyond
    by D'Agostino and Pearson (1973).

    Args:
        scores: `[n]` scores.
    """
    from scipy.stats import normaltest, shapiro

    # `not >`: a NaN among the scores gives 0 too.
    if len(scores) < FEWEST_FOR_NORMAL or not scores.std() > MIN_SPREAD * np.abs(scores).max():
        return 0.0
    centered = (scores - scores.mean()) / scores.std()
    test = shapiro if len(scores) <= MOST_FOR_SHAPIRO else normaltest
    found = float(test(centered).pvalue)
    return found if math.isfinite(found) else 0.0
