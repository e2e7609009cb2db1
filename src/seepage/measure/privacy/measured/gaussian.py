"""The epsilon of Gaussian noise fitted to a score: what few calls can tell of very weak noise, by assumption.

Where a score of the output is N(m0, s^2) without the canary and N(m1, s^2) with it, telling the two apart is as hard as
telling N(0, 1) from N(mu, 1) with mu = |m1 - m0| / s (Gaussian differential privacy, Dong et al. 2022, Definition 2.6),
and the filter is no more private than that. That the score is normal far out in its tails too is an assumption, which
no sample can test; what can be tested, is.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.measured.canaries import Array
from seepage.measure.privacy.measured.events import ERROR, p_normal

MIN_P = 0.01 / 3
"""Three tests refuse the assumption of true Gaussian noise in 1 % of cases together."""


@dataclass(frozen=True, kw_only=True)
class GaussianFit:
    """Gaussian noise fitted to a linear score. All of it holds by assumption.

    Attributes:
        canary: The canary.
        statistic: The score.
        mu: `(low, fitted, high)`: the canary's shift over the noise's deviation, over all rounds.
        epsilon: The epsilon of Gaussian noise with these; `low` exceeds the truth with a chance of 5 % at most, by
            the assumption.
        p_normal: Smaller p-value of two normality tests, without and with the canary.
        p_spread: P-value of the test that both have the same spread.
        calls: How many outputs it was fitted to.
        alike: The rounds were taken to be alike and independent, and one was measured: mu of r rounds is sqrt(r) mu
            (Dong et al. 2022, Corollary 3.3). Else trials of all rounds were.
    """

    canary: str
    statistic: str
    mu: tuple[float, float, float]
    epsilon: tuple[float, float, float]
    p_normal: float
    p_spread: float
    calls: int
    alike: bool

    @property
    def plausible(self) -> bool:
        """Whether no test refuses the assumption."""
        return min(self.p_normal, self.p_spread) >= MIN_P

    def table(self) -> dict[str, Any]:
        """As JSON; infinity is the word `Infinity`."""
        return {**asdict(self), "plausible": self.plausible}


def fitted(
    without: Array, included: Array, *, canary: str, statistic: str, delta: float, rounds: int, alike: bool
) -> GaussianFit | None:
    """Fit two normal laws of one deviation; None where the scores have no spread.

    The ends of mu are conservative: those of the difference of means (Welch and Student, error 3 %) over those of the
    deviation (chi-squared, error 2 %), which fail together in 5 % of cases at most.

    Args:
        without: `[m]` scores without the canary.
        included: `[n]` scores with it.
        canary: For the record.
        statistic: For the record.
        delta: In (0, 1).
        rounds: Rounds that are composed, where each score is of one of these.
        alike: For the record.
    """
    from scipy.stats import chi2
    from scipy.stats import t as student

    m, n = len(without), len(included)
    free = m + n - 2
    if free < 10:
        return None
    pooled = math.sqrt((without.var(ddof=1) * (m - 1) + included.var(ddof=1) * (n - 1)) / free)
    shift = abs(float(included.mean() - without.mean()))
    if not pooled > 1e-12 * max(np.abs(without).max(), np.abs(included).max()):
        return None
    # |m1 - m0| +- t s sqrt(1/m + 1/n), with s^2 free / chi2 for the variance.
    reach = float(student.isf(0.6 * ERROR / 2, free)) * pooled * math.sqrt(1 / m + 1 / n)
    widest = pooled * math.sqrt(free / chi2.ppf(0.4 * ERROR / 2, free))
    narrowest = pooled * math.sqrt(free / chi2.isf(0.4 * ERROR / 2, free))
    root = math.sqrt(rounds)
    ends = (max(0.0, shift - reach) / widest, shift / pooled, (shift + reach) / narrowest)
    low, middle, high = (root * end for end in ends)
    return GaussianFit(
        canary=canary,
        statistic=statistic,
        mu=(low, middle, high),
        epsilon=(_epsilon(low, delta), _epsilon(middle, delta), _epsilon(high, delta)),
        p_normal=min(p_normal(without), p_normal(included)),
        p_spread=_p_spread(without, included),
        calls=m + n,
        alike=alike,
    )


def _epsilon(mu: float, delta: float) -> float:
    # The total variation of N(0, 1) and N(mu, 1) is at most mu / sqrt(2 pi); within delta it is (0, delta)-private.
    if mu / math.sqrt(2 * math.pi) <= delta:
        return 0.0
    with np.errstate(all="ignore"):
        return epsilon(sigma=1 / mu, delta=delta)


def _p_spread(a: Array, b: Array) -> float:
    """Two-sided F test of equal variances."""
    from scipy.stats import f

    ratio = float(a.var(ddof=1) / max(b.var(ddof=1), 1e-300))
    below = float(f.cdf(ratio, len(a) - 1, len(b) - 1))
    return 2 * min(below, 1 - below)
