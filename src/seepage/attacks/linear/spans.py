r"""All examples of a batch from two spans: a first layer's rows hold `(x_i, 1)`, those of the last layer `(a(x_i), 1)`.

Of n examples with slopes s at the first layer and S at the last one,

    (W, b)   = sum_i s_i (x_i, 1)^T / n        (W', b') = sum_i S_i (a(x_i), 1)^T / n

so where slopes are linearly independent, as those of many outputs are, both row spaces are known, of dimension n. Of
the first one only the examples themselves, and what lies between two that turn the same neurons on, have activations in
the second one:

    x in span (x_1, 1) ... (x_n, 1),    (I - P) (a(x), 1) = 0        n - 1 unknowns, as many equations as neurons

It is solved by damped Gauss-Newton steps from many points. What is found must explain both layers: S by least squares
of the last layer, what the network makes of it on its way back, and the first layer by that.
"""

import torch
from torch import Tensor

from seepage.attacks.network.first_layer import FirstLayer
from seepage.attacks.reading.rows import AGREEING, MeasuredRows
from seepage.base.nn import generator
from seepage.base.rounding import DEVIATIONS

STARTS, STEPS = 1000, 60
"""Points that steps begin at, and steps from each."""
MULTIPLICATIONS = 3e10
"""Of all passes together, above which there are fewer starts."""
SWEEPS = 60
"""Of alternating least squares for a low rank, each in both directions."""


def weighted_basis(rows: MeasuredRows, rank: int) -> tuple[Tensor, float]:
    """`[rank, d]` an orthonormal basis of the rows, by weighted alternating least squares, and its misfit.

    Args:
        rows: With the errors of their entries.
        rank: Of what they would be without errors.

    Returns:
        The basis, and the mean square of what is left, in units of the errors.
    """
    value = rows.value
    trust = torch.where(rows.error.isfinite(), 1 / rows.error.square(), 0.0)
    trust = trust / trust.max()
    basis = torch.linalg.svd(value, full_matrices=False)[2][:rank]
    shares = value @ basis.T
    for _ in range(SWEEPS):
        shares = torch.linalg.qr(_half(value, trust, basis))[0]
        basis = torch.linalg.qr(_half(value.T, trust.T, shares.T))[0].T
    shares = _half(value, trust, basis)
    left = (value - shares @ basis) / rows.error
    free = int(rows.error.isfinite().sum()) - rank * (value.shape[0] + value.shape[1] - rank)
    return basis, float(left.square().sum()) / max(free, 1)


def _half(value: Tensor, trust: Tensor, basis: Tensor) -> Tensor:
    """`[m, r]` the shares of a basis `[r, d]` in each row `[m, d]`, by least squares with weights."""
    equations = torch.einsum("md,rd,sd->mrs", trust, basis, basis)
    size = equations.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)
    ridge = 1e-12 * size[:, None, None] * torch.eye(len(basis), dtype=value.dtype, device=value.device)
    found: Tensor = torch.linalg.solve(equations + ridge, ((trust * value) @ basis.T)[..., None])[..., 0]
    return found


def in_both_spans(seen: FirstLayer, first: MeasuredRows, last: MeasuredRows) -> tuple[Tensor, Tensor] | None:
    """Points of the first span whose activations lie in the second one.

    Args:
        seen: What is read; its last layer reads the first one's neurons.
        first: The first layer's rows with its bias.
        last: The same of the last layer.

    Returns:
        `[n, *shape]` inputs and `[n]` standard errors, root mean square over their values in units of what the layer
        reads; None where rows are of another rank than n, or n points were not found.
    """
    n = seen.batch_size
    if n >= min(first.value.shape) - 1 or n >= min(last.value.shape) - 1:
        return None
    (basis, off), (active, off_last) = weighted_basis(first, n), weighted_basis(last, n)
    if max(off, off_last) > AGREEING:
        return None
    count = int(min(STARTS, max(50, MULTIPLICATIONS / (STEPS * seen.weight.numel()))))
    low, high = seen.attacked.knowledge.value_range
    draw = torch.rand(
        (count, seen.weight.shape[1]), generator=generator(0, "spans"), dtype=torch.float64, device=basis.device
    )
    start = (low + (high - low) * draw) * seen.layer.scale.double() + seen.layer.shift.double()
    places = torch.cat([start, torch.ones_like(start[:, :1])], 1) @ basis.T
    places = places / (places @ basis[:, -1:])
    # c = c_0 + N t keeps the bias's entry at 1.
    moves = torch.linalg.svd(basis[:, -1][None])[2][1:]  # [n - 1, n]
    squares, places, spread = _descended(seen, places, moves, basis, active)
    inputs = (places @ basis)[:, :-1]
    kept = list[int]()
    for place in squares.argsort().tolist():
        apart = [float((inputs[place] - inputs[other]).square().mean().sqrt()) for other in kept]
        if all(gap > DEVIATIONS * float(spread[place] + spread[o]) for gap, o in zip(apart, kept, strict=True)):
            kept.append(place)
        if len(kept) == n:
            return seen.to_inputs(inputs[kept]), spread[kept]
    return None


