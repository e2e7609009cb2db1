"""A linear decoder from features back to images, fitted on made-up images."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from seepage.attacks.network.cut import ROWS_AT_ONCE
from seepage.attacks.reading.decoding.spectrum import NaturalSpectrum

EXAMPLES = 512
"""Made-up images that a decoder is fitted on: as many forward passes of one example."""
RIDGE = 1e-3
"""Weight of the squared coefficients, as a share of the features' mean square."""
AT_ONCE = 64
"""Images passed through the network at a time."""
REACHES = ((5, 600), (3, 6_000))
"""Side of the neighborhood that a block is read off, and the features in it up to which it is taken: the widest that
fits. Above the last, only those at the block's own position are read."""


class Decoder:
    """Ridge regression from the features around each position to the block of pixels under it.

    The attacker has the network and can pass any images through it, so this takes no data. The same coefficients hold
    at all positions, as in a convolution. Where features have no positions (behind global pooling) or positions that do
    not divide the image, one block is the whole image, and little more than its color is decoded.

    Args:
        features: From images `[n, C, H, W]` in [0, 1] to features `[n, c, h, w]`; `[n, c, 1, 1]` without positions.
        shape: `(C, H, W)`.
        draw: Draws the made-up images.
        at_once: Images that `features` is given at a time. All batches are full, as statistics of a batch may matter.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> halved = Decoder(lambda x: torch.nn.functional.avg_pool2d(x, 2), (1, 8, 8), draw)
        >>> flat = halved(torch.full((1, 1, 4, 4), 0.75))
        >>> tuple(flat.shape), bool((flat - 0.75).abs().max() < 0.05)
        ((1, 1, 8, 8), True)
    """

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        draw: Generator,
        at_once: int = AT_ONCE,
    ) -> None:
        images = NaturalSpectrum(shape).samples(EXAMPLES, draw)
        images = torch.cat([images[part] for part in _full_batches(EXAMPLES, at_once)])
        with torch.no_grad():
            found = torch.cat([features(part) for part in images.split(at_once)])
        self.shape = shape
        self.divides = shape[1] % found.shape[2] == 0 and shape[2] % found.shape[3] == 0
        found = self._placed(found)
        _, width, *positions = found.shape
        self.block = (shape[1] // positions[0], shape[2] // positions[1])
        self.near = next((side for side, most in REACHES if width * side**2 <= most and max(positions) > 1), 1)
        # Features of mean square 1: one ridge then suits every network.
        self.scale = found.square().mean().sqrt().clamp(min=1e-12)
        read = self._read(found)  # [m, d]
        # Blocks of pixels around mid-grey, in the same order as the rows of what is read: [m, C block].
        wanted = F.unfold(images.to(found) - 0.5, self.block, stride=self.block).transpose(1, 2).reshape(len(read), -1)
        self.weights = _ridge(read, wanted)

    def _placed(self, features: Tensor) -> Tensor:
        """Features with one position each, where their positions do not divide the image."""
        return features if self.divides else features.flatten(1)[:, :, None, None]

    def _read(self, features: Tensor) -> Tensor:
        """`[n positions, d]` what each block is read off, with a constant."""
        read = F.unfold(features / self.scale, self.near, padding=self.near // 2).transpose(1, 2).flatten(0, 1)
        return torch.cat([read, read.new_ones(len(read), 1)], 1)

    def __call__(self, features: Tensor) -> Tensor:
        """Images `[n, C, H, W]` in [0, 1] for features `[n, c, h, w]`."""
        blocks = (self._read(self._placed(features)) @ self.weights).view(len(features), -1, self.weights.shape[1])
        # [n, C block, positions]: each block at its place.
        image = F.fold(blocks.transpose(1, 2), self.shape[1:], self.block, stride=self.block)
        return (0.5 + image).clamp(0, 1)


def _full_batches(count: int, size: int) -> list[slice]:
    """Slices of `size` that cover `count`; the last one reaches back to be full.

    >>> _full_batches(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(3, 5, None)]
    """
    starts = [min(start, max(count - size, 0)) for start in range(0, size * math.ceil(count / size), size)]
    return [slice(start, min(start + size, count)) for start in starts]


def _ridge(read: Tensor, wanted: Tensor) -> Tensor:
    """`[d, p]` coefficients B of `|read B - wanted|^2 + ridge |B|^2`, by whichever normal equations are smaller."""
    rows, width = read.shape
    if width <= rows:
        # (A^T A + r I) B = A^T Y. Products of some rows are in the type of the features, whose rounding is far below
        # the ridge; sums of them, and the solution, are in float64.
        gram = read.new_zeros((width, width), dtype=torch.float64)
        right = read.new_zeros((width, wanted.shape[1]), dtype=torch.float64)
        for some, aims in zip(read.split(ROWS_AT_ONCE), wanted.split(ROWS_AT_ONCE), strict=True):
            gram += some.T @ some
            right += some.T @ aims
        # The trace is the sum of all squares.
        gram.diagonal().add_(RIDGE * float(gram.trace()) / width)
        primal: Tensor = torch.linalg.solve(gram, right)
        return primal.to(read)
    # B = A^T (A A^T + r I)^-1 Y
    read, wanted, dtype = read.double(), wanted.double(), read.dtype
    gram = read @ read.T
    gram.diagonal().add_(RIDGE * float(gram.trace()) / width)
    dual: Tensor = read.T @ torch.linalg.solve(gram, wanted)
    return dual.to(dtype)
