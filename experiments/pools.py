"""Networks that take maxima, as others train them: LEAF's for FEMNIST, and PyTorch's example for MNIST without dropout.

python experiments/convolutions.py --data mnist.npz --model pools:leaf --batch 1 4 --steps 200 --labels-unknown --out pools
"""  # noqa: E501

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Pooled(nn.Module):
    """Convolutions, with a pool behind those that are named, then two fully connected layers."""

    def __init__(self, kernel: int, padding: int, pools: tuple[int, ...], wide: int, out: int) -> None:
        super().__init__()
        both = ((1, 32), (32, 64))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, kernel, padding=padding) for a, b in both)
        self.pools = pools
        self.first, self.last = nn.LazyLinear(wide), nn.Linear(wide, out)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.convolutions):
            x = layer(x).relu()
            x = F.max_pool2d(x, 2) if number in self.pools else x
        return self.last(self.first(x.flatten(1)).relu())


def leaf(num_classes: int) -> nn.Module:
    return _made(Pooled(5, 2, (0, 1), 2048, num_classes))


def narrow_leaf(num_classes: int) -> nn.Module:
    return _made(Pooled(5, 2, (0, 1), 256, num_classes))


def mnist_example(num_classes: int) -> nn.Module:
    return _made(Pooled(3, 0, (1,), 128, num_classes))


def _made(model: nn.Module) -> nn.Module:
    model(torch.zeros(1, 1, 28, 28))
    return model


class Tutorial(nn.Module):
    """PyTorch's tutorial network for CIFAR-10: 400 numbers are left of 3,072 behind its second pool."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.c, self.d, self.e = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, out)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = F.max_pool2d(layer(x).relu(), 2)
        return self.e(self.d(self.c(x.flatten(1)).relu()).relu())


def tutorial(num_classes: int) -> nn.Module:
    return Tutorial(num_classes)
