"""Numbers that may tell an output with the canary from one without: learned on some outputs, used on others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from seepage.measure.privacy.measured.canaries import Array

Score: TypeAlias = Callable[[Array], Array]
"""Scores `[n]` of outputs `[n, d]`."""
MOST_ATOMS = 8
"""Distinct exact values of one entry that a statistic distinguishes, where a filter sends such values."""
FEWEST_REPEATS = 3
"""How often a value must come up among the outputs that a statistic is learned from to count as an exact one."""


@dataclass(frozen=True)
class Statistic:
    """A score of a filter's outputs, by which trials with and without the canary are distinguished.

    Attributes:
        name: Which part of the output it reads, in words.
        score: From outputs `[n, d]` to scores `[n]`.
        linear: It is linear in the output, so that Gaussian noise leaves it Gaussian.
        learned: It was fitted to outputs, so that it is less reliable where these are few.
        weights: `[rounds]` weight of each round of a trial; None: all equal.
    """

    name: str
    score: Score
    linear: bool = False
    learned: bool = True
    weights: Array | None = None

    def of_trials(self, outputs: Array) -> Array:
        """The weighted sum over the rounds of each trial: `[trials, rounds, d]` to `[trials]`."""
        trials, rounds, width = outputs.shape
        scores = self.score(outputs.reshape(-1, width)).reshape(trials, rounds)
        found: Array = scores.sum(1) if self.weights is None else scores @ self.weights
        return found

    def weighted(self, without: Array, included: Array) -> "Statistic":
        """With the weights of Fisher's discriminant for rounds whose noise differs: (m1 - m0) / v in each."""
        if without.shape[1] == 1 or not self.linear:
            return self
        a, b = (self.score(y.reshape(-1, y.shape[-1])).reshape(y.shape[:2]) for y in (without, included))
        spread = (a.var(0) + b.var(0)) / 2
        weights = (b.mean(0) - a.mean(0)) / np.maximum(spread, 1e-12 * spread.max() + 1e-300)
        largest = np.abs(weights).max()
        return replace(self, weights=weights / largest) if largest > 0 else self


def statistics_of(without: Array, included: Array, direction: Array | None) -> list[Statistic]:
    """The statistics for one pair of inputs.

    Args:
        without: `[m, rounds, d]` outputs to learn from, without the canary.
        included: `[n, rounds, d]` outputs with it.
        direction: `[d]` the canary, where it is known.
    """
    width = without.shape[-1]
    of_one = _of_one_round(without.reshape(-1, width), included.reshape(-1, width), direction)
    return [statistic.weighted(without, included) for statistic in of_one]


def _of_one_round(without: Array, included: Array, direction: Array | None) -> list[Statistic]:
    """The same for outputs `[n, d]` of single rounds."""
    a, b = _finite(without), _finite(included)
    found = []
    if direction is not None and np.any(direction):
        unit = direction / np.sqrt(direction @ direction)
        found.append(Statistic("projection on the canary", lambda y: _finite(y) @ unit, linear=True, learned=False))
    m0, m1, v0, v1 = a.mean(0), b.mean(0), a.var(0), b.var(0)
    if np.any(m0 != m1):
        # Fisher's direction with a diagonal covariance: (m1 - m0) / v. A constant entry gets a small variance.
        weight = (m1 - m0) / np.maximum((v0 + v1) / 2, _floor(v0, v1))
        weight /= np.abs(weight).max()
        found.append(Statistic("difference of means", lambda y: _finite(y) @ weight, linear=True))
    found.append(_likelihood(m0, m1, v0, v1))
    found.append(Statistic("norm", lambda y: np.sqrt(np.square(_finite(y)).sum(1))))
    found.append(Statistic("largest entry", lambda y: np.abs(_finite(y)).max(1)))
    exact = _exact_values(without, included)
    return found if exact is None else [*found, exact]


def _finite(y: Array) -> Array:
    return np.nan_to_num(y, nan=0.0, posinf=1e30, neginf=-1e30)


def _floor(v0: Array, v1: Array) -> float:
    return float(1e-12 * max(v0.max(), v1.max()) + 1e-30)


def _likelihood(m0: Array, m1: Array, v0: Array, v1: Array) -> Statistic:
    """The log likelihood ratio of two Gaussians with diagonal covariance; sees a spread that depends on the input."""
    floor = _floor(v0, v1)
    v0, v1 = np.maximum(v0, floor), np.maximum(v1, floor)

    def score(y: Array) -> Array:
        # log N(y; m1, v1) - log N(y; m0, v0), entry by entry, up to a constant. A cap keeps sums finite.
        y = _finite(y)
        ratio = (np.square(y - m0) / v0 - np.square(y - m1) / v1) / 2
        found: Array = np.clip(ratio, -1e12, 1e12).sum(1)
        return found

    return Statistic("mean and spread", score)


def _exact_values(without: Array, included: Array) -> Statistic | None:
    """How much likelier the exact values among the entries are with the canary; None where no value ever repeats.

    A filter that lets a true value through, or a zero, sends the same bits again and again; noise does not.
    """
    tables = []
    for j in range(without.shape[1]):
        table = _atoms(_bits(without[:, j]), _bits(included[:, j]))
        if table is not None:
            tables.append((j, *table))
    if not tables:
        return None

    def score(y: Array) -> Array:
        total = np.zeros(len(y))
        for j, values, ratios, other in tables:
            bits = _bits(y[:, j])
            place = np.minimum(np.searchsorted(values, bits), len(values) - 1)
            total += np.where(values[place] == bits, ratios[place], other)
        return total

    return Statistic("exact values", score)


def _bits(column: Array) -> np.ndarray:
    """Each number's bits, so that NaN, which stands for what was left out, equals itself, and -0 equals 0."""
    return np.ascontiguousarray(column + 0.0).view(np.int64)


def _atoms(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Array, float] | None:
    """Repeated values, sorted, the log ratio of their shares in b and a, and that of all others."""
    values, counts = np.unique(np.concatenate([a, b]), return_counts=True)
    kept = np.flatnonzero(counts >= FEWEST_REPEATS)
    if not len(kept):
        return None
    kept = np.sort(kept[np.argsort(-counts[kept], kind="stable")[:MOST_ATOMS]])
    values = values[kept]
    in_a = np.array([(a == value).sum() for value in values], dtype=float)
    in_b = np.array([(b == value).sum() for value in values], dtype=float)
    # Half a count more for each value keeps the logarithms finite (Krichevsky and Trofimov 1981).
    ratios = np.log((in_b + 0.5) / (len(b) + 1)) - np.log((in_a + 0.5) / (len(a) + 1))
    other = np.log((len(b) - in_b.sum() + 0.5) / (len(b) + 1)) - np.log((len(a) - in_a.sum() + 0.5) / (len(a) + 1))
    return (values, ratios, float(other)) if np.any(ratios) or other else None
