"""A lower bound of epsilon from how often an event happens with and without the canary; it assumes nothing else.

A mechanism that is (epsilon, delta)-private has P(S | x) <= e^epsilon P(S | x') + delta for every event S and all
neighbors x, x' (Dwork and Roth 2014, Definition 2.4). So ln((P(S | x) - delta) / P(S | x')) never exceeds epsilon,
and with the ends of two intervals of Clopper and Pearson (1934) in place of the probabilities it exceeds it with the
chance that one of these fails, at most. The event is fixed on other outputs than those that are counted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seepage.measure.privacy.measured.canaries import Array

ERROR = 0.05
"""The chance that a bound exceeds the true epsilon, at most."""
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
"""Parts of the trials that may go to the input under which the event is likely."""
ERRORS = (0.002, 0.01, 0.025)
"""Parts of `ERROR` that may go to its probability; the rest goes to that of the other input."""
MIN_P_NORMAL = 0.01
TAILS = np.logspace(-4, math.log10(0.9), 24)
"""Shares of either side's scores above the thresholds that are tried."""


@dataclass(frozen=True)
class Event:
    """The score of a trial, times a sign, is at least a threshold.

    Attributes:
        likely: The side under which it is the likelier: 1 with the canary, 0 without.
        sign: 1 or -1.
        threshold: The threshold.
        share: Part of the trials that goes to the likelier side.
        error: Part of `ERROR` that goes to the likelier side's probability.
        expected: The bound that was expected when the event was fixed.
    """

    likely: int
    sign: int
    threshold: float
    share: float
    error: float
    expected: float

    def hits(self, scores: Array) -> int:
        """How often it happened."""
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
        hits: Trials of the likelier side in which the event happened.
        trials: All its trials.
        false_hits: Trials of the other side in which it happened.
        false_trials: All its trials.
        delta: In (0, 1).
        error: Chance that the likelier side's interval fails; `ERROR` less this is left to the other's.

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
    shares: tuple[float, float] | None = None,
) -> Event:
    """The event with the largest expected bound, by the scores of trials that are not counted afterwards.

    Args:
        without: `[m]` scores without the canary.
        included: `[n]` scores with it.
        trials: How many trials will be counted, of both sides together.
        delta: In (0, 1).
        quick: Try one division of the trials only, for comparing statistics.
        shares: The parts of the trials that are with and without the canary, where that cannot be chosen.
    """
    tried, errors = ((0.2,), (0.01,)) if quick else (SHARES, ERRORS)
    best: Event | None = None
    for likely, sign in ((1, 1), (0, -1), (1, -1), (0, 1)):
        mine, other = (included, without) if likely else (without, included)
        fixed = tried if shares is None else (shares[1 - likely],)
        found = _best_threshold(sign * mine, sign * other, trials, delta, fixed, errors)
        threshold, share, error, expected = found
        if best is None or expected > best.expected:
            best = Event(likely, sign, threshold, share, error, expected)
    assert best is not None
    return best


def _best_threshold(
    mine: Array, other: Array, trials: float, delta: float, shares: tuple[float, ...], errors: tuple[float, ...]
) -> tuple[float, float, float, float]:
    thresholds = _thresholds(mine, other)[:: 1 if len(errors) > 1 else 2]
    apart = (thresholds > other.max()) & (thresholds <= mine.min())
    p1, p0 = _share_above(mine, thresholds, apart), _share_above(other, thresholds, apart)
    share, error = (axis.ravel()[:, None] for axis in np.meshgrid(shares, errors))
    n1, n0 = np.maximum(share * trials, 1.0), np.maximum((1 - share) * trials, 1.0)
    expected = lower_bound(p1 * n1, n1, p0 * n0, n0, delta=delta, error=error)  # [divisions, thresholds]
    row = int(expected.max(1).argmax())
    # Where many thresholds are equally good, as in a gap between the two sides, the one in the middle is safest.
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
    ends = [*_tail_points(mine), *_tail_points(other)]
    low, high = float(other.max()), float(mine.min())
    if low < high:  # a gap between the sides
        ends.append(np.linspace(low, high, 9)[1:-1])
    found = np.unique(np.concatenate(ends))
    # Midpoints, so that no threshold is an observed value and rounding decides nothing.
    return np.unique(np.concatenate([(found[1:] + found[:-1]) / 2, [found[-1]]])) if len(found) > 1 else found


def _tail_points(scores: Array) -> Iterator[Array]:
    yield np.quantile(scores, 1 - TAILS)
    deviation = float(scores.std())
    if deviation > 0:
        yield scores.mean() + deviation * np.linspace(-4, 4.5, 35)


def _share_above(scores: Array, thresholds: Array, apart: npt.NDArray[np.bool_]) -> Array:
    """The estimated share of scores at or above each threshold; it steers the choice, and no bound rests on it.

    Args:
        scores: `[n]` scores.
        thresholds: `[m]` thresholds.
        apart: `[m]` whether a threshold lies in a gap between the two sides.
    """
    n = len(scores)
    count = n - np.searchsorted(np.sort(scores), thresholds, side="left")
    if p_normal(scores) < MIN_P_NORMAL:
        # Half a score more on either side; in a gap the sides are taken to be as separate as they look.
        return np.where(apart, count / n, (count + 0.5) / (n + 1))
    from scipy.special import ndtr

    # Far in the tails, where fewer than 5 scores lie, the normal law says more than the count.
    normal = ndtr((scores.mean() - thresholds) / scores.std())
    found: Array = np.where((count < 5) | (count > n - 5), normal, count / n)
    return found


def p_normal(scores: Array) -> float:
    """P-value of a test of normality; 0 where there is no spread.

    Up to 5,000 scores by Shapiro and Wilk (1965), which holds its error in small samples too, and beyond by
    D'Agostino and Pearson (1973).
    """
    from scipy.stats import normaltest, shapiro

    if len(scores) < 8 or not scores.std() > 1e-12 * np.abs(scores).max():
        return 0.0
    centered = (scores - scores.mean()) / scores.std()
    found = float((shapiro if len(scores) <= 5000 else normaltest)(centered).pvalue)
    return found if math.isfinite(found) else 0.0
