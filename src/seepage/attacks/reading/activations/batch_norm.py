"""Through batch norm in train mode, which ties the examples of a batch together, by what the update says of the ties.

Over all N positions of a batch a channel's z is normalized to `x = (z - mean) / s` with `s^2 = var + epsilon`, and
`y = gamma x + beta` goes on. Of a loss L of the whole batch

    dL/dz = gamma / s (dL/dy - g_beta / N - x g_gamma / N),     g_beta = sum dL/dy,     g_gamma = sum x dL/dy,

and the two sums, which no example has for itself, are the gradients of beta and gamma: they were sent. So either of
dL/dz and dL/dy follows from the other and x. Two more things follow: dL/dz sums to zero over the batch, which no
example's part does, and nothing depends on the scale of z but through epsilon.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.activations.deconvolution import (
    OUTLYING,
    REMEDY,
    solve_slopes,
)
from seepage.attacks.reading.equations import columns_of, slope_matrix
from seepage.base.algebra.lowrank import ZERO_GAP
from seepage.base.rounding import FLOAT32_NETWORK, FLOAT64_FLOOR
from seepage.errors import refuse
from seepage.federation.types import Tensors

STILL = 1e-9
"""Relative change of a round below which it has come to rest."""
OFF_MEAN = -0.8
"""Mean of a standard normal variable where it is negative: what units that are off have normalized to, at first."""
ROUNDS = 30
"""Rounds of the fixed point, at most."""
FEWEST_ZEROS = 2
"""Zeros that a channel must have for its level to be known."""


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """One batch norm in train mode, and the gradients of its weight and bias.

    Attributes:
        weight: `[C]` gamma, float64 as all of these.
        bias: `[C]` beta.
        weight_gradient: `[C]` g_gamma.
        bias_gradient: `[C]` g_beta.
        epsilon: Added to the variance.
    """

    weight: Float[Tensor, " C"]
    bias: Float[Tensor, " C"]
    weight_gradient: Float[Tensor, " C"]
    bias_gradient: Float[Tensor, " C"]
    epsilon: float

    @classmethod
    def of(cls, model: nn.Module, name: str, params: Tensors, gradients: Mapping[str, Tensor]) -> Self:
        """The module of that name.

        Raises:
            Inapplicable: Where its weight or bias was not sent.
        """
        keys = f"{name}.weight", f"{name}.bias"
        if any(key not in gradients for key in keys):
            raise refuse("not_sent")(f"the gradients of the batch norm {name!r} were not sent", REMEDY)
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.BatchNorm2d)
        sources = [(params, key) for key in keys] + [(gradients, key) for key in keys]
        weight, bias, of_weight, of_bias = (tensors[key].detach().double().cpu() for tensors, key in sources)
        return cls(weight, bias, of_weight, of_bias, layer.eps)

    def normalized(
        self, z: Float[Tensor, "n C h w"], scale: float = 1.0
    ) -> tuple[Float[Tensor, "n C h w"], Float[Tensor, "C 1 1"]]:
        """The normalized x, and s, where the batch norm reads `scale` times z, s over `scale`."""
        # var(scale z) + eps = scale^2 (var(z) + eps / scale^2): x is that of z with a smaller or larger epsilon.
        mean = z.mean((0, 2, 3), keepdim=True)
        variance = (z - mean).square().mean((0, 2, 3), keepdim=True)
        deviation = (variance + self.epsilon / scale**2).sqrt().clamp(min=1e-300)
        return (z - mean) / deviation, deviation[0]

    def slopes_in(
        self, slopes: Float[Tensor, "n C h w"], x: Float[Tensor, "n C h w"], deviation: Float[Tensor, "C 1 1"]
    ) -> Float[Tensor, "n C h w"]:
        """`dL/dz` from `dL/dy`, with its sum over the batch taken out, which is zero but for errors of x."""
        found = _places(self.weight) / deviation * (slopes - self._shared(x))
        centered: Tensor = found - found.mean((0, 2, 3), keepdim=True)
        return centered

    def slopes_out(
        self, slopes: Float[Tensor, "n C h w"], x: Float[Tensor, "n C h w"], deviation: Float[Tensor, "C 1 1"]
    ) -> Float[Tensor, "n C h w"]:
        """`dL/dy` from `dL/dz`; zero in channels whose gamma is zero, of which `dL/dz` tells nothing."""
        weight = _places(self.weight)
        return torch.where(weight == 0, 0.0, deviation / weight * slopes + self._shared(x))

    def _shared(self, x: Float[Tensor, "n C h w"]) -> Float[Tensor, "n C h w"]:
        """`(g_beta + x g_gamma) / N`: what the whole batch adds to each example's slopes."""
        count = x[:, 0].numel()
        return (_places(self.bias_gradient) + x * _places(self.weight_gradient)) / count


