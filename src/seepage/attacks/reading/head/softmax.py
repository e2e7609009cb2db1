"""Unmixing by the softmax: the features' own class probabilities must be those that the gradient holds."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor

from seepage.attacks.reading.head.equations import ROUNDING, HeadEquations
from seepage.base.solvers import MOST_STEPS

SETTLED = 1e-6
"""Relative decrease of the sum of squares below which a start has come to rest."""


def start(
    equations: HeadEquations,
    labels: Int[Tensor, " n"],
    spread: float,
    draw: Generator,
) -> Float[Tensor, "n n"]:
    """An unmixing to start from: every example has the batch's mean probabilities, but for random logits.

    The mean is known: the bias gradient is the mean of `P - Y`. Without a bias it is taken to be uniform.
    """
    wanted = F.one_hot(labels, len(equations.weight)).double()
    mean = (equations.bias_gradient + wanted.mean(0)).clamp(min=1e-12)  # [C]
    if not equations.biased:
        mean = torch.ones_like(mean)
    noise = torch.randn(wanted.shape, generator=draw, dtype=torch.float64)
    chances = (mean.log() + spread * noise).softmax(1)
    return equations.scaled(equations.unmixing((chances - wanted) / equations.examples))


def residuals(
    equations: HeadEquations, unmixing: Float[Tensor, "n n"], labels: Int[Tensor, " n"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`n A - (P - Y)` `[n, C]` and `Q b_0 - 1` `[n]`; and `n A` and P on the way."""
    slopes = equations.examples * equations.slopes(unmixing)
    chances = equations.probabilities(unmixing)
    # Softmax minus label twice over: as the gradient holds it (n A), and as the features imply it (P - Y).
    off = slopes - (chances - F.one_hot(labels, len(equations.weight)))
    ones = unmixing @ equations.ones - 1 if equations.biased else torch.zeros_like(off[:, 0])
    return off, ones, slopes, chances


def _jacobian(
    equations: HeadEquations,
    unmixing: Float[Tensor, "n n"],
    slopes: Float[Tensor, "n C"],
    chances: Float[Tensor, "n C"],
) -> Float[Tensor, "m nn"]:
    """Derivatives of all residuals by the relative change E, `[n C + n, n^2]`."""
    n, classes = slopes.shape
    places = torch.arange(n)
    # d off_i / dE_ab: the slopes give -A_a for b = i, the logits -(diag(P_i) - P_i P_i^T) Z_b for a = i.
    jacobian = slopes.new_zeros((n, classes, n, n))
    jacobian[places, :, :, places] -= slopes.T
    turned = unmixing @ equations.logits_basis
    curve = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None, :]  # [n, C, C]
    jacobian[places, :, places, :] -= torch.einsum("icd,bd->icb", curve, turned)
    # d (Q b_0)_i / dE_ab: (Q b_0)_b for a = i.
    of_ones = slopes.new_zeros((n, n, n))
    if equations.biased:
        of_ones[places, places, :] = unmixing @ equations.ones
    return torch.cat([jacobian.reshape(n * classes, n * n), of_ones.reshape(n, n * n)])


def refine(
    equations: HeadEquations,
    unmixing: Float[Tensor, "n n"],
    labels: Int[Tensor, " n"],
    *,
    scaling: bool = False,
) -> tuple[Float[Tensor, "n n"], float]:
    """Levenberg-Marquardt on relative changes `Q <- Q + E Q`, bounded where Q is ill-conditioned.

    With `A^T = D U Q^-1` and logits `Z = Q B W^T + b`: `dA_i = -sum_a E_ai A_a`, `dZ_i = sum_b E_ib (Q B W^T)_b`.

    Args:
        equations: The gradient.
        unmixing: Where to start.
        labels: Of the examples.
        scaling: Whether the update may be any multiple `s = e^t` of the gradient: `dA_i / dt = -A_i` then.

    Returns:
        The unmixing, and that multiple.
    """
    n, damping, share = len(unmixing), 1e-2, 1.0
    off, ones, slopes, chances = residuals(equations, unmixing, labels)
    cost = float(off.square().sum() + ones.square().sum())
    for step in range(MOST_STEPS):
        whole = _jacobian(equations, unmixing, slopes, chances)
        if scaling:
            # One more column, for t: dA / dt = -A, and the bias's equations do not depend on it. [n C + n, n^2 + 1]
            whole = torch.cat([whole, torch.cat([-slopes.flatten(), torch.zeros_like(ones)])[:, None]], 1)
        missing = torch.cat([off.flatten(), ones])
        normal, slope = whole.T @ whole, whole.T @ missing  # J^T J [n^2, n^2], J^T r
        for _ in range(8):
            # Marquardt: damping in units of each unknown's own curvature.
            lifted = normal + damping * torch.diag(normal.diagonal() + 1e-12)
            change = -torch.linalg.solve(lifted, slope)
            # Relative changes beyond 1 leave the region in which the slopes' derivative means anything.
            change = change * (1.0 / max(1.0, float(change.norm())))
            new = unmixing + change[: n * n].view(n, n) @ unmixing
            grown = float(change[-1].exp()) if scaling else 1.0
            moved = equations.over(grown) if scaling else equations
            tried = residuals(moved, new, labels)
            lower = float(tried[0].square().sum() + tried[1].square().sum())
            if lower < cost:
                damping = max(damping / 5, 1e-14)
                break
            damping = min(damping * 5, 1e8)
        else:
            return unmixing, share
        settled = cost - lower < SETTLED * lower and step > 3
        unmixing, (off, ones, slopes, chances), cost = new, tried, lower
        equations, share = moved, share * grown
        if settled or cost < 1e-26:
            break
    return unmixing, share


def noise(equations: HeadEquations, unmixing: Float[Tensor, "n n"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Standard deviation of the error of a feature of each example, `[n]`, with the error of the unmixing itself.

    Errors of the residuals, of variance s^2, move E by `s^2 (J^T J)^-1`, and the features of example i by `E_i F`.
    """
    own = equations.noise(unmixing)
    n, classes = len(unmixing), len(equations.weight)
    off, ones, slopes, chances = residuals(equations, unmixing, labels)
    # n (C - 1) independent equations of the softmax and n of the bias, for n^2 unknowns.
    spare = n * (classes - n)
    variance = max(float(off.square().sum() + ones.square().sum()) / spare, (ROUNDING * equations.epsilon) ** 2)
    whole = _jacobian(equations, unmixing, slopes, chances)
    normal = whole.T @ whole
    # A lift at the rounding of J^T J: the inverse stays finite where that is singular to rounding.
    lift = 1e-14 * float(normal.diagonal().mean()) * torch.eye(n * n, dtype=normal.dtype)
    covariance = variance * torch.linalg.inv(normal + lift).view(n, n, n, n)
    features = unmixing @ equations.inner
    # Mean square of sum_a E_ia F_a over the k features: sum_ab cov(E_ia, E_ib) <F_a, F_b> / k.
    gram = features @ features.T / features.shape[1]
    of_unmixing = torch.einsum("iaib,ab->i", covariance, gram).clamp(min=0)
    return (own.square() + of_unmixing).sqrt()
