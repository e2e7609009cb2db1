"""Least squares for the patches of one image, with what natural images look like where the gradients do not tell."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.patches.tokens import PatchTokens
from seepage.core.solvers import conjugate_gradients

NEIGHBORS = 0.05
"""Standard deviation of the difference of two neighboring pixels of a photograph, in units of the value range."""
UNKNOWN = 0.1
"""Standard deviation of what the smoothness of images leaves open of a direction that the gradients do not show."""
ROUNDING = 2.0**-24
"""Largest relative error of a number rounded to float32."""
MAX_ITERATIONS = 400
CONVERGED = 1e-9
"""Relative size of the residual at which the conjugate gradients end."""


@dataclass(frozen=True)
class Solved:
    """An image and how well it is known.

    Attributes:
        image: `[1, C, H, W]`, float64, not cut to the value range.
        deviation: Expected root mean square error, in units of the value range.
        rank: Directions of the token space, among the P patches, that the gradients show better than the prior.
        condition: Largest over smallest singular value of the tokens' errors.
    """

    image: Tensor
    deviation: float
    rank: int
    condition: float


def solve(
    tokens: PatchTokens, errors: Tensor, products: Tensor, shape: tuple[int, ...], value_range: tuple[float, float]
) -> Solved:
    """The most likely image, given `products = errors^T X + noise` for its patches X.

    Minimizes |D^T X - G|^2 / noise^2 + |differences of neighboring pixels|^2 / NEIGHBORS^2 over the image. Where D has
    full rank and the noise is that of rounding, the second term has no say. Where it has not (more patches than the
    width of a token, quantized or noised gradients), it fills in what is not shown.

    Args:
        tokens: Which pixels the patches are made of.
        errors: `[P, width]` D, the gradient in each patch's token, float64.
        products: `[width, d]` G, the gradient of the patch embedding's weight, float64.
        shape: Of the image.
        value_range: Of its values.
    """
    low, high = value_range
    u, s, vt = torch.linalg.svd(errors, full_matrices=False)  # D = U S V^T, U [P, r], r = min(P, width)
    noise = _noise(errors, products, vt)
    certain = s.square() / noise**2  # [r] precision of each direction's numbers
    scale = tokens.scale[tokens.pixels >= 0].abs().mean() * (high - low)  # of a unit of the value range
    smooth = 1 / (NEIGHBORS * (high - low)) ** 2

    def data(image: Tensor) -> Tensor:
        """The data term's gradient, but for its constant: E^T U (S^2 / noise^2) U^T E x, with E the unfolding."""
        read = tokens.linear(image)
        return tokens.adjoint(u @ (certain[:, None] * (u.T @ read)), shape)

    def normal(image: Tensor) -> Tensor:
        return data(image) + smooth * _laplacian(image)

    def precondition(image: Tensor) -> Tensor:
        """(U (S^2 / noise^2) U^T + c I)^-1 for the unfolded image, with c for the smoothness: 4 is its mean."""
        c = 4 * smooth / scale**2 * (high - low) ** 2
        read = tokens.linear(image)
        shown = u.T @ read
        return tokens.adjoint((read - u @ shown) / c + u @ (shown / (certain + c)[:, None]), shape)

    middle = torch.full((1, *shape), (low + high) / 2, dtype=torch.float64)
    # D^T E(x) = G, so U^T E(x) = S^-1 V^T G; what E adds of its own is moved to the right.
    wanted = (vt @ products) / s[:, None] - u.T @ tokens.embed(middle)
    right = tokens.adjoint(u @ (certain[:, None] * wanted), shape)
    image = middle + conjugate_gradients(normal, right, precondition, steps=MAX_ITERATIONS, tolerance=CONVERGED)
    spread = torch.minimum(1 / certain, torch.tensor((UNKNOWN * float(scale)) ** 2))
    hidden = (len(u) - len(s)) * (UNKNOWN * float(scale)) ** 2
    deviation = float(((spread.sum() + hidden) / len(u)).sqrt() / scale)
    shown = int((1 / certain < (UNKNOWN * float(scale)) ** 2).sum())
    return Solved(image, deviation, shown, float(s[0] / s[-1]) if s[-1] > 0 else float("inf"))


def _noise(errors: Tensor, products: Tensor, basis: Tensor) -> float:
    """Standard deviation of the noise in an entry of G.

    G lies in the span of D's rows but for noise, so what sticks out shows it: G - V V^T G has (width - P) d free
    entries. Where there are no more rows than patches, rounding is all that is known of.
    """
    width, patches = products.shape[0], errors.shape[0]
    # Rounding reaches G from its own entries, and from those of D through the patches.
    rounding = ROUNDING * float(products.square().mean().sqrt() + errors.square().sum(0).mean().sqrt())
    if width <= patches:
        return rounding
    outside = products - basis.T @ (basis @ products)
    return max(rounding, float((outside.square().sum() / ((width - patches) * products.shape[1])).sqrt()))


def _laplacian(image: Tensor) -> Tensor:
    """Half the gradient of the sum of squared differences of neighboring pixels."""
    found = torch.zeros_like(image)
    for axis in (-2, -1):
        steps = image.diff(dim=axis)
        found.narrow(axis, 1, steps.shape[axis]).add_(steps)
        found.narrow(axis, 0, steps.shape[axis]).sub_(steps)
    return found
