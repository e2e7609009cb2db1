r"""All examples of a batch from two spans: a first layer's rows hold `(x_i, 1)`, those of the last layer `(a(x_i), 1)`.

Of n examples with slopes s at the first layer and S at the last one,

    (W, b)   = sum_i s_i (x_i, 1)^T / n        (W', b') = sum_i S_i (a(x_i), 1)^T / n

so where slopes are linearly independent, as those of many outputs are, both row spaces are known, of dimension n. Of
the first one only the examples themselves, and what lies between two that turn the same neurons on, have activations in
the second one:

    x in span (x_1, 1) ... (x_n, 1),    (I - P) (a(x), 1) = 0        n - 1 unknowns, as many equations as neurons

It is solved by damped Gauss-Newton steps from many points. What is found must explain both layers
(`seepage.attacks.linear.two_layers`).
"""

import torch
from torch import Tensor

from seepage.attacks.linear.two_layers import TwoLayers
from seepage.attacks.reading.rows import AGREEING, weighted_basis
from seepage.base.nn import generator
from seepage.base.rounding import DEVIATIONS

STARTS, STEPS = 1000, 60
"""Points that steps begin at, and steps from each."""
CORNERS, ZERO, LEAST_MORE, SAME = 30_000, 1e-2, 2, 0.05
"""Sets of neurons that are drawn; share of a point's root mean square up to which an activation is zero; zeros beyond
those that were asked for; and relative difference up to which two points are one."""
MULTIPLICATIONS = 3e10
"""Of all passes together, above which there are fewer starts."""


def in_both_spans(layers: TwoLayers) -> tuple[Tensor, Tensor] | None:
    """Points of the first layer's span whose activations lie in that of the last one.

    Returns:
        `[n, d]` what the first layer reads, and `[n]` standard errors, root mean square over its values, but for those
        of the span itself; None where rows are of another rank than n, or n points were not found.
    """
    seen, first, last = layers.seen, layers.first, layers.last
    n = seen.batch_size
    if n >= min(first.value.shape) - 1 or n >= min(last.value.shape) - 1:
        return None
    (basis, off), (active, off_last) = weighted_basis(first, n), weighted_basis(last, n)
    if max(off, off_last) > AGREEING:
        return None
    if n == 1:
        return (basis / basis[:, -1:])[:, :-1], basis.new_zeros(1)
    # c = c_0 + N t keeps the bias's entry at 1.
    moves = torch.linalg.svd(basis[:, -1][None])[2][1:]  # [n - 1, n]
    corners = _corners(layers, basis, moves, active)
    if corners is not None:
        return corners, corners.new_zeros(n)
    count = int(min(STARTS, max(50, MULTIPLICATIONS / (STEPS * seen.weight.numel()))))
    low, high = seen.attacked.knowledge.value_range
    draw = torch.rand(
        (count, seen.weight.shape[1]), generator=generator(0, "spans"), dtype=torch.float64, device=basis.device
    )
    start = (low + (high - low) * draw) * seen.layer.scale.double() + seen.layer.shift.double()
    places = torch.cat([start, torch.ones_like(start[:, :1])], 1) @ basis.T
    places = places / (places @ basis[:, -1:])
    squares, places, spread = _descended(layers, places, moves, basis, active)
    inputs = (places @ basis)[:, :-1]
    kept = list[int]()
    for place in squares.argsort().tolist():
        apart = [float((inputs[place] - inputs[other]).square().mean().sqrt()) for other in kept]
        if all(gap > DEVIATIONS * float(spread[place] + spread[o]) for gap, o in zip(apart, kept, strict=True)):
            kept.append(place)
        if len(kept) == n:
            return inputs[kept], spread[kept]
    return None


