"""Small convolutional networks that the generative attacks train: encoder and decoder of images, and an enhancer."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.search.generator import growing_maps

SMALLEST = 4
"""Least side of the decoder's first map, which is doubled as long as it fits into the image."""


class InRange(nn.Module):
    """Any number to the value range, by a sigmoid; the middle of a slightly too large image."""

    def __init__(self, size: tuple[int, int], bounds: tuple[float, float]) -> None:
        super().__init__()
        self.size, self.bounds = size, bounds

    def forward(self, maps: Tensor) -> Tensor:
        """`[n, c, H, W]` to `[n, c, *size]` within the bounds."""
        (height, width), (low, high) = self.size, self.bounds
        top, left = (maps.shape[2] - height) // 2, (maps.shape[3] - width) // 2
        return low + (high - low) * maps[..., top : top + height, left : left + width].sigmoid()


def decoder(shape: tuple[int, ...], latent: int, width: int, bounds: tuple[float, float]) -> nn.Sequential:
    """A network from `[n, latent]` numbers to `[n, *shape]` images within `bounds`.

    A linear layer makes a map of at least 4 x 4, then blocks of nearest up-sampling by 2, 3 x 3 convolution, batch norm
    and LeakyReLU 0.2, then a 3 x 3 convolution and a sigmoid.

    >>> decoder((3, 25, 25), 8, 2, (0.0, 1.0))(torch.zeros(2, 8)).shape
    torch.Size([2, 3, 25, 25])
    """
    widths, small = growing_maps(shape, width, SMALLEST)
    layers: list[nn.Module] = [nn.Linear(latent, widths[0] * math.prod(small)), nn.Unflatten(1, (widths[0], *small))]
    for before, after in pairwise(widths):
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [nn.Upsample(scale_factor=2), convolution, nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
    last = nn.Conv2d(widths[-1], shape[0], 3, padding=1)
    return nn.Sequential(*layers, last, InRange((shape[1], shape[2]), bounds))


def encoder(shape: tuple[int, ...], latent: int, width: int) -> nn.Sequential:
    """A network from `[n, *shape]` images to `[n, 2 latent]`: means and log variances."""
    widths, _ = growing_maps(shape, width, SMALLEST)
    layers: list[nn.Module] = []
    for before, after in pairwise([shape[0], *widths[-2::-1]]):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        count = body(torch.zeros(2, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(count, 2 * latent))


class Enhancer(nn.Module):
    """Adds what an image lacks, such as detail, or minus its noise: four 3 x 3 convolutions added to the image.

    >>> fresh = Enhancer(3, 4)
    >>> torch.equal(fresh(torch.ones(1, 3, 8, 8)), torch.ones(1, 3, 8, 8))
    True
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        last = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.zeros_(last.weight)  # it starts as the identity
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        inner = [nn.Conv2d(channels if i == 0 else width, width, 3, padding=1) for i in range(3)]
        self.body = nn.Sequential(*[layer for conv in inner for layer in (conv, nn.LeakyReLU(0.2))], last)

    def forward(self, images: Tensor) -> Tensor:
        """`[n, c, H, W]` to the same."""
        enhanced: Tensor = images + self.body(images)
        return enhanced


class UpSampler(nn.Module):
    """Bicubic up-sampling to a size, and an `Enhancer` that adds what it left out.

    >>> UpSampler(3, 4, (7, 8))(torch.ones(1, 3, 2, 2)).shape
    torch.Size([1, 3, 7, 8])
    """

    def __init__(self, channels: int, width: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        self.detail = Enhancer(channels, width)

    def forward(self, images: Tensor) -> Tensor:
        """`[n, c, h, w]` to `[n, c, *size]`."""
        enlarged: Tensor = self.detail(stretched(images, self.size))
        return enlarged


def low_size(size: tuple[int, int], scale: int) -> tuple[int, int]:
    """Sides of the low-resolution image.

    >>> low_size((32, 25), 4)
    (8, 7)
    """
    return -(-size[0] // scale), -(-size[1] // scale)


def stretched(small: Tensor, size: tuple[int, int]) -> Tensor:
    """Bicubic up-sampling to `size`."""
    return F.interpolate(small, size=size, mode="bicubic", align_corners=False)


def shrunk(images: Tensor, scale: int) -> Tensor:
    """Means of the squares that one value of the low-resolution image stands for."""
    return F.adaptive_avg_pool2d(images, low_size((images.shape[2], images.shape[3]), scale))