def factors_of(slopes: Float[Tensor, "n C h w"]) -> Float[Tensor, " n"]:
    """How much each example's slopes must be multiplied by, up to one factor for all, to sum to zero in each channel.

    `sum_i u_i sum_p D[i, c, p] = 0` for all channels c: u is the null vector of a matrix `[C, n]`.

    Raises:
        Inapplicable: Where there is no such vector, or another one beside it, or it is not positive.

    >>> slopes = torch.tensor([[1.0, 2.0, -1.0], [-0.5, -1.0, 0.5]]).double().view(2, 3, 1, 1)
    >>> (factors_of(slopes) / factors_of(slopes)[0]).round(decimals=6).tolist()
    [1.0, 2.0]
    """
    sums = slopes.sum((2, 3)).T  # [C, n]
    if sums.shape[1] == 1:
        return sums.new_ones(1)
    _, singular, right = torch.linalg.svd(sums, full_matrices=False)
    found: Tensor = right[-1] * right[-1].sum().sign()
    if not (singular[-1] < ZERO_GAP * singular[-2] and bool((found > 0).all())):
        raise refuse("conflict")(
            "the slopes of the last convolution's outputs do not sum to zero over the batch, as they do in train mode",
            "if the client ran batch norm in eval mode say so (--client fedsgd:mode=eval), else use gradient_matching",
        )
    return found / found.mean()


def common_factor(sums: Float[Tensor, " C"], wanted: Float[Tensor, " C"]) -> tuple[float, float]:
    """The factor f with `f sums = wanted`, and the median error of a channel as a share of the mean one's size.

    A unit on the wrong side of a ReLU spoils its channel alone: channels that are off by far more than most are left
    out, and f is fitted again.

    >>> common_factor(torch.tensor([1.0, -2.0, 3.0, 9.0]).double(), torch.tensor([2.0, -4.0, 6.0, 2.0]).double())
    (2.0, 0.0)
    """
    shown = sums != 0
    factor = (wanted[shown] / sums[shown]).median()  # which a few wrong channels do not move
    for _ in range(3):
        off = (factor * sums - wanted).abs()
        kept = off <= OUTLYING * off.median()
        # Least squares: f = <sums, wanted> / <sums, sums>.
        factor = (sums[kept] @ wanted[kept]) / (sums[kept] @ sums[kept])
    off = (factor * sums - wanted).abs().median() / wanted.square().mean().sqrt().clamp(min=1e-300)
    return float(factor), float(off)


@dataclass(frozen=True, eq=False)
class CoupledReading:
    """What a convolution in front of a batch norm read, up to one factor of the whole batch.

    Attributes:
        read: `[n, C, H, W]` float64.
        x: `[n, O, h, w]` what the batch norm makes of the convolution's outputs.
        deviation: `[O, 1, 1]` by which it divides, at this factor.
        slopes: `[n, O, h, w]` gradient of the loss in the convolution's outputs, over this factor.
        fits: `[O]` of which outputs the slopes are those that were given. In the others a unit's side was mistaken:
            their slopes are solved from the weight gradient.
        off: Share of the weight gradient that it leaves unexplained, the largest of the outputs that count.
        offset_known: `[C]` channels whose additive constant is known.
    """

    read: Float[Tensor, "n C H W"]
    x: Float[Tensor, "n O h w"]
    deviation: Float[Tensor, "O 1 1"]
    slopes: Float[Tensor, "n O h w"]
    fits: Bool[Tensor, " O"]
    off: float
    offset_known: Bool[Tensor, " C"]


