"""The patches of several images from their mixture in one gradient: what is known of them, and blind separation.

    G = sum_i D_i^T X_i,   S = sum_i D_i        X_i [P, d]: image i's patches    D_i [P, width]: its tokens' gradients

S is the position embedding's gradient. What of G lies outside the span of S's rows has for its own row space exactly
the span R of the differences X_i - X_j, with (n - 1) P directions; and of all images the same part Y lies outside R:

    X_i = Y + A_i R        Y = pinv(S^T) G outside R        A_i [P, (n - 1) P]: unknown

Pixels' differences of photographs are sparse and nearly independent from patch to patch, so the A_i are found as those
that make the n P patches independent (`cpa.ica`). That row k is of patch p, and of which size, needs no search: its
part outside R is that of Y's row p.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from seepage.attacks.cpa.ica import balanced, difference_fields, unmix
from seepage.attacks.cpa.ica.unmix import SparseScore, capped, curvature, pair_step
from seepage.base.clock import look

WIDTH = 0.005
"""Where the density of pixel differences turns from a hump to a tail: patches of photographs are often flat."""
STEPS = 40
"""Steps of the constrained maximum likelihood."""
LEAST_CLEARANCE = 10.0
"""Times the noise that the weakest direction of the differences must reach: the likelihood needs more than a rank."""


@dataclass(frozen=True, eq=False)
class PatchMixture:
    """What a gradient says of the patches of n images.

    Attributes:
        common: `[P, d]` Y, the part that is the same for all images, in units of the pixels.
        span: `[(n - 1) P, d]` R.
        images: n.
        grid: `(C, h, w)` of a patch, whose d values are in this order.
        width: Numbers in a token.
    """

    common: Tensor
    span: Tensor
    images: int
    grid: tuple[int, int, int]
    width: int

    @classmethod
    def of(
        cls, errors: Tensor, products: Tensor, images: int, grid: tuple[int, int, int]
    ) -> "tuple[PatchMixture, float]":
        """The mixture, and how far its weakest direction stands above the noise.

        Args:
            errors: `[P, width]` S.
            products: `[width, d]` G, with the pixels' normalization taken out.
            images: n.
            grid: Of a patch.
        """
        rank = (images - 1) * len(errors)
        # G = S^T X_1 + sum_i>1 D_i^T (X_i - X_1): outside the columns of S^T [width, P] only differences are left.
        basis = torch.linalg.qr(errors.T)[0]  # [width, P]
        _, sizes, axes = torch.linalg.svd(products - basis @ (basis.T @ products), full_matrices=False)
        span = axes[:rank]  # R [(n - 1) P, d], orthonormal
        # pinv(S^T) G = X_1 + combinations of differences, which the projection away from R takes out: Y. [P, d]
        common = torch.linalg.lstsq(errors.T, products).solution
        common = common - (common @ span.T) @ span
        clear = float(sizes[rank - 1] / sizes[rank]) if rank < len(sizes) else 0.0
        return cls(common, span, images, grid, len(products)), clear

    @property
    def rows(self) -> Tensor:
        """`[n P, d]` Y above R: all patches are combinations of these."""
        return torch.cat([self.common, self.span])

    def fields(self, *, diagonal: bool) -> Tensor:
        """`[n P, f, places]` differences of neighboring pixels of the rows."""
        return balanced(difference_fields(self.rows, self.grid, diagonal=diagonal)).float()


def separate(mixture: PatchMixture, draw: Generator) -> Tensor:
    """`[n P, n P]` rows that unmix `mixture.rows` into patches: the n of patch 0 first, then those of patch 1.

    Args:
        mixture: What is known.
        draw: Source of the random start.
    """
    # Rows of one length: Y's are in units of pixels and R's of length 1, and the fields are float32. [n P]
    size = mixture.rows.norm(dim=1)
    fields = balanced(difference_fields(mixture.rows / size[:, None], mixture.grid)).float()
    rows = _by_patch(unmix(fields, draw=draw).double() / size, mixture)
    return likeliest(mixture, rows)


def _by_patch(rows: Tensor, mixture: PatchMixture) -> Tensor:
    """Rows sorted by patch, n for each, and scaled so that Y's row of that patch counts once and no other at all."""
    from scipy.optimize import linear_sum_assignment

    patches, n = len(mixture.common), mixture.images
    # A row's first P entries are its shares in Y's rows: one of them should be all there is. [n P, P]
    shares = rows[:, :patches].square()
    shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-300)
    # Each patch has n places; the rows take the places where most of their part outside R is.
    _, place = linear_sum_assignment(-shares.repeat_interleave(n, 1).numpy())
    patch = torch.as_tensor(place) // n
    order = patch.argsort(stable=True)
    rows, patch = rows[order], patch[order]
    # X_i = Y + A_i R: the share in Y's own row is 1, and those in Y's other rows are 0.
    scaled = rows / rows.gather(1, patch[:, None])
    scaled[:, :patches] = torch.nn.functional.one_hot(patch, patches).to(rows)
    return scaled


def likeliest(mixture: PatchMixture, rows: Tensor, steps: int = STEPS) -> Tensor:
    """Maximum likelihood by relative steps `rows <- (I + E) rows` that leave each row's part outside R as it is.

    As in `cpa.ica.unmix.maximum_likelihood`, with the 2 x 2 blocks of the Hessian; but all patches of one place have
    the same part outside R, so E_kl, summed over the patches l of one place, is zero: a row changes by differences.
    """
    fields, score, n = mixture.fields(diagonal=True), SparseScore(width=WIDTH), mixture.images
    precisions, moments = None, torch.empty(0)
    for turn in range(steps):
        look()
        signals = (rows.float() @ fields.flatten(1)).view(len(rows), *fields.shape[1:])  # [n P, f, places]
        # The score is one of unit signals; the rows themselves keep their scale, which Y fixes.
        size = signals.square().mean((1, 2)).sqrt()
        signals = signals / size[:, None, None]
        if turn % 3 == 0:
            precisions = score.precisions(signals, precisions)
        assert precisions is not None
        gradient, moments = curvature(signals, score, precisions)
        # The step is one of patches of unit size; E_kl of the patches themselves is size_k / size_l times that.
        ratio = (size[:, None] / size).double()
        own = pair_step(gradient, moments).double().fill_diagonal_(0) * ratio
        own = _zero_sums(own, moments.double() / ratio.square(), n)
        rows = rows + own * capped(own / ratio) @ rows
    return rows


def _zero_sums(step: Tensor, bend: Tensor, n: int) -> Tensor:
    """The step nearest to `step [K, K]`, by the second derivatives `bend`, whose sums over n columns each are zero."""
    # min sum_l bend_l (e_l - step_l)^2 with sum_l e_l = 0 has e_l = step_l - (sum of the steps) soft_l / sum(soft),
    # with soft = 1 / bend: directions of little curvature give way most.
    soft = 1 / bend.clamp(min=1e-6).unflatten(1, (-1, n))  # [K, P, n]
    groups = step.unflatten(1, (-1, n))
    even: Tensor = (groups - groups.sum(2, keepdim=True) * soft / soft.sum(2, keepdim=True)).flatten(1)
    return even
