"""Compute epsilon from a noise multiplier and rounds, and list reasons to doubt a stated epsilon.

All counting is done by Google's `dp-accounting` (extra `seepage[privacy]`), loaded when first needed.

The guarantee counted is that of one unit joining or leaving: an example for `DPSGD`, a client's whole update for
`GaussianNoise` and `DecayingNoise` with a clip. Noise without a clip has no epsilon. One client's epsilon towards the
server follows from its own rounds; that only the sum is seen, or that clients are drawn at random, counts only where
the server truly does not know who took part.
"""

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

from seepage.errors import SeepageError, not_installed

VACUOUS = 50.0
"""Above this an epsilon is no meaningful guarantee: e^50 is about 5e21."""

_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024, 4096)
"""Renyi orders. Whole ones only: the series for others does not converge at large sampling rates."""


def epsilon(*, sigma: float, rounds: int = 1, sample_rate: float = 1.0, delta: float = 1e-5) -> float:
    """Epsilon after some rounds of one noise multiplier.

    Without sampling the value is exact: the rounds are together one Gaussian mechanism with `sigma / sqrt(rounds)`
    (Dong et al. 2022, Corollary 3.3), whose epsilon has a closed form (Balle and Wang 2018). With sampling the
    privacy-loss distribution is composed numerically; where Renyi accounting finds more than `VACUOUS` its looser
    bound is returned instead, because the tight one would take minutes and gigabytes to say the same.

    Args:
        sigma: Standard deviation of the noise over the sensitivity (the clip), at least 0; 0 gives infinity.
        rounds: How often the unit can take part.
        sample_rate: Chance in (0, 1] that the unit is in a round, independently (Poisson sampling).
        delta: In (0, 1).

    Raises:
        SeepageError: For values out of range, and where `dp-accounting` is missing.

    >>> round(epsilon(sigma=1.0), 3), round(epsilon(sigma=2.0, rounds=4), 3)
    (4.377, 4.377)
    """
    _check(sigma=sigma, delta=delta, sample_rate=sample_rate, rounds=rounds)
    if sigma == 0:
        return math.inf
    library = _library()
    if sample_rate == 1:
        return float(library.get_epsilon_gaussian(sigma / math.sqrt(rounds), delta))
    event = library.SelfComposedDpEvent(_event(library, sigma, sample_rate), rounds)
    loose = _renyi(library, event, delta)
    if loose > VACUOUS:
        return loose
    tight = library.pld.PLDAccountant()
    tight.compose(event)
    return min(loose, float(tight.get_epsilon(delta)))


def epsilons(sigmas: Sequence[float], *, sample_rate: float = 1.0, delta: float = 1e-5) -> list[float]:
    """Epsilon after each of several rounds whose noise differs, counted by Renyi accounting (an upper bound).

    Args:
        sigmas: Noise multiplier of each round, such as `[defense.sigma_at(t) for t in range(rounds)]`.
        sample_rate: Chance in (0, 1] that the unit is in a round, independently.
        delta: In (0, 1).

    Raises:
        SeepageError: For values out of range, and where `dp-accounting` is missing.

    >>> spent = epsilons([4.0, 2.0, 1.0])
    >>> spent[0] < spent[1] < spent[2]
    True
    """
    for sigma in sigmas:
        _check(sigma=sigma, delta=delta, sample_rate=sample_rate)
    if 0 in sigmas:
        bare = list(sigmas).index(0)
        return [*epsilons(sigmas[:bare], sample_rate=sample_rate, delta=delta), *[math.inf] * (len(sigmas) - bare)]
    library = _library()
    accountant, spent = library.rdp.RdpAccountant(orders=_ORDERS), []
    for sigma in sigmas:
        accountant.compose(_event(library, sigma, sample_rate))
        spent.append(float(accountant.get_epsilon(delta)))
    return spent


