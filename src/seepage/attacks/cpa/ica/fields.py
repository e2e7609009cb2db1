"""Linear filters along the pixel axis that make mixed images sparse and nearly independent."""

import torch
from torch import Tensor

OPPONENT = (
    (1.0, 1.0, 1.0),
    (1 / 0.35, -1 / 0.35, 0.0),
    (0.5 / 0.35, 0.5 / 0.35, -1 / 0.35),
)
"""Light, red against green, yellow against blue; color differences of photographs vary about 0.35 as much as light."""


def opponent(images: Tensor) -> Tensor:
    """`[r, 3, H, W]` color images in opponent colors; images of other channel counts are returned as they are."""
    if images.shape[1] != 3:
        return images
    return torch.einsum("oc,rchw->rohw", torch.tensor(OPPONENT).to(images), images)


def difference_fields(rows: Tensor, shape: tuple[int, ...], *, diagonal: bool = True) -> Tensor:
    """Differences of neighboring pixels of flattened images, in opponent colors.

    A linear map of the pixel axis, so it commutes with any mixing of the rows. Differences of photographs are
    sparse, and nearly independent between photographs, where pixels are neither.

    Args:
        rows: `[r, d]` flattened images (or mixtures of them).
        shape: `(C, H, W)`, or any other shape, whose last two sides are then its grid; one of fewer than two sides,
            or with a side of one, is used as it is.
        diagonal: Also take the difference down of the difference across.

    Returns:
        `[r, f, p]`: `f` fields at each of `p` places.

    >>> difference_fields(torch.rand(2, 3 * 8 * 8), (3, 8, 8)).shape
    torch.Size([2, 9, 49])
    """
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return rows[:, None]
    height, width = shape[-2:]
    images = opponent(rows.reshape(len(rows), -1, height, width))
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    parts = [across[..., 1:, :], down[..., :, 1:]]
    if diagonal:
        parts.append(across[..., 1:, :] - across[..., :-1, :])
    return torch.cat(parts, 1).flatten(2)


def balanced(fields: Tensor) -> Tensor:
    """Fields made uncorrelated and of equal size by their covariance over all rows and places.

    Mixing commutes with it. Without it the strongest fields speak for all; the weak ones, diagonal differences and
    colors, are as sparse and carry as much information.

    Args:
        fields: `[r, f, p]`.

    >>> draw = torch.Generator().manual_seed(0)
    >>> whitened = balanced(torch.randn(4, 2, 500, generator=draw) * torch.tensor([[5.0], [0.1]]))
    >>> whitened.square().mean((0, 2))
    tensor([1.0000, 1.0000])
    """
    flat = fields.transpose(0, 1).flatten(1).double()  # [f, r p]
    sizes, vectors = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    # A field that is nearly nothing, as color is in grey images, is rounding and stays small.
    change = (vectors / sizes.clamp(min=float(sizes.max()) * 1e-4 + 1e-300).sqrt()).T
    even: Tensor = change.to(fields) @ fields
    return even
