"""The scale of each row of an unmixing, from the bias gradient and from the softmax."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from seepage.attacks.reading.head.equations import ROUNDING, HeadEquations

STEPS = 20
"""Gauss-Newton steps."""
GRID = 97
"""Scales to start from where no bias gradient gives one: this many, over six decades."""
SUM_ROUNDING = 4.0
"""Rounding of a sum over the batch, in units of the rounding of one number."""


def rescaled(
    equations: HeadEquations, unmixing: Float[Tensor, "n n"], labels: Int[Tensor, " n"]
) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"]]:
    """Rows of Q at the scale that the equations agree on best, and the relative deviation `[n]` that is left.

    With a row times `e^t` the features and logits grow by `e^t`, and the slopes that the gradient holds shrink by it:
    `n A e^-t = softmax(e^t Z + b) - Y`, C equations for one unknown. The bias gradient says `t = 0` as well, but that
    is a single number per class, while A is an average over all features: of a confident example, whose slopes are
    small, the softmax knows the scale better.
    """
    slopes = equations.examples * equations.slopes(unmixing)  # [n, C] n A
    logits = unmixing @ equations.logits_basis  # [n, C]
    labeled = F.one_hot(labels, len(equations.weight)).double()
    weights, tied = _weights(equations, unmixing, slopes, labeled)

    def residual(t: Float[Tensor, " n"]) -> tuple[Tensor, Tensor, Tensor]:
        """`e^t Z`, its class probabilities, and the weighted equations, each `[n, C]`."""
        grown = t.exp()[:, None] * logits
        chances = (grown + equations.bias).softmax(1)
        return grown, chances, weights * (slopes * (-t).exp()[:, None] - chances + labeled)

    def cost(t: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        _, chances, off = residual(t)
        # Relative to the slopes asked for: else rows so long that they are sure of their label would win.
        return off.square().sum(1) / (weights * (chances - labeled)).square().sum(1) + (tied * t).square()

    t, curvature = logits.new_zeros(len(labels)), logits.new_ones(len(labels))
    if not equations.biased:
        grid = torch.linspace(-7, 7, GRID, dtype=logits.dtype)
        t = grid[torch.stack([cost(one.expand(len(labels))) for one in grid]).argmin(0)]
    for _ in range(STEPS):
        grown, chances, off = residual(t)
        # Where the equations contradict each other by more than rounding (rows of Q have errors of their own, which
        # reach the slopes of examples that are alike), they count for less.
        trust = 1 / off.square().mean(1, keepdim=True).sqrt().clamp(min=1)  # [n, 1]
        # d/dt of n A e^-t - softmax(e^t Z + b): -n A e^-t - (diag(P) - P P^T) e^t Z.
        along = -slopes * (-t).exp()[:, None] - chances * (grown - (chances * grown).sum(1, keepdim=True))
        off, along = off * trust, weights * trust * along
        curvature = along.square().sum(1) + tied.square()
        # Gauss-Newton, example by example, at most by half a unit of the logarithm.
        t = t - (((off * along).sum(1) + tied.square() * t) / curvature).clamp(-0.5, 0.5)
    return t.exp()[:, None] * unmixing, curvature.rsqrt()


def _weights(
    equations: HeadEquations,
    unmixing: Float[Tensor, "n n"],
    slopes: Float[Tensor, "n C"],
    labeled: Float[Tensor, "n C"],
) -> tuple[Float[Tensor, "n C"], Float[Tensor, " n"]]:
    """One over the standard deviation of each softmax equation `[n, C]`, and of what the bias says `[n]`."""
    unit = ROUNDING * equations.epsilon
    # The client rounds P, relatively, and P - 1 at the label, absolutely.
    rounded = unit * (slopes.abs() + labeled)
    # The gradient's errors reach A^T = [g_b G] [1 F]^+ by the columns of [1 F]^+ = B^+ Q^-1.
    lengths = torch.linalg.inv(unmixing) / torch.linalg.vector_norm(equations.basis, dim=1)[:, None]
    reached = (
        equations.examples * equations.deviation * equations.scale * torch.linalg.vector_norm(lengths, dim=0)[:, None]
    )
    weights = 1 / (rounded.square() + reached.square()).sqrt()
    if not equations.biased:
        return weights, torch.zeros(len(slopes), dtype=weights.dtype)
    # Errors of the bias gradient, by the same pseudoinverse of A^T as the features: Q U^T D^-1.
    size = (slopes / equations.examples).abs().sum(0)  # [C]
    level = SUM_ROUNDING * max(unit, equations.deviation) * size
    inverse = unmixing @ (equations.left / equations.scale[:, None]).T  # [n, C]
    return weights, 1 / (inverse * level).square().sum(1).sqrt()
