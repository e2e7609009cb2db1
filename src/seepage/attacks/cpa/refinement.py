r"""From nearly unmixed to exact: make images and mixing coefficients of a fully connected layer agree.

An update of the layer `h = W x + b` is `G = A X`: images `X [n, d]` in its rows, and in column `i` of `A [m, n]` the
derivative of the loss by `h` for image `i`, divided by n. The server knows the model, so from an image it can compute
that column by itself: `a_i = L_i^T (p_i - e_y) / n`, where `L_i = d logits / d h` (exact zeros where a ReLU is off) and
`p_i` are the predicted probabilities. An unmixing gives images *and* columns; here both are moved until they agree.

Legend: r sources kept of n, m units, d pixels, k classes. `right [r, d]` and `columns [m, r]` are the signal part of
the singular value decomposition, `rows [r, r]` the unmixing: `X = rows right`, `A = columns rows^-1`. All work is in
`r x r` and `r x m`, whatever d. A relative change `E` turns `rows` into `(I - E)^-1 rows` and `A` into `A (I - E)`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from seepage.attacks.cpa.ica.unmix import SparseScore, capped, curvature
from seepage.attacks.cpa.mixture import Mixture, UnmixingState
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.base.solvers import conjugate_gradients

Stage = tuple[float, float]
"""Of one step of the polish: the spread, the size of residuals, relative to a column's, that still count as agreement;
and the trust, the weight of the image prior against the agreement of the columns, 0 for none."""


def anneal(first: float, last: float, count: int, trust: float) -> list[Stage]:
    """`count` stages whose spread falls geometrically from `first` to `last`."""
    return [(first * (last / first) ** (i / max(1, count - 1)), trust) for i in range(count)]


def stages_for(load: float) -> list[Stage]:
    """A schedule by `load`, sources per unit: the fuller the layer, the slower, and the less the prior is trusted.

    Above about 0.5 each column has few more equations than unknowns, wrong masks can hardly be distinguished from right
    ones in one step, and the images gain from many small ones.
    """
    if load > 0.85:
        return [*anneal(0.5, 1e-3, 15, 0.03), *anneal(1e-3, 1e-4, 20, 0.01), *anneal(1e-4, 2e-5, 60, 0.003)]
    if load > 0.6:
        return [*anneal(0.5, 1e-3, 25, 0.03), *anneal(1e-3, 1e-4, 20, 0.01), *anneal(1e-4, 1e-4, 10, 0.0)]
    return [*anneal(0.5, 1e-3, 20, 0.1), *anneal(1e-3, 1e-4, 15, 0.03), *anneal(1e-4, 1e-4, 10, 0.0)]


FREE_CLASSES = 16
"""Output errors are free in this many of the likeliest classes; the rest are too small to be wrong by much."""


def refine(
    mixture: Mixture,
    rows: Tensor,
    *,
    fields: Tensor | None = None,
    stages: Sequence[Stage],
    report: Callable[[int, UnmixingState], None] = lambda step, view: None,
) -> UnmixingState:
    """Robust Gauss-Newton on the disagreement of implied and computed columns, with the image prior beside it.

    In each stage masks and probabilities are computed from the current images; then, for each image, the residual of
    its column is made small by a relative change `E[:, i]` together with a free change of its output error in the
    likeliest classes. Residuals of units whose mask is wrong are gross, so they are weighted by `1 / (r^2 + s^2)`,
    with `s` falling. The blind likelihood of the images' differences stands beside this as a prior, with its own
    curvature: it carries the batch until enough masks are right, and then its weight is taken away.

    Args:
        mixture: What is known.
        rows: `[r, r]` a good unmixing.
        fields: `[r, f, p]` differences of the right singular vectors, for the prior; None: no prior.
        stages: The schedule.
        report: Called with each stage's number and the state it starts from.

    Returns:
        The view with the lowest sum of certificates on the way.
    """
    best = view = mixture.evaluate(mixture.scaled(rows))
    for step, (spread, trust) in enumerate(stages):
        report(step, view)
        if view.certificates.max() < FLOAT32_NETWORK:
            break
        normal, right = _normal_equations(mixture, view, spread)
        if fields is None or trust == 0:
            change = torch.linalg.solve(normal, right[:, :, None])[:, :, 0].T
        else:
            change = _with_prior(normal, right, view.rows, fields, trust)
        # (I - E) stays invertible, and the linearization means something.
        change = change * capped(change)
        # rows <- (I - E)^-1 rows, which takes A to A (I - E).
        rows = torch.linalg.solve(torch.eye(len(rows)).to(rows) - change, view.rows)
        if not rows.isfinite().all():
            break
        view = mixture.evaluate(mixture.scaled(rows))
        # Clamped at 1, so that one image that went astray does not outweigh several that got better.
        best = min(view, best, key=lambda v: float(v.certificates.clamp(max=1).sum()))
    return best


def sensitivity(mixture: Mixture, view: UnmixingState, step: float, among: Tensor, others: int | None = None) -> Tensor:
    """How much of an error a certificate would notice: `[r]`, for the rows `among [r]` bool; infinite for the others.

    Image i is moved by `step` (Euclidean, in the layer's input) along its difference to each other image, or to the
    nearest `others` of them, both ways, as far as that difference reaches. The smallest relative change of the
    computed column is returned. A mismatch well below it rules such an error out; one above it says nothing.
    """
    r = len(view.rows)
    least = torch.full((r,), torch.inf).to(view.rows)
    for i in among.nonzero()[:, 0].tolist():
        # Distances of images, from r numbers each: X = rows right with orthonormal right.
        apart = (view.rows - view.rows[i]).norm(dim=1)  # the right singular vectors are orthonormal
        far = apart.argsort(stable=True)
        far = far[apart[far] > step][:others]
        if not len(far):
            continue
        # What the layer makes of a move by `step` towards each other image: linear, so no image is formed. [o, m]
        way = (view.outputs[far] - view.outputs[i]) * (step / apart[far])[:, None]
        moved = view.outputs[i] + torch.cat([way, -way])
        errors = mixture.downstream.probabilities(moved)
        errors[:, view.labels[i]] -= 1
        change = mixture.downstream.backward(moved, errors) - view.computed[i]
        least[i] = (change.norm(dim=1) / view.computed[i].norm().clamp(min=1e-300)).min()
    return least


def _normal_equations(mixture: Mixture, view: UnmixingState, spread: float) -> tuple[Tensor, Tensor]:
    """Matrices `[r, r, r]` and right sides `[r, r]` of each `E[:, i]`'s least squares, output error removed."""
    r = len(view.rows)
    # Residuals count in units of the typical entry of their column, over the units that the image reaches. [r]
    live = (view.computed != 0).double().sum(1).clamp(min=1)
    size = torch.maximum(view.computed.norm(dim=1) / live.sqrt(), 0.02 * view.mixing.norm(dim=1)).clamp(min=1e-300)
    # What Gauss-Newton makes small: implied minus computed column, r_i = n a_i - L_i^T e_i.
    residual = (view.mixing - view.computed) / size[:, None]  # [r, m]
    free = _free_errors(mixture, view) / size[:, None, None]  # [r, c, m]
    # Cauchy weights: a unit whose mask is wrong has a gross residual, and next to no say. [r, m]
    weight = 1 / (residual.square() + spread**2)
    # A free error d in the c likeliest classes adds F^T d to the column; it is fitted and taken out of the residual:
    # d = (F W F^T + ridge)^-1 F W r, and the weights are made anew from what is left.
    # A prior of deviation 10 on errors that are probabilities, at most 1: it only keeps the matrix regular. [c, c]
    ridge = 0.01 * torch.eye(free.shape[1]).to(free)
    for _ in range(2):
        weighted = free * weight[:, None]
        inner = factored(weighted @ free.mT + ridge)
        fit = torch.cholesky_solve(weighted @ residual[:, :, None], inner)
        weight = 1 / ((residual - (fit.mT @ free)[:, 0]).square() + spread**2)
    weighted = free * weight[:, None]
    inner = factored(weighted @ free.mT + ridge)
    # A -> A (I - E) changes column i by -sum_j E_ji a_j, so column i's normal matrix is
    # N_i[j, k] = sum_u w_iu a_ju a_ku / size_i^2: for all i at once a product of [r, m] with [m, r r].
    pairs = (view.mixing[:, None] * view.mixing).flatten(0, 1)  # [r r, m]
    normal = ((weight / size[:, None].square()) @ pairs.T).view(r, r, r)
    # Elimination of the free errors, by the Schur complement: N - C^T (F W F^T)^-1 C, and the same on the right.
    cross = weighted @ view.mixing.T / size[:, None, None]  # [r, c, r]
    right = (weight * residual / size[:, None]) @ view.mixing.T
    normal = normal - cross.mT @ torch.cholesky_solve(cross, inner)
    right = right - (cross.mT @ torch.cholesky_solve(weighted @ residual[:, :, None], inner))[:, :, 0]
    return _own_fixed(normal, right)


def factored(matrices: Tensor) -> Tensor:
    """Cholesky factors of `[..., r, r]` positive matrices, each with as little ridge as its rounding needs.

    >>> factored(torch.ones(2, 2, dtype=torch.float64)).isfinite().all().item()
    True
    """
    size = matrices.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    identity = torch.eye(matrices.shape[-1]).to(matrices)
    # From none to 1e-6 of the largest diagonal entry, until all factor.
    for ridge in (0.0, 1e-12, 1e-9, 1e-6):
        factors, failed = torch.linalg.cholesky_ex(matrices + ridge * size * identity)
        if not failed.any():
            break
    found: Tensor = factors
    return found


def _own_fixed(normal: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Take `E_ii` out (the bias sets each scale) and add a trace of ridge."""
    # Row and column i of N_i become those of the identity, with 0 on the right: E_ii = 0.
    i = torch.arange(len(normal))
    normal[i, i, :] = 0
    normal[i, :, i] = 0
    ridge = 1e-9 * normal.diagonal(dim1=1, dim2=2).mean(1) + 1e-300
    normal = normal + ridge[:, None, None] * torch.eye(len(normal)).to(normal)
    normal[i, i, i] = 1
    right[i, i] = 0
    return normal, right


def _free_errors(mixture: Mixture, view: UnmixingState) -> Tensor:
    """`[r, c, m]`: columns that an error in each of the c likeliest classes (the label among them) would cause."""
    k = view.probabilities.shape[1]
    likely = view.probabilities.scatter(1, view.labels[:, None], 2.0).topk(min(k, FREE_CLASSES), 1).indices  # [r, c]
    units = nn.functional.one_hot(likely.T, k).to(view.rows)  # [c, r, k]
    return mixture.downstream.backward(view.outputs, units).transpose(0, 1)


def _with_prior(normal: Tensor, right: Tensor, rows: Tensor, fields: Tensor, trust: float) -> Tensor:
    """Solve for `E [r, r]` with the likelihood's gradient, curvature and coupling of `E_ij` with `E_ji`, by CG."""
    r = len(rows)
    # The unmixed differences of pixels, scaled to unit mean square, as the likelihood wants them. [r, f, p]
    signals = (rows.to(fields) @ fields.flatten(1)).view_as(fields)
    size = signals.square().mean((1, 2)).sqrt()
    signals = signals / size[:, None, None]
    score = SparseScore()
    slope, moments = (t.double() for t in curvature(signals, score, score.precisions(signals)))
    # The likelihood is in rows of unit size: E_ij there is E_ij size_j / size_i here.
    ratio = size.double()[None, :] / size.double()[:, None]
    count = trust * fields.shape[1] * fields.shape[2]
    # Second derivatives by each E_ij alone; from 1.05 up each pair's 2 x 2 block (with coupling 1) stays positive.
    bend = (count * moments.clamp(min=1.05) * ratio.square()).T
    i = torch.arange(r)
    # Per image the sum of both normal matrices; what couples E_ij with E_ji stands in `apply`, so it takes CG.
    inner = normal + torch.diag_embed(bend)
    factor = factored(inner)
    target = right - (count * slope * ratio).T
    target[i, i] = 0

    def apply(x: Tensor) -> Tensor:
        # [r, r]: row i is E[:, i]. The transpose is the coupling of E_ij with E_ji, of weight `count`.
        out = (inner @ x[:, :, None])[:, :, 0] + count * x.T
        out[i, i] = x[i, i]
        return out

    def precondition(x: Tensor) -> Tensor:
        return torch.cholesky_solve(x[:, :, None], factor)[:, :, 0]

    return conjugate_gradients(apply, target, precondition, steps=30, tolerance=1e-3).T
