"""What layers read, solved from their weight gradients where the slopes of their outputs are known."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.attacks.network import CERTIFYING_MISMATCH, LARGEST_MATRIX
from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.activations.deconvolution import negative_share
from seepage.attacks.reading.equations import columns_of, slope_matrix
from seepage.attacks.reading.head.equations import ROUNDING, UNEXPLAINED
from seepage.base.algebra.derivative import Derivative
from seepage.base.rounding import FLOAT32_NETWORK, FLOAT32_ZERO
from seepage.base.solvers import conjugate_gradients

LEAST_ROWS = 0.5
"""Rows of a layer's slopes for each unknown below which the other equations are not tried."""
STEPS = 40
"""Newton steps to the non-negative solution."""
INNER = 100
"""Iterations of the conjugate gradients in one of them."""
NEWTON_SOLVED = 1e-2
"""Relative residual at which the conjugate gradients of one Newton step stop."""
ZERO_WIDTHS = 3 * (FLOAT32_NETWORK,) + 3 * (FLOAT32_ZERO,)
"""What counts as zero in the steps after the equations hold, in units of the root mean square."""
BLOWN_UP = 10.0
"""Error of a reading that all equations together gave, in units of their root mean square residual."""
SUPPORT = 0.95
"""Largest share of the equations that the unknowns of a support may take up."""


@dataclass(frozen=True, eq=False)
class Forward:
    """What the known activations behind a reading h say about it: `z(h) = z` on their active units, affine in h.

    Attributes:
        derivative: Of what the activations read, in h `[n, C, H, W]`.
        values: What they read at the h of the derivative.
        wanted: What they are known to have read.
        on: Where.
    """

    derivative: Derivative
    values: Sequence[Tensor]
    wanted: Sequence[Tensor]
    on: Sequence[Tensor]

    @property
    def count(self) -> int:
        """Number of equations."""
        return sum(int(on.sum()) for on in self.on)

    def _weights(self) -> list[Tensor]:
        """One over the root mean square of what is known, on active units."""
        return [on / float(known[on].square().mean().sqrt()) for known, on in zip(self.wanted, self.on, strict=True)]

    def residuals(self, reading: Tensor) -> list[Tensor]:
        changes = self.derivative.forward(reading - self.derivative.x.detach())
        parts = zip(self.values, changes, self.wanted, self._weights(), strict=True)
        return [(value + change - wanted) * weight for value, change, wanted, weight in parts]

    def product(self, change: Tensor) -> list[Tensor]:
        return [part * weight for part, weight in zip(self.derivative.forward(change), self._weights(), strict=True)]

    def transposed(self, parts: Sequence[Tensor]) -> Tensor:
        return self.derivative.transposed([part * weight for part, weight in zip(parts, self._weights(), strict=True)])


def solve_reading(
    uses: Sequence[tuple[LayerUse, Tensor, Tensor]], forward: Forward | None
) -> tuple[Tensor, Tensor] | None:
    """What some layers read, `[n, C, H, W]`, behind a ReLU, and the deviations of its errors; None if not unique.

    `G = M h` for each input channel (`slope_matrix`), one below the other where several layers read the same. Where M
    has a column of its own for each position, that is all. Else `h = h_0 + N a` with a basis N of what M hardly sees,
    and

    - nothing in h is negative and about half is zero, which of random half-spaces leaves but one point as soon as they
      are twice as many as `a` has entries;
    - known activations further on read affine functions of h (`Forward`).

    `a` is the zero of the sum of both squares. Then each channel is solved from its own support, and the equations that
    were to spare there say whether it is right.

    Args:
        uses: For each layer its call, the slopes of its outputs and the observed gradient of its weight.
        forward: What is known further on.
    """
    layers, wanted = [use[0] for use in uses], [use[2] for use in uses]
    if any(not layer.geometry or layer.geometry[3] != 1 for layer in layers):
        return None
    shape = layers[0].input.shape
    size, count = shape[0] * shape[2:].numel(), sum(layer.weight[:, 0].numel() for layer in layers)
    if count < LEAST_ROWS * size or count * size > LARGEST_MATRIX:
        return None
    # Each gradient in units of its own size, to which its rounding belongs.
    units = [float(one.square().mean().sqrt().clamp(min=1e-30)) for one in wanted]
    matrix = torch.cat([slope_matrix(use[0], use[1].double()) / unit for use, unit in zip(uses, units, strict=True)])
    rows = torch.cat([columns_of(one.double()) / unit for one, unit in zip(wanted, units, strict=True)])  # [O k k, C]
    rounding = ROUNDING * torch.finfo(wanted[0].dtype).eps
    # M = U S V^T: h_0 = V S^-1 U^T G, and the other rows of V^T span what M hardly sees.
    left, singular, right = torch.linalg.svd(matrix, full_matrices=True)
    rank = int((singular > FLOAT32_NETWORK * singular[0]).sum())
    inverse = (right[:rank].T / singular[:rank]) @ left[:, :rank].T  # [positions, O k k]
    reading = inverse @ rows
    if rank == size:
        # Errors of slopes are in proportion to what is read: each channel has its own.
        left_over = (matrix @ reading - rows).norm(dim=0) / max(len(matrix) - size, 1) ** 0.5  # [C]
        errors = inverse.square().sum(1).sqrt()[:, None] * left_over.clamp(min=rounding)
    else:
        completed = _complete(reading, right[rank:].T, forward, layers[0])
        if completed is None:
            return None
        # Forward equations vouch for what has no zeros only where they are more than what M leaves open.
        enough = forward is not None and forward.count >= (size - rank) * shape[1]
        level = BLOWN_UP * completed[1] if enough else float("inf")
        reading, errors = _from_supports(matrix, rows, completed[0], level, rounding)
    scale = float(reading.square().mean().sqrt())
    unexplained = float((matrix @ reading - rows).norm() / rows.norm())
    negative = negative_share(reading)
    if (
        float(errors.square().mean().sqrt()) > CERTIFYING_MISMATCH * scale
        or unexplained > FLOAT32_NETWORK
        or negative > UNEXPLAINED
    ):
        return None
    return layers[0].maps(reading), layers[0].maps(errors)


