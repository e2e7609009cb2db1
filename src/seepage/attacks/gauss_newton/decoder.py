"""A first guess: images read off features by a linear decoder that is fitted on made-up images."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from seepage.attacks.gauss_newton.spectrum import NaturalSpectrum

EXAMPLES = 512
"""Made-up images that a decoder is fitted on."""
RIDGE = 1e-3
"""Weight of the squared coefficients, as a share of the features' mean square."""
NEIGHBORS = 3
"""A block of pixels is read off features of this many positions along each side."""
AT_ONCE = 64
"""Images passed through the network at a time."""
MOST_COEFFICIENTS = 6_000
"""Features read per block above which only those at the block's own position are read."""


class Decoder:
    """Ridge regression from the features around each position to the block of pixels under it.

    The attacker has the network and can pass any images through it, so this takes no data. Where features have no
    positions (behind global pooling) or positions that do not divide the image, one block is the whole image.

    Args:
        features: From images `[n, C, H, W]` in [0, 1] to features `[n, c, h, w]`.
        shape: `(C, H, W)`.
        draw: Draws the made-up images.
    """

    def __init__(self, features: Callable[[Tensor], Tensor], shape: tuple[int, ...], draw: Generator) -> None:
        images = NaturalSpectrum(shape).samples(EXAMPLES, draw)
        with torch.no_grad():
            found = torch.cat([features(part) for part in images.split(AT_ONCE)])
        images = images.to(found)
        self.shape = shape
        self.divides = shape[1] % found.shape[2] == 0 and shape[2] % found.shape[3] == 0
        found = self._placed(found)
        self.block = (shape[1] // found.shape[2], shape[2] // found.shape[3])
        self.near = NEIGHBORS if found.shape[1] * NEIGHBORS**2 <= MOST_COEFFICIENTS else 1
        self.scale = found.square().mean().sqrt().clamp(min=1e-12)
        read = self._read(found)  # [m, d]
        wanted = F.unfold(images, self.block, stride=self.block).transpose(1, 2).reshape(len(read), -1)
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
        image = F.fold(blocks.transpose(1, 2), self.shape[1:], self.block, stride=self.block)
        return image.clamp(0, 1)


def _ridge(read: Tensor, wanted: Tensor) -> Tensor:
    """`[d, p]` coefficients B of `|read B - wanted|^2 + ridge |B|^2`, by whichever normal equations are smaller."""
    dtype = read.dtype
    read, wanted = read.double(), wanted.double()
    ridge = RIDGE * float(read.square().mean()) * len(read)
    if read.shape[1] <= len(read):
        # (A^T A + r I) B = A^T Y
        gram = read.T @ read
        gram.diagonal().add_(ridge)
        primal: Tensor = torch.linalg.solve(gram, read.T @ wanted)
        return primal.to(dtype)
    # B = A^T (A A^T + r I)^-1 Y
    gram = read @ read.T
    gram.diagonal().add_(ridge)
    dual: Tensor = read.T @ torch.linalg.solve(gram, wanted)
    return dual.to(dtype)
