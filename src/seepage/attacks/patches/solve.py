"""Least squares for the patches of one image, with a smoothness prior where the gradients leave them open."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.attacks.patches.tokens import PatchTokens
from seepage.base.solvers import conjugate_gradients

NEIGHBORS = 0.05
"""Standard deviation of the difference of two neighboring pixels of a photograph, in units of the value range."""
UNKNOWN = 0.1
"""Standard deviation of what the smoothness of images leaves open of a direction that the gradients do not show."""
HALF_UNIT = torch.finfo(torch.float32).eps / 2
"""Largest relative error of a number rounded to float32."""
MAX_ITERATIONS = 400
"""Iterations of the conjugate gradients, at most."""
CONVERGED = 1e-9
"""Relative size of the residual at which the conjugate gradients end, on purpose: further steps fit the noise of weak
directions (timm's ViT-Tiny: 34 dB become 17 at 1e-10)."""


@dataclass(frozen=True)
class SolvedImage:
    """An image and how well it is known.

    Attributes:
        image: `[1, C, H, W]`, float64, not cut to the value range.
        deviation: Expected root mean square error, in units of the value range.
        rank: Directions of the token space, among the P patches, that the gradients show better than the prior.
        condition: Largest over smallest singular value of the tokens' errors.
        whole: Every pixel was found to be a whole level, and rounded.
    """

    image: Tensor
    deviation: float
    rank: int
    condition: float
    whole: bool = False


@dataclass(frozen=True, eq=False)
class MeasuredImage:
    """The equations `products = errors^T X + noise` for the patches X of an image.

    Attributes:
        errors: `[P, width]` D, the gradient in each patch's token, float64.
        products: `[width, d]` G, the gradient of the patch embedding's weight, float64.
        shape: Of the image.
        low: Smallest value of the image.
        high: Largest value.
    """

    errors: Tensor
    products: Tensor
    shape: tuple[int, ...]
    low: float
    high: float

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """`U [P, r]`, `S [r]` and `V^T [r, width]` of D, with r = min(P, width)."""
        u, s, vt = torch.linalg.svd(self.errors, full_matrices=False)
        return u, s, vt

    @cached_property
    def rounding(self) -> float:
        """What rounding to float32 leaves in an entry of G: its own, and that of D through the patches."""
        return HALF_UNIT * float(self.products.square().mean().sqrt() + self.errors.square().sum(0).mean().sqrt())

    @cached_property
    def noise(self) -> float:
        """Standard deviation of the noise in an entry of G.

        G lies in the span of D's rows but for noise, so what sticks out shows it: G - V V^T G has (width - P) d free
        entries. Where there are no more rows than patches, rounding is all that is known of.
        """
        width, patches = self.products.shape[0], self.errors.shape[0]
        if width <= patches:
            return self.rounding
        basis = self.factors[2]  # V^T [P, width]
        # [width, d], of rank width - P at most: the part that no X explains.
        outside = self.products - basis.T @ (basis @ self.products)
        free = (width - patches) * self.products.shape[1]
        return max(self.rounding, float((outside.square().sum() / free).sqrt()))


def solve(tokens: PatchTokens, measured: MeasuredImage) -> SolvedImage:
    """The most likely image, and how well it is known.

    Args:
        tokens: Which pixels the patches are made of.
        measured: The equations.
    """
    u, s, _ = measured.factors
    # Direction k of the patches, u_k^T X, has errors of deviation noise / s_k: D = U S V^T and G = D^T X + noise.
    certain = s.square() / measured.noise**2  # [r] its precision, one over the variance
    scale = float(_scale(tokens, measured))
    # A direction is known by the equations or by the smoothness of images, whichever is the better of the two.
    spread = torch.minimum(1 / certain, torch.tensor((UNKNOWN * scale) ** 2))
    # More patches P than the width of a token: P - r directions have no equation at all.
    hidden = (len(u) - len(s)) * (UNKNOWN * scale) ** 2
    deviation = float(((spread.sum() + hidden) / len(u)).sqrt() / scale)
    shown = int((1 / certain < (UNKNOWN * scale) ** 2).sum())
    condition = float(s[0] / s[-1]) if s[-1] > 0 else float("inf")
    return SolvedImage(most_likely(tokens, measured), deviation, shown, condition)


def most_likely(tokens: PatchTokens, measured: MeasuredImage, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The image `[1, C, H, W]` that minimizes |D^T X - G|^2 / noise^2 + |differences of neighbors|^2 / NEIGHBORS^2.

    Where D has full rank and the noise is that of rounding, the second term has no say. Where it has not (more patches
    than the width of a token, quantized or noised gradients), it fills in what is not shown.

    Args:
        tokens: Which pixels the patches are made of.
        measured: The equations.
        known: `[d]` which columns of the patches are known, and `[P, d]` their entries.
    """
    low, high = measured.low, measured.high
    u, s, vt = measured.factors
    certain = s.square() / measured.noise**2  # [r]
    scale = _scale(tokens, measured)
    smooth = 1 / (NEIGHBORS * (high - low)) ** 2
    # A known column counts as if each entry were shown, all alike, far better than the smoothness of images shows it.
    fixed = torch.zeros(measured.products.shape[1], dtype=torch.bool) if known is None else known[0]
    firm = 1e8 * smooth / scale**2 * (high - low) ** 2

    def data(image: Tensor) -> Tensor:
        """The data term's gradient, but for its constant: E^T U (S^2 / noise^2) U^T E x, with E the unfolding."""
        read = tokens.linear(image)  # E x [P, d]
        return tokens.adjoint(torch.where(fixed, firm * read, u @ (certain[:, None] * (u.T @ read))), measured.shape)

    def normal(image: Tensor) -> Tensor:
        return data(image) + smooth * _laplacian(image)

    def precondition(image: Tensor) -> Tensor:
        """(U (S^2 / noise^2) U^T + c I)^-1 for the unfolded image, with c for the smoothness: 4 is its mean."""
        # The Laplacian's diagonal is 4, one per neighbor; by the pixels' scale squared in units of what is read.
        c = 4 * smooth / scale**2 * (high - low) ** 2
        read = tokens.linear(image)
        shown = u.T @ read  # [r, d] in the axes of D, where the system is diagonal
        # Outside U's columns [P, r] only c is left, inside it is S^2 / noise^2 + c.
        free = (read - u @ shown) / c + u @ (shown / (certain + c)[:, None])
        return tokens.adjoint(torch.where(fixed, read / (firm + c), free), measured.shape)

    middle = torch.full((1, *measured.shape), (low + high) / 2, dtype=torch.float64)
    # D^T E(x) = G, so U^T E(x) = S^-1 V^T G; what E adds of its own is moved to the right.
    # Solved for the difference from mid-grey, whose Laplacian is 0: the prior is blind to a constant. [r, d]
    wanted = (vt @ measured.products) / s[:, None] - u.T @ tokens.embed(middle)
    entries = u @ (certain[:, None] * wanted)
    if known is not None:
        entries = torch.where(fixed, firm * (known[1] - tokens.embed(middle)), entries)
    right = tokens.adjoint(entries, measured.shape)
    return middle + conjugate_gradients(normal, right, precondition, steps=MAX_ITERATIONS, tolerance=CONVERGED)


def _scale(tokens: PatchTokens, measured: MeasuredImage) -> Tensor:
    """How much of what the layer reads is a unit of the value range."""
    return tokens.scale[tokens.pixels >= 0].abs().mean() * (measured.high - measured.low)


def _laplacian(image: Tensor) -> Tensor:
    """Half the gradient of the sum of squared differences of neighboring pixels."""
    found = torch.zeros_like(image)
    for axis in (-2, -1):
        steps = image.diff(dim=axis)  # x_(i+1) - x_i
        # d/dx of sum (x_(i+1) - x_i)^2 / 2: each difference counts up at its end and down at its start.
        found.narrow(axis, 1, steps.shape[axis]).add_(steps)
        found.narrow(axis, 0, steps.shape[axis]).sub_(steps)
    return found