def _rows(maps: Float[Tensor, "n C H W"]) -> Float[Tensor, "p C"]:
    """One row per position, `[n * H * W, C]`: undoes `LayerUse.maps`."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def _complete(
    reading: Float[Tensor, "p C"], hidden: Float[Tensor, "p d"], forward: Forward | None, layer: LayerUse
) -> tuple[Float[Tensor, "p C"], float] | None:
    """`h_0 + N a` with the least squared residual of forward equations and negative entries, and that residual.

    The square of negative entries has the second derivative 1 where they are negative: Newton, its steps solved by
    conjugate gradients.
    """
    scale, value = float(reading.square().mean().sqrt()), reading
    zero, sharpened = 0.0, 0  # what counts as zero, in units of `scale`; steps since that is more than nothing
    for _ in range(STEPS):
        # At first what is negative must not be; then what is nearly zero is meant to be zero.
        below = (value < zero * scale) / scale  # [p, C]: weight of the sign equation h = 0, where there is one
        off = value * below
        square, pull = float(off.square().sum()), off * below  # sum of squares, and half its gradient in h
        if forward is not None:
            residuals = forward.residuals(layer.maps(value).to(forward.derivative.x))
            square += sum(float(part.double().square().sum()) for part in residuals)
            pull = pull + _rows(forward.transposed(residuals)).to(pull)
        error = (square / value.numel()) ** 0.5
        # Once all equations hold, the zeros can be read off, wider first.
        if sharpened == len(ZERO_WIDTHS):
            return (value * (below == 0), error) if error < FLOAT32_ZERO else None
        if error < FLOAT32_ZERO or sharpened:
            zero, sharpened = ZERO_WIDTHS[sharpened], sharpened + 1

        def product(v: Tensor, below: Tensor = below) -> Tensor:
            change = hidden @ v  # [p, C], of h
            pushed = change * below.square()
            if forward is not None:
                forth = forward.product(layer.maps(change).to(forward.derivative.x))
                pushed = pushed + _rows(forward.transposed(forth)).to(pushed)
            pulled: Tensor = hidden.T @ pushed  # N^T J^T J N v
            return pulled + 1e-9 / scale**2 * v

        # Newton's step in a: (N^T J^T J N) da = -N^T pull, and h moves by N da.
        change = conjugate_gradients(product, -hidden.T @ pull, steps=INNER, tolerance=NEWTON_SOLVED)
        value = value + hidden @ change
    return None


def _from_supports(
    matrix: Float[Tensor, "m p"],
    rows: Float[Tensor, "m C"],
    reading: Float[Tensor, "p C"],
    level: float,
    rounding: float,
) -> tuple[Float[Tensor, "p C"], Float[Tensor, "p C"]]:
    """Each channel solved from its support, where that has fewer entries than there are equations; and its errors."""
    scale = float(reading.square().mean().sqrt())
    reading, errors = reading.clone(), torch.full_like(reading, level * scale)
    for channel in range(rows.shape[1]):
        row = rows[:, channel]
        support = reading[:, channel] > 0
        if int(support.sum()) > SUPPORT * len(row):
            continue
        inner = matrix[:, support]  # [m, s]: with s < m, equations are left over that may contradict it
        inverse = torch.linalg.pinv(inner, rtol=1e-9)
        solution = inverse @ row
        # Root mean square of the m - s equations to spare; errors of the solution are that times the rows of the
        # inverse.
        left_over = float((inner @ solution - row).norm()) / (len(row) - len(solution)) ** 0.5
        if (
            left_over < FLOAT32_NETWORK * float(row.norm()) / len(row) ** 0.5 + rounding
            and (solution > -ZERO_WIDTHS[-1] * scale).all()
        ):
            reading[:, channel], errors[:, channel] = 0.0, 0.0
            reading[support, channel] = solution
            errors[support, channel] = max(left_over, rounding) * inverse.square().sum(1).sqrt()
    return reading, errors
