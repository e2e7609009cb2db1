"""Images without any data: noise with the spectrum and the colors that photographs have on average."""

import math

import torch
from torch import Generator, Tensor

OPPONENTS = ((1.0, 1.0, 1.0), (1.0, -1.0, 0.0), (1.0, 1.0, -2.0))
"""Luminance, red against green, and yellow against blue: colors of photographs vary independently along these."""
SPREAD = (1.0, 0.4, 0.25)
"""How far photographs vary along each, luminance being 1."""


def synthetic_images(count: int, shape: tuple[int, ...], bounds: tuple[float, float], draw: Generator) -> Tensor:
    """Images `[count, C, H, W]` of an amplitude spectrum `1 / f`, as natural images have (Field 1987).

    Contrast and mean color are drawn for each image. Whoever knows the network can make them: no data is behind them.

    Args:
        count: How many.
        shape: `(C, H, W)`.
        bounds: The value range, into which they are clipped.
        draw: Where the numbers come from.

    >>> images = synthetic_images(2, (3, 8, 8), (0.0, 1.0), torch.Generator().manual_seed(0))
    >>> tuple(images.shape), bool((images >= 0).all() and (images <= 1).all())
    ((2, 3, 8, 8), True)
    """
    channels, height, width = shape
    white = torch.randn((count, channels, height, width), generator=draw)
    if channels == 3:
        axes = torch.nn.functional.normalize(torch.tensor(OPPONENTS), dim=1) * torch.tensor(SPREAD)[:, None]
        white = torch.einsum("oc,nohw->nchw", axes, white)
    # |F(f)| = 1 / (f + f_0), with f in cycles per pixel and f_0 = 1 / side where the mean would be infinite.
    frequency = (torch.fft.fftfreq(height)[:, None].square() + torch.fft.rfftfreq(width).square()).sqrt()
    spectrum = torch.fft.rfft2(white) / (frequency + 1 / max(height, width))
    noise = torch.fft.irfft2(spectrum, s=(height, width))
    noise = noise - noise.mean((2, 3), keepdim=True)
    noise = noise / noise.flatten(1).std(1).clamp(min=1e-6)[:, None, None, None]

    contrast = 0.05 + 0.3 * torch.rand((count, 1, 1, 1), generator=draw)
    brightness = 0.2 * torch.randn((count, 1, 1, 1), generator=draw)
    color = 0.06 * torch.randn((count, channels, 1, 1), generator=draw)
    low, high = bounds
    share: Tensor = 0.5 + brightness + color + contrast * noise
    return low + (high - low) * share.clamp(0, 1)


def batches(count: int, size: int) -> list[slice]:
    """Slices of at most `size` that cover `count`, the last one a full one where batch statistics are at stake.

    >>> batches(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(3, 5, None)]
    """
    starts = [min(start, max(count - size, 0)) for start in range(0, size * math.ceil(count / size), size)]
    return [slice(start, min(start + size, count)) for start in starts]
