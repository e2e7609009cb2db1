"""Residual networks (He et al. 2016) of 10, 18 and 34 layers, by width, activation, norm and stem."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from seepage.base.registry import models
from seepage.federation.models.convnet import ACTIVATIONS, Activation
from seepage.federation.models.normalize import Normalize

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, act: Callable[[], nn.Module], batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=not batch_norm)
        self.norm1 = _norm(after, batch_norm)
        self.act1 = act()
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=not batch_norm)
        self.norm2 = _norm(after, batch_norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            one = nn.Conv2d(before, after, 1, stride=stride, bias=not batch_norm)
            self.shortcut = nn.Sequential(one, _norm(after, batch_norm))
        self.act2 = act()

    def forward(self, inputs: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(inputs)))))
        output: Tensor = self.act2(inner + self.shortcut(inputs))
        return output


class ResNet(nn.Module):
    """Stem, four stages of blocks, mean over the map, one fully connected layer."""

    def __init__(self, stem: nn.Module, stages: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.normalize = Normalize()
        self.stem = stem
        self.stages = stages
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.stages(self.stem(self.normalize(inputs)))
        output: Tensor = self.head(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return output


@models.register("resnet")
def resnet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    depth: Literal[10, 18, 34] = 10,
    width: int = 64,
    activation: Activation = "relu",
    batch_norm: bool = True,
    stem: Literal["small", "large"] = "small",
) -> nn.Module:
    """A residual network with basic blocks; ResNet-10 of width 64 has 4,902,090 parameters on grey images.

    That is the number FedLeak (Fan et al. 2025, footnote 3) gives for its ResNet10; its ResNet10_x3 and _x5 are
    widths 192 and 320.

    Args:
        input_shape: `[C, H, W]`.
        num_classes: Outputs.
        depth: 10, 18 or 34 layers: 1, 2 or 3 to 6 blocks per stage.
        width: Channels of the first stage; each stage has twice the last one's.
        activation: `relu`, `leaky_relu`, `gelu` or `sigmoid`, everywhere.
        batch_norm: Batch norm after each convolution; without, convolutions have biases.
        stem: `small`: a 3x3 convolution, for images of about 32 pixels. `large`: 7x7 with stride 2 and max pooling,
            for about 224.

    >>> sum(p.numel() for p in resnet((1, 32, 32), 10).parameters())
    4902090
    """
    act, channels = ACTIVATIONS[activation], input_shape[0]
    kernel, stride = (3, 1) if stem == "small" else (7, 2)
    first: list[nn.Module] = [
        nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=not batch_norm),
        _norm(width, batch_norm),
        act(),
    ]
    if stem == "large":
        first.append(nn.MaxPool2d(3, stride=2, padding=1))
    blocks: list[nn.Module] = []
    before = width
    for stage, count in enumerate(BLOCKS[depth]):
        after = width * 2**stage
        for place in range(count):
            blocks.append(ResidualBlock(before, after, 2 if stage and not place else 1, act, batch_norm))
            before = after
    return ResNet(nn.Sequential(*first), nn.Sequential(*blocks), nn.Linear(before, num_classes))


def _norm(channels: int, batch_norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()
