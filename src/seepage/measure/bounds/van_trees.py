"""The least mean squared error of any estimator under noise, on average over a prior (van Trees 1968).

With the update y = f(x) + noise, J its Jacobian by the inputs at the truth, s the noise's deviation in each number and
Sigma the covariance of what an attacker knows beforehand,

    E ||x - estimate||^2  >=  tr K,   K = (J^T J / s^2 + Sigma^-1)^-1 = S (I + S J^T J S / s^2)^-1 S,   S = Sigma^(1/2).

J^T J / s^2 is the Fisher information of Gaussian noise; of Laplace noise of scale b it is J^T J / b^2. Rounds
at the same weights add up: R J^T J / s^2. van Trees averages J^T J over the prior; here it is that of the truth, so the
bound holds to first order: for noise that is small enough that f is near its linearization over what it hides. For a
linear update and this prior it is attained, by the posterior's mean.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.nn import generator
from seepage.base.solvers import conjugate_gradients
from seepage.measure.bounds.jacobian import UpdateJacobian
from seepage.measure.bounds.prior import GaussianPrior

DENSE = 2048
"""Private numbers up to which a rank is computed; that takes some twenty seconds."""

SMALL = 512
"""Private numbers up to which the error under noise is computed, too; it is estimated sooner for more."""

ROUNDING = 2.0**-23
"""Relative size, over the largest, of a singular value that the rounding of single precision hides."""

LEAST_PROBES, MOST_PROBES, LEAST_STEPS, MOST_ITERATIONS = 4, 64, 10, 400
ENOUGH = 0.01
"""Relative standard error of the trace at which no further probes are taken."""


@dataclass(frozen=True)
class LeastError:
    """The least mean squared error, in squared units of the inputs.

    Attributes:
        mean: Over all values of the batch.
        interval: 95 % interval of its estimation.
        examples: `[n]` over the values of each example.
        exact: Whether it was computed from the whole matrix.
        converged: Whether every system was solved; if not, `mean` is an underestimate, and so still a bound.
    """

    mean: float
    interval: tuple[float, float]
    examples: Tensor
    exact: bool
    converged: bool = True


@dataclass(frozen=True)
class InformationSpectrum:
    """S J^T J S = V diag(values) V^T, decomposed once for any noise.

    Attributes:
        values: `[n d]` eigenvalues, at least 0.
        spread: `[n d, n d]` squares of S V.
        count: Number of examples.
    """

    values: Tensor
    spread: Tensor
    count: int

    @classmethod
    def of(cls, gram: Tensor, prior: GaussianPrior) -> "InformationSpectrum":
        """From J^T J `[n d, n d]`."""
        half = prior.root(gram)  # rows: J^T J S, as S is symmetric
        both = prior.root(half.T.contiguous())  # S J^T J S, symmetric but for rounding
        values, vectors = torch.linalg.eigh((both + both.T) / 2)
        return cls(values.clamp(min=0), prior.root(vectors.T.contiguous()).T.square(), len(prior.energies))

    def least_error(self, deviation: float) -> LeastError:
        """The least error at a noise; at 0 what rounding to single precision does not let through is hidden."""
        # Share of each direction's variance that the update leaves open: the eigenvalues of (I + S J^T J S / s^2)^-1.
        if deviation > 0:
            left = 1 / (1 + self.values / deviation**2)
        else:
            left = (self.values <= ROUNDING**2 * self.values.max()).to(self.values)
        # diag K = sum_j (S V)_ij^2 left_j
        errors = (self.spread @ left).reshape(self.count, -1)
        mean = float(errors.mean())
        return LeastError(mean, (mean, mean), errors.mean(1), exact=True)


def estimated_error(
    jacobian: UpdateJacobian, prior: GaussianPrior, deviation: float, *, budget_seconds: float, seed: int
) -> LeastError | None:
    """The least error by Hutchinson's estimate of tr K, each product K w by conjugate gradients.

    From zero, w^T K w is approached from below, so a system that is not solved to its end makes the bound looser and
    not wrong.

    Args:
        jacobian: Of the update.
        prior: Of the inputs.
        deviation: Of the noise, greater than 0.
        budget_seconds: Wall time after which the running probe is the last; at least four are taken.
        seed: Of the probes.

    Returns:
        None where four probes of ten steps would take longer than the budget.
    """
    count, draw = len(prior.energies), generator(seed, "probes of the least error")
    like = prior.energies
    probe = _signs(jacobian.values, draw, like)
    start = time.monotonic()
    jacobian.gram(probe)
    once = max(time.monotonic() - start, 1e-6)
    steps = min(MOST_ITERATIONS, int(budget_seconds / (LEAST_PROBES * once)))
    if steps < LEAST_STEPS:
        return None

    # K = (S^-2 + J^T J / s^2)^-1 = S (I + S J^T J S / s^2)^-1 S, so K w = S z with (I + S J^T J S / s^2) z = S w.
    def system(z: Tensor) -> Tensor:
        return z + prior.root(jacobian.gram(prior.root(z))) / deviation**2

    found: list[Tensor] = []
    converged = True
    while len(found) < MOST_PROBES:
        probe = _signs(jacobian.values, draw, like)
        right = prior.root(probe)
        z = conjugate_gradients(system, right, steps=steps, tolerance=1e-3)
        converged &= bool((right - system(z)).norm() < 2e-3 * right.norm())
        # [n]: w_i . (K w)_i, on average the trace of block i, as other blocks' signs are independent
        found.append((probe * prior.root(z)).reshape(count, -1).mean(1))
        if len(found) >= LEAST_PROBES:
            totals = torch.stack(found).mean(1)
            tight = float(totals.std() / math.sqrt(len(found))) < ENOUGH * float(totals.mean())
            if tight or time.monotonic() - start > budget_seconds:
                break
    return _summary(torch.stack(found), converged)


def _summary(found: Tensor, converged: bool) -> LeastError:
    """From `[probes, n]` estimates."""
    from scipy.stats import t

    # Student's interval of the mean over probes, which are independent and alike.
    totals = found.mean(1)
    mean, error = float(totals.mean()), float(totals.std()) / math.sqrt(len(totals))
    reach = float(t.ppf(0.975, len(totals) - 1)) * error
    tiny = 1e-15
    interval = (max(mean - reach, tiny), mean + reach)
    return LeastError(max(mean, tiny), interval, found.mean(0).clamp(min=tiny), exact=False, converged=converged)


def _signs(size: int, draw: torch.Generator, like: Tensor) -> Tensor:
    return (2.0 * torch.randint(2, (size,), generator=draw) - 1).to(like)


def counted_error(numbers: int, prior: GaussianPrior) -> float:
    """Least mean squared error of any estimator that reads so many numbers, linear in the inputs and free of noise.

    At best they are the prior's widest directions, and the variance of all others is left (Ky Fan).

    >>> prior = GaussianPrior(torch.ones(1), torch.zeros(0, 4), torch.zeros(0), 0.25, 0, False)
    >>> counted_error(3, prior)
    0.0625
    """
    # The trace of a covariance less its part in any k directions is at least its smallest d - k eigenvalues.
    variances = prior.variances().sort(descending=True).values
    return float(variances[numbers:].sum()) / (len(prior.energies) * prior.size)


def decibels(error: float, value_range: tuple[float, float] = (0.0, 1.0)) -> float:
    """The PSNR of a mean squared error, at most 150 dB as in a score.

    >>> decibels(0.01), decibels(0.0)
    (20.0, 150.0)
    """
    spread = value_range[1] - value_range[0]
    return 150.0 if error <= 0 else min(150.0, 10 * math.log10(spread**2 / error))
