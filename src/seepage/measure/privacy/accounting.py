"""Compute epsilon from a noise multiplier and rounds, and list reasons to doubt a stated epsilon.

All counting is done by Google's `dp-accounting` (extra `seepage[privacy]`), loaded when first needed.

The guarantee counted is that of one unit joining or leaving: an example for `DPSGD`, a client's whole update for
`GaussianNoise` and `DecayingNoise` with a clip. Noise without a clip has no epsilon. One client's epsilon towards the
server follows from its own rounds; that only the sum is seen, or that clients or examples are drawn at random, would
count only where the server truly does not know who took part.
"""

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

from seepage.errors import SeepageError, not_installed

VACUOUS = 50.0
"""Above this an epsilon is no meaningful guarantee: e^50 is about 5e21."""

_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024, 4096)
"""Renyi orders."""


def epsilon(*, sigma: float, rounds: int = 1, delta: float = 1e-5) -> float:
    """Epsilon after some rounds of one noise multiplier.

    The value is exact: the rounds are together one Gaussian mechanism with `sigma / sqrt(rounds)` (Dong et al. 2022,
    Corollary 3.3), whose epsilon has a closed form (Balle and Wang 2018).

    Args:
        sigma: Standard deviation of the noise over the sensitivity (the clip), at least 0; 0 gives infinity.
        rounds: How often the unit can take part.
        delta: In (0, 1).

    Raises:
        SeepageError: For values out of range, and where `dp-accounting` is missing.

    >>> round(epsilon(sigma=1.0), 3), round(epsilon(sigma=2.0, rounds=4), 3)
    (4.377, 4.377)
    """
    _check(sigma, delta)
    if rounds < 1:
        raise SeepageError(f"privacy accounting needs rounds >= 1, got {rounds}; correct the value")
    return math.inf if sigma == 0 else float(_library().get_epsilon_gaussian(sigma / math.sqrt(rounds), delta))


def epsilons(sigmas: Sequence[float], *, delta: float = 1e-5) -> list[float]:
    """Epsilon after each of several rounds whose noise differs, counted by Renyi accounting (an upper bound).

    Args:
        sigmas: Noise multiplier of each round, such as `[defense.sigma_at(t) for t in range(rounds)]`.
        delta: In (0, 1).

    Raises:
        SeepageError: For values out of range, and where `dp-accounting` is missing.

    >>> spent = epsilons([4.0, 2.0, 1.0])
    >>> spent[0] < spent[1] < spent[2]
    True
    """
    for sigma in sigmas:
        _check(sigma, delta)
    if 0 in sigmas:
        bare = list(sigmas).index(0)
        return [*epsilons(sigmas[:bare], delta=delta), *[math.inf] * (len(sigmas) - bare)]
    library = _library()
    accountant, spent = library.rdp.RdpAccountant(orders=_ORDERS), []
    for sigma in sigmas:
        accountant.compose(library.GaussianDpEvent(sigma))
        spent.append(float(accountant.get_epsilon(delta)))
    return spent


def caveats(*, epsilon: float | None) -> list[str]:
    """Why a stated epsilon, over all rounds, should not be trusted, one sentence each; none where nothing was found.

    >>> caveats(epsilon=100.0)
    ['epsilon = 100 is vacuous (above 50): it bounds odds by a factor of e^epsilon and so promises nothing']
    """
    if epsilon is None or epsilon <= VACUOUS:
        return []
    bounds = "it bounds odds by a factor of e^epsilon and so promises nothing"
    return [f"epsilon = {epsilon:g} is vacuous (above {VACUOUS:g}): {bounds}"]


def _check(sigma: float, delta: float) -> None:
    wrong = [] if 0 <= sigma < math.inf else [f"sigma >= 0, got {sigma}"]
    if not 0 < delta < 1:
        wrong.append(f"delta in (0, 1), got {delta}")
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
    import dp_accounting.rdp

    return dp_accounting
