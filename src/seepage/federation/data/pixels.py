"""From pixels of any size to `[C, H, W]` in [0, 1]. One rule: central square, then antialiased bilinear resize."""

import torch
from torch import Tensor
from torch.nn import functional

# ITU-R BT.601, the weights behind Pillow's mode "L", so that arrays and image files turn grey alike.
LUMA = (0.299, 0.587, 0.114)


def as_float(images: Tensor) -> Tensor:
    """Bytes 0..255 as float32 in [0, 1]; floats pass through as float32."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def fit(images: Tensor, size: int | None, channels: int | None) -> Tensor:
    """Bring images to a number of channels and a square size.

    Args:
        images: `[n, C, H, W]` float in [0, 1], C = 1 or 3.
        size: Side in pixels, or None to leave height and width alone.
        channels: 1 (luma) or 3 (grey is repeated), or None to leave them alone.

    Returns:
        `[n, channels, size, size]`, float in [0, 1].

    >>> fit(torch.ones(2, 3, 6, 8), 4, 1).shape
    torch.Size([2, 1, 4, 4])
    """
    if channels == 1 and images.shape[1] == 3:
        images = (images * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    elif channels == 3 and images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    height, width = images.shape[-2:]
    if size is None or (height == size and width == size):
        return images.contiguous()
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    square = images[..., top : top + edge, left : left + edge]
    resized = functional.interpolate(square, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return resized.clamp(0, 1)


def fitted_shape(shape: tuple[int, int, int], size: int | None, channels: int | None) -> tuple[int, int, int]:
    """The shape `(C, H, W)` that `fit` makes of images of `shape`."""
    height, width = (size, size) if size is not None else shape[1:]
    return channels or shape[0], height, width
