"""Wording on images that several packages share."""

from torch import Tensor


def neighbor_differences(images: Tensor) -> tuple[Tensor, Tensor]:
    """Absolute differences of neighboring pixels, whose means or sums are an anisotropic total variation.

    Each paper reduces them in its own way, so the reduction is the caller's: a mean for each direction (whose counts
    differ by a row), or a sum. `torchmetrics` has a sum over both directions alone.

    Args:
        images: `[..., H, W]`.

    Returns:
        Down `[..., H - 1, W]` and across `[..., H, W - 1]`.

    >>> import torch
    >>> down, across = neighbor_differences(torch.tensor([[0.0, 1.0], [3.0, 3.0]]))
    >>> down.tolist(), across.tolist()
    ([[3.0, 2.0]], [[1.0], [0.0]])
    """
    return (images[..., 1:, :] - images[..., :-1, :]).abs(), (images[..., 1:] - images[..., :-1]).abs()