def solve_coupled(
    layer: LayerUse,
    norm: BatchNorm,
    slopes: Float[Tensor, "n O h w"],
    given: Float[Tensor, "n O h w"],
    on: Bool[Tensor, "n O h w"],
    gradient: Float[Tensor, "O C k l"],
    *,
    scale: float = 1.0,
    before: CoupledReading | None = None,
) -> CoupledReading | None:
    """Solve `G = M(D) h` for h, where D are the slopes of a convolution's outputs and a batch norm follows.

    D follows from the slopes of the norm's outputs and from x (`BatchNorm.slopes_in`), which is known where the unit
    behind is on. Where it is off x is what h makes of it, and matters little: by g / N. So h and x are solved in turn,
    until they agree; the error falls by ten in each round or so. Since D sums to zero, G does not show a constant that
    is added to h at all places that are read by one entry of the kernel: behind a ReLU each channel's smallest value
    is zero there.

    Args:
        layer: A call of the convolution, its weight in float64; else only shapes are looked at.
        norm: The batch norm behind it.
        slopes: Gradient of the loss in the norm's outputs.
        given: x where it is known.
        on: Where that is.
        gradient: The observed gradient of the convolution's weight.
        scale: The convolution read so many times h.
        before: Where to begin.

    Returns:
        What it read, or None where G shows fewer places than there are.
    """
    entries = gradient[0, 0].numel()
    rows = columns_of(gradient.double().cpu())  # G [O k l, C]
    sizes = rows.view(len(gradient), -1).norm(dim=1).clamp(min=1e-300)
    if before is None:
        x, deviation = torch.where(on, given, OFF_MEAN), layer.weight.flatten(1).norm(dim=1)[:, None, None]
    else:
        x, deviation = before.x, before.deviation
    kept = torch.ones(len(gradient), dtype=torch.bool)
    for _ in range(ROUNDS):
        chosen = kept.repeat_interleave(entries)  # rows (o, k, l) of G whose output's slopes are trusted
        if int(chosen.sum()) < len(slopes) * layer.input[0, 0].numel():
            return None
        matrix = slope_matrix(layer, norm.slopes_in(slopes, x, deviation))  # M(D) [O k l, n positions]
        solved = _solve(matrix[chosen], rows[chosen])
        if solved is None:
            return None
        flat, offset_known = solved
        off = (matrix @ flat - rows).view(len(gradient), -1).norm(dim=1) / sizes  # [O]: M(D) h - G, by output
        read = layer.maps(flat)
        whole, deviation = norm.normalized(layer.applied(read), scale)
        new = torch.where(on, given, whole)
        change, x = float((new - x).norm() / new.norm()), new
        # A unit on the wrong side spoils the rows of its output alone.
        kept = off <= OUTLYING * off.median()
        if change < STILL:
            break
    back = norm.slopes_in(slopes, x, deviation)
    if not bool(kept.all()):
        back[:, ~kept] = solve_slopes(layer, read, gradient[~kept].double().cpu())
    return CoupledReading(read, x, deviation, back, kept, float(off[kept].max()), offset_known)


def _solve(
    matrix: Float[Tensor, "rows q"], rows: Float[Tensor, "rows C"]
) -> tuple[Float[Tensor, "q C"], Bool[Tensor, " C"]] | None:
    """Least squares, behind a ReLU, and which channels' levels are known; None where more than levels stay open."""
    values, vectors = torch.linalg.eigh(matrix.T @ matrix)  # S^2 rising, V
    unseen = int((values < FLOAT64_FLOOR * values[-1]).sum())
    if unseen > 1:
        return None
    seen = vectors[:, unseen:]
    # h = V S^-2 V^T M^T G
    flat = seen @ ((seen.T @ (matrix.T @ rows)) / values[unseen:, None])
    offset_known = torch.ones(flat.shape[1], dtype=torch.bool)
    if unseen:
        # The one direction that G does not show: a constant at all places that the convolution reads alike.
        constant = vectors[:, 0] * vectors[:, 0].sum().sign()
        support = constant > constant.max() / 2
        lifted = flat[support] / constant[support, None]
        least = lifted.amin(0)
        # In units of the constant, channel c is a_c above its true values, so its zeros stand at a_c, the least value.
        zeros = lifted - least < FLOAT32_NETWORK * (lifted.amax(0) - least).clamp(min=1e-300)
        offset_known = zeros.sum(0) >= FEWEST_ZEROS
        # The mean of the zeros, since the smallest of them is the one with the largest error.
        flat = flat - constant[:, None] * (lifted * zeros).sum(0) / zeros.sum(0)
    return flat, offset_known


def _places(channels: Float[Tensor, " C"]) -> Float[Tensor, "C 1 1"]:
    return channels[:, None, None]