def _corners(layers: TwoLayers, basis: Tensor, moves: Tensor, active: Tensor) -> Tensor | None:
    """`[n, d]` points by the zeros of their activations, where n are found; None otherwise, or where none are zero.

    n - 1 neurons that one example leaves at zero are as many equations of the second span: of neurons drawn by chance
    the solution has n - 1 zeros and no more, unless it is an example, which leaves all its others at zero too (random
    sample consensus, Fischler and Bolles 1981). Neurons that it reaches then tell its place in the first span.
    """
    n, m = len(active), active.shape[1] - 1
    reads, reached, turns, _ = layers.activations((basis / basis[:, -1:])[:, :-1])
    if n < 2 or not torch.equal(torch.where(turns == 0, 0.0, reads), reached):
        return None
    draw = torch.rand(CORNERS, m, generator=generator(0, "corners")).to(active).argsort(1)[:, : n - 1]
    equations = torch.cat([active.T[draw], active[:, -1].expand(CORNERS, 1, n)], 1)  # [k, n, n]
    units = torch.zeros(n, 1, dtype=active.dtype, device=active.device)
    units[-1] = 1
    solution, singular = torch.linalg.solve_ex(equations, units)
    shown = (solution[..., 0] @ active)[:, :m].nan_to_num(-1.0)  # [k, m]
    size = shown.square().mean(1, keepdim=True).sqrt()
    zeros = (shown.abs() < ZERO * size).sum(1)
    zeros = zeros.masked_fill((shown < -ZERO * size).any(1) | (singular != 0), 0)
    kept = list[int]()
    for place in zeros.argsort(descending=True, stable=True)[: CORNERS // 10].tolist():
        if int(zeros[place]) < n + LEAST_MORE or len(kept) == n:
            break
        if all(float((shown[place] - shown[one]).norm() / shown[one].norm()) > SAME for one in kept):
            kept.append(place)
    if len(kept) < n:
        return None
    # W x + b = a where it reaches a neuron, with x = (c_0 + t N) basis.
    bias = layers.seen.attacked.exact[0][layers.seen.layer.bias or ""]
    start = (basis[:, -1] / basis[:, -1].square().sum()) @ basis
    ways = layers.weight @ (moves @ basis)[:, :-1].T  # [m, n - 1]
    found = []
    for one in kept:
        on = shown[one] > ZERO * size[one]
        right = (shown[one] - bias - layers.weight @ start[:-1])[on]
        found.append((start + torch.linalg.lstsq(ways[on].cpu(), right[:, None].cpu()).solution[:, 0].to(ways) @ (moves @ basis))[:-1])
    return torch.stack(found)


def _descended(
    layers: TwoLayers, places: Tensor, moves: Tensor, basis: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where damped Gauss-Newton steps end: squares `[k]`, places `[k, n]`, and standard errors `[k]` of the points."""
    beside = torch.eye(active.shape[1], dtype=active.dtype, device=active.device) - active.T @ active  # I - P
    turned = layers.weight @ (moves @ basis)[:, :-1].T  # [m, n - 1]

    def at(where: Tensor) -> tuple[Tensor, Tensor]:
        _, activations, slopes, _ = layers.activations((where @ basis)[:, :-1])
        return torch.cat([activations, torch.ones_like(activations[:, :1])], 1) @ beside, slopes

    left, slopes = at(places)
    squares, damping = left.square().sum(1), torch.full((len(places),), 1e-3, dtype=places.dtype, device=places.device)
    unit = torch.eye(len(moves), dtype=places.dtype, device=places.device)
    for _ in range(STEPS):
        ways = beside[:, :-1] @ (slopes[:, :, None] * turned)  # [k, m + 1, n - 1]
        square = ways.transpose(1, 2) @ ways
        size = square.diagonal(dim1=1, dim2=2).mean(1)
        by = torch.linalg.solve(
            square + (damping * size + 1e-14)[:, None, None] * unit, (ways.transpose(1, 2) @ left[..., None])
        )[..., 0]
        tried = places - by @ moves
        tried_left, tried_slopes = at(tried)
        better = tried_left.square().sum(1) < squares
        places, left = torch.where(better[:, None], tried, places), torch.where(better[:, None], tried_left, left)
        slopes, squares = torch.where(better[:, None], tried_slopes, slopes), left.square().sum(1)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-9, 1e6)
    ways = beside[:, :-1] @ (slopes[:, :, None] * turned)
    # cov t = s^2 (J^T J)^-1: a direction in which no neuron turns on or off is not told.
    each = squares / max(len(beside) - len(active) - len(moves), 1)
    values, vectors = torch.linalg.eigh(ways.transpose(1, 2) @ ways)
    through = (vectors.transpose(1, 2) @ (moves @ basis)[:, :-1]).square().mean(2)  # [k, n - 1]
    spread = (each[:, None] * through / values.clamp(min=1e-300)).sum(1).sqrt()
    return squares, places, spread