def sigma_for(*, epsilon: float, rounds: int = 1, sample_rate: float = 1.0, delta: float = 1e-5) -> float:
    """The smallest noise multiplier that keeps an epsilon, as the accountant counts it.

    Without sampling from the exact Gaussian mechanism, with sampling by a search over Renyi accounting.

    Args:
        epsilon: To be kept after all rounds, greater than 0.
        rounds: How often the unit can take part.
        sample_rate: Chance in (0, 1] that the unit is in a round, independently.
        delta: In (0, 1).

    Raises:
        SeepageError: For values out of range, and where `dp-accounting` is missing.

    >>> round(sigma_for(epsilon=1.0), 3)
    3.731
    """
    _check(epsilon=epsilon, delta=delta, sample_rate=sample_rate, rounds=rounds)
    library = _library()
    if sample_rate == 1:
        return float(library.get_sigma_gaussian(epsilon, delta)) * math.sqrt(rounds)
    found = library.calibrate_dp_mechanism(
        lambda: library.rdp.RdpAccountant(orders=_ORDERS),
        lambda sigma: library.SelfComposedDpEvent(_event(library, sigma, sample_rate), rounds),
        epsilon,
        delta,
        library.LowerEndpointAndGuess(0, 1),
    )
    return float(found)


def caveats(
    *,
    epsilon: float | None = None,
    classical: bool = False,
    sensitivity: float | None = None,
    clip: float | None = None,
) -> list[str]:
    """Why a stated epsilon should not be trusted, one sentence each; none where nothing was found.

    Args:
        epsilon: The epsilon stated, over all rounds.
        classical: Whether sigma or epsilon came from a formula such as `sqrt(2 ln(1.25 / delta)) / epsilon`.
        sensitivity: The sensitivity the noise was scaled to.
        clip: The norm updates or examples are clipped to.

    >>> caveats(epsilon=100.0)
    ['epsilon = 100 is vacuous (above 50): it bounds odds by a factor of e^epsilon and so promises nothing']
    >>> caveats(epsilon=0.5, classical=True, sensitivity=1.0, clip=1.0)
    []
    """
    found = []
    if epsilon is not None and epsilon > VACUOUS:
        found.append(
            f"epsilon = {epsilon:g} is vacuous (above {VACUOUS:g}): it bounds odds by a factor of e^epsilon and so "
            "promises nothing"
        )
    if classical and epsilon is not None and epsilon >= 1:
        found.append(
            f"the classical Gaussian formula is proved for epsilon < 1 only, and gave epsilon = {epsilon:g}; "
            "use seepage.measure.privacy.accounting.epsilon or sigma_for"
        )
    if sensitivity is not None and clip is not None and sensitivity < clip:
        found.append(
            f"the noise was scaled to a sensitivity of {sensitivity:g} and updates may be as long as the clip norm "
            f"{clip:g}, so the true epsilon is larger than stated; scale the noise to the clip norm"
        )
    if sensitivity is not None and clip is None:
        found.append(
            f"a sensitivity of {sensitivity:g} was assumed and nothing is clipped to it, so no epsilon holds; "
            "set a clip"
        )
    return found


def _check(
    *,
    delta: float,
    sigma: float | None = None,
    epsilon: float | None = None,
    sample_rate: float = 1.0,
    rounds: int = 1,
) -> None:
    wrong = []
    if sigma is not None and not 0 <= sigma < math.inf:
        wrong.append(f"sigma >= 0, got {sigma}")
    if epsilon is not None and not 0 < epsilon < math.inf:
        wrong.append(f"epsilon > 0, got {epsilon}")
    if not 0 < delta < 1:
        wrong.append(f"delta in (0, 1), got {delta}")
    if not 0 < sample_rate <= 1:
        wrong.append(f"sample_rate in (0, 1], got {sample_rate}")
    if rounds < 1:
        wrong.append(f"rounds >= 1, got {rounds}")
    if wrong:
        raise SeepageError(f"privacy accounting needs {'; '.join(wrong)}; correct the value")


def check_installed() -> None:
    """Whether an epsilon can be counted here; to be asked before anything long begins.

    Raises:
        SeepageError: Where `dp-accounting` is missing.
    """
    if importlib.util.find_spec("dp_accounting") is None:
        raise not_installed("dp-accounting, which counts epsilon,", "privacy")


def _library() -> Any:
    check_installed()
    import dp_accounting
    import dp_accounting.pld
    import dp_accounting.rdp

    return dp_accounting


def _event(library: Any, sigma: float, sample_rate: float) -> Any:
    gaussian = library.GaussianDpEvent(sigma)
    return gaussian if sample_rate == 1 else library.PoissonSampledDpEvent(sample_rate, gaussian)


def _renyi(library: Any, event: Any, delta: float) -> float:
    accountant = library.rdp.RdpAccountant(orders=_ORDERS)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))