def _descended(
    seen: FirstLayer, places: Tensor, moves: Tensor, basis: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where damped Gauss-Newton steps end: squares `[k]`, places `[k, n]`, and standard errors `[k]` of the points."""
    beside = torch.eye(active.shape[1], dtype=active.dtype, device=active.device) - active.T @ active  # I - P
    weight = seen.attacked.observed.params[seen.layer.weight].double()
    turned = weight @ (moves @ basis)[:, :-1].T  # [m, n - 1]

    def at(where: Tensor) -> tuple[Tensor, Tensor]:
        activations, slopes = _activations(seen, (where @ basis)[:, :-1])
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


def _activations(seen: FirstLayer, rows: Tensor) -> tuple[Tensor, Tensor]:
    """`[k, m]` what the last layer reads of rows `[k, d]`, and its slopes in the first layer's outputs."""
    names = [name.rpartition(".")[0] for name in (seen.layer.weight, seen.last[0] or "")]
    with torch.enable_grad():
        _, calls = seen.attacked.forward(seen.to_inputs(rows).detach().requires_grad_(), names)
        outputs, reads = calls[names[0]][0].output, calls[names[1]][-1].input
        (slopes,) = torch.autograd.grad(reads.sum(), outputs)
    return reads.detach().double(), slopes.double()


def explained(
    seen: FirstLayer, inputs: Tensor, first: MeasuredRows, last: MeasuredRows, spread: Tensor
) -> tuple[Tensor, float]:
    """What examples leave of the first layer once the last one has told their slopes.

    Args:
        seen: What is read.
        inputs: `[n, *shape]` all examples of the batch.
        first: The first layer's rows with its bias.
        last: The same of the last layer.
        spread: `[n]` standard errors of the examples, in units of what the layer reads.

    Returns:
        The slopes S / n `[n, c]` at the outputs, and the mean square of what is left, in units of its errors.
    """
    read = inputs.flatten(1).double() * seen.layer.scale.double() + seen.layer.shift.double()
    activations, turns = _activations(seen, read)
    reads = torch.cat([activations, torch.ones_like(activations[:, :1])], 1)  # [n, m + 1]
    trust = torch.where(last.error.isfinite(), 1 / last.error.square(), 0.0)
    slopes = _half(last.value, trust / trust.max(), reads)  # [c, n]
    inverse = torch.linalg.pinv(torch.einsum("cm,nm,om->cno", trust, reads, reads), hermitian=True)
    unsure = inverse.diagonal(dim1=1, dim2=2)  # [c, n]
    weight = seen.attacked.observed.params[seen.last[0] or ""].double()  # [c, m]
    back, back_unsure = (slopes.T @ weight) * turns, (unsure.T @ weight.square()) * turns.square()  # [n, m]
    rows = torch.cat([read, torch.ones_like(read[:, :1])], 1)  # [n, d + 1]
    allowed = first.error.square() + back_unsure.T @ rows.square() + (back.square().T @ spread.square())[:, None]
    left = ((first.value - back.T @ rows).square() / allowed)[first.error.isfinite()]
    return slopes.T, float(left.mean())
