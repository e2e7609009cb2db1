"""What differential privacy allows any attacker: members identified at a false positive rate, and reconstruction.

A Gaussian mechanism of noise multiplier sigma tells two neighboring inputs apart no better than N(0, 1) from N(mu, 1)
with mu = 1 / sigma (Dong, Roth, Su 2022, Theorem 2.7); rounds add up as mu^2 = sum mu_t^2 (Corollary 3.3). Then

    true positive rate at false positive rate alpha   <=  Phi(Phi^-1(alpha) + mu)
    chance to reconstruct, from a blind chance of kappa   <=  Phi(Phi^-1(kappa) + mu)

The second is reconstruction robustness (Balle, Cherubin, Hayes 2022, Definition 2) in the tight form of Hayes,
Mahloujifar, Balle 2023 (Theorem 2), for the Gaussian mechanism in closed form as in Kaissis et al. 2023.

Which two inputs are neighbors decides on mu. A test on a batch of fixed size asks whether one example or another one
was in it, so the two sums differ by up to twice the clip: mu = 2 / sigma. A reconstruction is compared with no example
at all: mu = 1 / sigma.
"""

import math

from scipy.special import ndtr, ndtri

from seepage.errors import SeepageError
from seepage.federation.types import GaussianMechanism


def gaussian_mu(mechanism: GaussianMechanism, rounds: int = 1, participations: int = 1) -> float | None:
    """Distance mu of presence and absence of one unit after all rounds, in standard deviations of the noise.

    Args:
        mechanism: What the defense states.
        rounds: Rounds in which the unit takes part.
        participations: Local steps of a round that use it; counted where there is noise in every step.

    Returns:
        sqrt(sum 1 / sigma_t^2), infinite without noise; None where nothing is clipped.

    >>> gaussian_mu(GaussianMechanism("update", 1.0, 2.0), rounds=4)
    1.0
    """
    if mechanism.clip is None:
        return None
    sigmas = mechanism.sigma if isinstance(mechanism.sigma, tuple) else (mechanism.sigma,) * rounds
    if 0 in sigmas:
        return math.inf
    steps = participations if mechanism.every_step else 1
    return math.sqrt(steps * sum(sigma**-2 for sigma in sigmas))


def gaussian_tpr(alpha: float, mu: float) -> float:
    """Largest true positive rate at a false positive rate: Phi(Phi^-1(alpha) + mu).

    Also the largest chance to reconstruct an example from a blind chance of `alpha`.

    Args:
        alpha: From 0 to 1.
        mu: At least 0; infinity gives 1, unless alpha is 0.

    >>> round(gaussian_tpr(0.01, 1.0), 4), gaussian_tpr(0.01, 0.0)
    (0.0924, 0.01)
    """
    if not 0 <= alpha <= 1:
        raise SeepageError(f"alpha is a share from 0 to 1, got {alpha}; correct it")
    if not mu >= 0:
        raise SeepageError(f"mu is a distance of at least 0, got {mu}; pass 1 / sigma")
    if alpha in (0.0, 1.0):
        return alpha
    if mu == 0:
        return alpha
    return float(ndtr(ndtri(alpha) + mu))


def gaussian_auc(mu: float) -> float:
    """Largest area under the ROC curve: Phi(mu / sqrt(2)).

    >>> gaussian_auc(0.0), round(gaussian_auc(1.0), 3)
    (0.5, 0.76)
    """
    return float(ndtr(mu / math.sqrt(2)))
