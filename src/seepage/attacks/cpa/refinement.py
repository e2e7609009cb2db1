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
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from seepage.attacks.cpa.ica.unmix import SparseScore, capped, curvature
from seepage.attacks.network import EXACT, NetworkCut
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.base.solvers import conjugate_gradients


@dataclass(frozen=True, eq=False)
class Mixture:
    """What the server knows about one layer's update, in the space of its r kept directions.

    Attributes:
        columns: `[m, r]` left singular vectors times singular values.
        ones: `[r]` solves `columns @ ones = bias gradient`: row i has the right scale when `rows[i] @ ones = 1`.
        outputs: `[r, m]` the layer's weights applied to the right singular vectors.
        bias: `[m]` the layer's bias.
        n: Batch size behind the update; a factor on the whole update (a clipped norm) divides it.
        downstream: The network behind the layer.
        error_sum: `[k]` gradient of the last bias: mean of `p - e_y`; None where there is no such bias.
        labels: `[n]` the labels, where known.
    """

    columns: Tensor
    ones: Tensor
    outputs: Tensor
    bias: Tensor
    n: float
    downstream: NetworkCut
    error_sum: Tensor | None = None
    labels: Tensor | None = None

    def scaled(self, rows: Tensor) -> Tensor:
        """Rows with the scale and sign that the bias gradient gives them."""
        # The bias gradient is A 1 (the sum of A's columns), and A = columns rows^-1: so rows @ ones = 1 for right
        # scales.
        return over_size(rows, rows @ self.ones)

    def rescaled(self, view: "UnmixingState") -> Self:
        """The same with n such that the columns that agree in direction agree in length."""
        # Class counts read with a wrong n are wrong, so labels are read from the directions alone.
        view = replace(self, error_sum=None, labels=None).evaluate(view.rows)
        # Least squares for one factor per column: mixing_i * c = computed_i, over the m units. [r]
        ratio = (view.mixing * view.computed).sum(1) / view.mixing.square().sum(1).clamp(min=1e-300)
        return replace(self, n=self.n * float(ratio.median().clamp(min=1e-6)))

    def evaluate(self, rows: Tensor) -> "UnmixingState":
        """Everything that follows from the rows: columns, forward pass, labels, certificates."""
        # h_i = W x_i + b, with W applied to the right singular vectors once and for all: [r, r] @ [r, m].
        outputs = rows @ self.outputs + self.bias
        probabilities = self.downstream.probabilities(outputs)
        # The columns that the unmixing implies: n A = n columns rows^-1, one per row here. [r, m]
        mixing = (self.columns @ torch.linalg.inv(rows)).T * self.n
        labels = self._labels(mixing, outputs, probabilities)
        # e_i = p_i - e_y, the gradient of the cross-entropy in the logits. [r, k]
        errors = probabilities.clone()
        errors[torch.arange(len(rows)), labels] -= 1
        return UnmixingState(rows, outputs, probabilities, labels, mixing, self.downstream.backward(outputs, errors))

    def _labels(self, mixing: Tensor, outputs: Tensor, probabilities: Tensor) -> Tensor:
        """The labels whose computed columns are nearest to the unmixed ones, each class as often as it occurs."""
        from scipy.optimize import linear_sum_assignment

        r, k = probabilities.shape
        counts = self._counts(probabilities)
        classes = torch.arange(k) if counts is None else counts.nonzero()[:, 0]
        if len(classes) == 0:
            classes, counts = torch.arange(k), None
        # L_i^T is linear, so the column of label c is L^T p - L^T e_c: one backward pass for p and one per class.
        units = nn.functional.one_hot(classes, k).to(mixing)[:, None].expand(-1, r, -1)
        pulled = self.downstream.backward(outputs, units)  # [c, r, m]
        computed = self.downstream.backward(outputs, probabilities) - pulled  # [c, r, m]
        cost = (mixing - computed).norm(dim=2).T  # [r, c]
        if counts is None:
            # Without counts the scale may be unknown too; directions are then the safer guide.
            cost = -nn.functional.cosine_similarity(mixing, computed, dim=2, eps=1e-300).T
        if counts is None or int(counts.sum()) < r:
            return classes.to(cost.device)[cost.argmin(1)]
        # Class c is to be given counts[c] times: as many slots of it, and the cheapest one-to-one assignment of rows.
        slots = torch.repeat_interleave(torch.arange(len(classes)), counts[classes])
        row, slot = linear_sum_assignment(cost[:, slots.to(cost.device)].cpu().numpy())
        labels = torch.empty(r, dtype=torch.int64)
        labels[torch.from_numpy(row)] = classes[slots[torch.from_numpy(slot)]]
        return labels.to(cost.device)

    def _counts(self, probabilities: Tensor) -> Tensor | None:
        if self.labels is not None:
            return torch.bincount(self.labels.cpu(), minlength=probabilities.shape[1])
        if self.error_sum is None:
            return None
        # The last bias's gradient is mean(p - e_y), so the class counts are sum(p) - n times it. [k]
        return (probabilities.sum(0) - self.n * self.error_sum).round().clamp(min=0).long().cpu()


def over_size(rows: Tensor, size: Tensor) -> Tensor:
    """Rows `[r, d]` over their sizes `[r]`; one next to nothing would blow its row up, and is put to a small one."""
    least = 1e-6 * size.abs().median().clamp(min=1e-30)
    return rows / torch.where(size.abs() < least, least, size)[:, None]


@dataclass(frozen=True, eq=False)
class UnmixingState:
    """One unmixing and what follows from it.

    Attributes:
        rows: `[r, r]`.
        outputs: `[r, m]` the layer's outputs on the unmixed images.
        probabilities: `[r, k]`.
        labels: `[r]`.
        mixing: `[r, m]` n times the mixing columns that the unmixing implies.
        computed: `[r, m]` the same as the model computes them from the images.
    """

    rows: Tensor
    outputs: Tensor
    probabilities: Tensor
    labels: Tensor
    mixing: Tensor
    computed: Tensor

    @property
    def certificates(self) -> Tensor:
        """`[r]` relative mismatch of implied and computed columns: 0 for an exact image, needs no truth."""
        size = torch.maximum(self.mixing.norm(dim=1), self.computed.norm(dim=1))
        mismatch: Tensor = (self.mixing - self.computed).norm(dim=1) / size.clamp(min=1e-300)
        return mismatch


@dataclass(frozen=True, eq=False)
class Unmixed:
    """One start's result.

    Attributes:
        right: `[r, e]` the kept right singular vectors.
        rows: `[r, r]` unmixing rows.
        scores: `[r]` certificates (0: exact), or None where nothing certifies.
        labels: `[r]` labels, or None.
    """

    right: Tensor
    rows: Tensor
    scores: Tensor | None = None
    labels: Tensor | None = None

    @property
    def solved(self) -> int:
        return 0 if self.scores is None else int((self.scores < EXACT).sum())


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
