"""What images look like before one is seen: the spectrum of natural images, as a prior and as a source of examples."""

import math
from typing import Self

import torch
from torch import Generator, Tensor

COLOR_DEVIATIONS = (1.0, 0.4, 0.2)
"""Of the luminance and of the two opponent colors (red-blue, green-magenta), relative to the first."""


def cosine_basis(size: int) -> Tensor:
    """`[size, size]` the orthonormal discrete cosine transform, one frequency per row."""
    k = torch.arange(size, dtype=torch.float64)
    # cos(pi (x + 1/2) f / size): rows are frequencies f, columns places x; the first row is constant.
    basis = torch.cos(math.pi * (k[None] + 0.5) * k[:, None] / size) * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)  # so that B B^T = I
    return basis.float()


class NaturalSpectrum:
    """Independent cosine coefficients of opponent colors whose deviation falls as `1 / sqrt(1 + f^2)`.

    An image is `x = 1/2 + K u` with u standard normal up to one scale. f counts half periods along each side. The
    spectrum of photographs falls like this; no data set was used.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        channels, height, width = shape
        self.rows, self.columns = cosine_basis(height), cosine_basis(width)
        squares = torch.arange(height).square()[:, None] + torch.arange(width).square()[None]
        deviation = (1.0 + squares).rsqrt()  # [H, W]
        if channels == 3:
            colors = torch.tensor([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]])
            self.colors = colors / colors.norm(dim=1, keepdim=True)
            self.deviation = deviation * torch.tensor(COLOR_DEVIATIONS)[:, None, None]
        else:
            self.colors = torch.eye(channels)
            self.deviation = deviation.expand(channels, -1, -1)

    def to(self, like: Tensor) -> Self:
        """Move it to the type and device of a tensor, in place."""
        for name in ("rows", "columns", "colors", "deviation"):
            setattr(self, name, getattr(self, name).to(like))
        return self

    def coefficients(self, x: Tensor) -> Tensor:
        """`[n, C, H, W]` cosine coefficients of opponent colors, not yet divided by their deviation."""
        # B_h X B_w^T for each channel, and then channels to opponent colors.
        return torch.einsum("ij,njhw->nihw", self.colors, self.rows @ x @ self.columns.T)

    def image(self, coefficients: Tensor) -> Tensor:
        """The reverse of `coefficients`."""
        return torch.einsum("ij,nihw->njhw", self.colors, self.rows.T @ coefficients @ self.columns)

    def precision(self, x: Tensor) -> Tensor:
        """`K^-T K^-1 x`: the inverse of the covariance, applied to `[n, C, H, W]`."""
        # K = U diag(deviation) with an orthogonal U (cosines and colors), so K^-T K^-1 = U diag(deviation^-2) U^T.
        return self.image(self.coefficients(x) / self.deviation.square())

    def samples(self, count: int, draw: Generator) -> Tensor:
        """`[count, C, H, W]` made-up images in [0, 1]: noise of this spectrum, half of it cut into flat areas.

        Contrast, brightness and tint vary from image to image. Photographs have flat areas and edges, hence the half
        whose values are rounded to a few levels.
        """
        channels = len(self.colors)
        x = self.image(torch.randn((count, *self.deviation.shape), generator=draw) * self.deviation)
        x = x - x.mean((2, 3), keepdim=True)
        contrast = torch.rand((count, 1, 1, 1), generator=draw) * 0.3 + 0.05
        x = x / x.flatten(1).std(1).clamp(min=1e-12)[:, None, None, None] * contrast
        levels = torch.rand((count, 1, 1, 1), generator=draw) * 0.3 + 0.1
        # Every second image: each value four fifths of the way to its level.
        x[::2] = (0.8 * (x / levels).round() * levels + 0.2 * x)[::2]
        brightness = 0.5 + 0.2 * torch.randn((count, 1, 1, 1), generator=draw)
        tint = 0.06 * torch.randn((count, channels, 1, 1), generator=draw)
        return (x + brightness + tint).clamp(0, 1)
