"""A preconditioner that treats the equations as if they were the same everywhere in the image."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

SPACING = 4
"""Blocks between two probed ones: further than a block reaches through a few convolutions."""
HELD = 1e-3
"""Eigenvalues below this share of the largest are held up, however exact the estimate seems."""
BLOCKS = (4, 2, 1)
"""Sides of a block of pixels, the largest that divides the image."""


class BlockCirculant:
    """The inverse of the block-circulant matrix nearest to `J^T J`.

    Convolutions treat all places alike but for their stride, so `J^T J`, averaged over places and images, is a
    convolution of blocks of pixels: in the Fourier domain one small matrix for each frequency. What masks do
    differently in different places stays for the conjugate gradients.

    Args:
        product: `v -> J^T J v`, on `[n, C, H, W]`.
        like: `[n, C, H, W]` of the same shape, type and device.
    """

    def __init__(self, product: Callable[[Tensor], Tensor], like: Tensor) -> None:
        self._cut(like)
        n, side = len(like), self.side
        size = self.channels * side * side
        # answer[dy, dx, :, j]: mean response at a distance of (dy, dx) blocks to a unit impulse in entry j of a block.
        answer = torch.zeros(self.rows, self.columns, size, size, dtype=torch.float64, device=like.device)
        pairs = torch.zeros(self.rows, self.columns, dtype=torch.float64, device=like.device)
        places = [self._places(i) for i in range(n)]
        for j in range(size):
            channel, y, x = j // side**2, j // side % side, j % side
            # All probed blocks of all images at once: they are far enough apart that their answers hardly overlap.
            impulses = torch.zeros_like(like)
            for i, (ys, xs) in enumerate(places):
                grid = torch.meshgrid(ys * side + y, xs * side + x, indexing="ij")
                impulses[i, channel, grid[0], grid[1]] = 1
            self._collect(answer[..., j], self._blocks(product(impulses)).double(), places)
        self._collect(pairs, torch.ones_like(answer[..., 0, 0]).expand(n, -1, -1), places)
        # A mean over the pairs of blocks that there are: at the border some distances lead out of the image.
        answer /= pairs.clamp(min=1)[..., None, None]
        # A block-circulant matrix is block-diagonal in the Fourier domain: [rows, columns] frequencies, [size, size]
        # each.
        spectrum = torch.fft.fft2(answer, dim=(0, 1))
        # The average of a symmetric matrix is symmetric but for the places at the border.
        spectrum = (spectrum + spectrum.conj().transpose(-1, -2)) / 2
        self.values, self.vectors = torch.linalg.eigh(spectrum)
        # J^T J has no negative eigenvalues, so those found are the estimate's error (what reaches beyond SPACING / 2,
        # what differs from place to place). Others as small are not to be believed either, and taken at their word
        # they would make the inverse huge in directions that are nothing special.
        least, largest = float(self.values.min()), float(self.values.max())
        self.values = self.values.clamp(min=max(-least, HELD * largest))
        self.damp(0.0)

    def _cut(self, like: Tensor) -> None:
        _, self.channels, height, width = like.shape
        self.complex = torch.complex128 if like.dtype == torch.float64 else torch.complex64
        self.side = next(side for side in BLOCKS if height % side == 0 and width % side == 0)
        self.rows, self.columns = height // self.side, width // self.side

    def eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and, in pairs of real numbers, eigenvectors: what a checkpoint keeps."""
        return self.values, torch.view_as_real(self.vectors)

    @classmethod
    def of(cls, eigen: tuple[Tensor, Tensor], like: Tensor) -> Self:
        """The preconditioner that a checkpoint kept, for images `[n, C, H, W]` of this type and device."""
        made = cls.__new__(cls)
        made._cut(like)
        made.values, made.vectors = eigen[0].to(like.device), torch.view_as_complex(eigen[1].to(like.device))
        made.damp(0.0)
        return made

    def _places(self, image: int) -> tuple[Tensor, Tensor]:
        """Rows and columns of the probed blocks of one image; images take turns, so that all places are seen."""
        y, x = image % min(SPACING, self.rows), (image // SPACING + 2 * image) % min(SPACING, self.columns)
        return torch.arange(y, self.rows, SPACING), torch.arange(x, self.columns, SPACING)

    def _collect(self, answer: Tensor, blocks: Tensor, places: list[tuple[Tensor, Tensor]]) -> None:
        """Add what `[n, rows, columns, ...]` holds around each probed block to `[rows, columns, ...]`, by distance."""
        for i, (ys, xs) in enumerate(places):
            for dy in range(-(SPACING // 2), SPACING // 2):
                for dx in range(-(SPACING // 2), SPACING // 2):
                    y, x = ys + dy, xs + dx
                    y, x = y[(y >= 0) & (y < self.rows)], x[(x >= 0) & (x < self.columns)]
                    # Negative distances wrap around, as circular convolution counts them.
                    answer[dy % self.rows, dx % self.columns] += blocks[i][y][:, x].sum((0, 1))

    def _blocks(self, x: Tensor) -> Tensor:
        """`[n, rows, columns, size]` the blocks of pixels of `[n, C, H, W]`."""
        # [n, C, rows, side, columns, side] -> [n, rows, columns, C side side]
        cut = x.view(len(x), self.channels, self.rows, self.side, self.columns, self.side)
        blocks: Tensor = cut.permute(0, 2, 4, 1, 3, 5).flatten(3)
        return blocks

    def damp(self, damping: float) -> None:
        """Make this the inverse of the matrix plus `damping` times the identity."""
        # Q (Lambda + damping)^-1 Q^H, frequency by frequency.
        inverse = self.vectors @ torch.diag_embed(1 / (self.values + damping)).to(self.vectors)
        self.inverse = (inverse @ self.vectors.conj().transpose(-1, -2)).to(self.complex)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the inverse to `[n, C, H, W]`: frequency by frequency."""
        spectrum = torch.fft.fft2(self._blocks(x), dim=(1, 2))
        solved = torch.fft.ifft2(torch.einsum("abij,nabj->nabi", self.inverse, spectrum), dim=(1, 2)).real
        cut = solved.view(len(x), self.rows, self.columns, self.channels, self.side, self.side)
        image: Tensor = cut.permute(0, 3, 1, 4, 2, 5).reshape(x.shape)
        return image
