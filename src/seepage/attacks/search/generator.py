"""An untrained generator as parameterization: the unknowns are its weights, its input is noise that stays fixed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from seepage.attacks.search.parameters import Parameterization, SearchSpace, check_images
from seepage.base.nn import frozen_randomness
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge

SLOPE = 0.1
"""Of each LeakyReLU, below zero."""


def growing_maps(shape: tuple[int, ...], width: int, smallest: int) -> tuple[list[int], list[int]]:
    """Channels of each map from the smallest to the full size, each twice as large, and the sides of the smallest."""
    _, *size = shape
    doublings = max(1, int(math.log2(max(size) / smallest)))
    widths = [width * min(4, 2 ** (doublings - i)) for i in range(doublings + 1)]
    return widths, [-(-side // 2**doublings) for side in size]


class _UnitNorm(nn.Module):
    """Spectral norm, exactly: PyTorch's own keeps a power iteration's state, and a space has no state."""

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.flatten(1)
        if len(rows) > rows.shape[1]:
            rows = rows.T
        largest: Tensor = torch.linalg.eigvalsh(rows @ rows.T)[-1]
        return weight / largest.clamp(min=1e-12).sqrt()


@dataclass(frozen=True, kw_only=True)
class UntrainedGenerator(Parameterization):
    """Images as outputs of a small convolutional network with random weights, which are the unknowns.

    After FedLeak's released code and the deep image prior: each image has `latent` normal numbers of its own that stay
    as drawn; a transposed convolution with BatchNorm over the batch and LeakyReLU makes a small map of them; then
    blocks of nearest up-sampling by 2, 3 x 3 convolution with spectral norm, BatchNorm and LeakyReLU; at last a 1 x 1
    convolution and a sigmoid, scaled to the value range. Slopes are 0.1, and first weights those that PyTorch draws by
    default. Where a size cannot be halved that often, the image is the middle of a slightly larger one.

    The two ends matter: with signs of gradients every weight moves by the rate, so a 3 x 3 head moves a pixel nine
    times as far as a 1 x 1 one; what lies before the last BatchNorm has no scale.

    Deviations: the widths are ours; one convolution for each size where the released code has two and a further block
    on the smallest map; the spectral norm is exact, not one power iteration.

    Args:
        latent: Numbers per image.
        width: Channels of the last block; the first has four times as many.
        smallest: Least side of the first map, which is doubled as long as it fits.
    """

    latent: int = 128
    width: int = 32
    smallest: int = 4

    def __post_init__(self) -> None:
        if min(self.latent, self.width, self.smallest) < 1:
            raise SeepageError(f"a generator needs whole numbers from 1 up, got {self}; correct the recipe")

    def check(self, knowledge: Knowledge) -> None:
        check_images(knowledge, "an untrained generator")

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        channels, *size = knowledge.input_shape
        widths, small = growing_maps(knowledge.input_shape, self.width, self.smallest)
        grown = 2 ** (len(widths) - 1)
        with frozen_randomness(0):  # layers fill themselves from the global generator; the numbers are not used
            network = self._network(channels, small, widths).train()
        names, fan_in = [], 0
        for name, weight in network.named_parameters():
            names.append(name)
            fan_in = weight[0].numel() if weight.ndim > 1 else 0 if name.endswith("weight") else fan_in
            _draw(name, weight.detach(), fan_in, generator)
        network = network.to(like)
        noise = torch.randn((batch_size, self.latent, 1, 1), generator=generator).to(like)
        low, high = knowledge.value_range
        cut = [(first * grown - side) // 2 for first, side in zip(small, size, strict=True)]

        def decode(unknowns: Sequence[Tensor]) -> Tensor:
            whole: Tensor = functional_call(network, dict(zip(names, unknowns, strict=True)), (noise,))
            top, left = cut
            return low + (high - low) * whole[..., top : top + size[0], left : left + size[1]]

        weights = [weight.detach().clone() for weight in network.parameters()]
        return SearchSpace(weights, decode, lambda unknowns: list(unknowns))

    def _network(self, channels: int, small: list[int], widths: list[int]) -> nn.Sequential:
        first = nn.ConvTranspose2d(self.latent, widths[0], (small[0], small[1]))
        layers: list[nn.Module] = [first, nn.BatchNorm2d(widths[0], track_running_stats=False), nn.LeakyReLU(SLOPE)]
        for before, after in pairwise(widths):
            convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            parametrize.register_parametrization(convolution, "weight", _UnitNorm())
            norm = nn.BatchNorm2d(after, track_running_stats=False)
            layers += [nn.Upsample(scale_factor=2), convolution, norm, nn.LeakyReLU(SLOPE)]
        return nn.Sequential(*layers, nn.Conv2d(widths[-1], channels, 1), nn.Sigmoid())


def _draw(name: str, weight: Tensor, fan_in: int, generator: Generator) -> None:
    """First weights from the generator, uniform within 1 / sqrt(fan in), PyTorch's default; norms are the identity."""
    if fan_in:
        weight.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
    else:
        weight.fill_(0.0 if name.endswith("bias") else 1.0)
