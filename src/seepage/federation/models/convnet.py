"""Small convolutional networks: a ReLU one as people train, and those of the DLG and the R-GAP paper."""

from typing import Literal

import torch
from torch import nn

from seepage.base.registry import models
from seepage.federation.models.normalize import Normalize

Activation = Literal["relu", "leaky_relu", "gelu", "sigmoid"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
}


def _flat_size(features: nn.Module, input_shape: tuple[int, ...]) -> int:
    with torch.no_grad():
        return int(features(torch.zeros(1, *input_shape)).numel())


@models.register("convnet")
def convnet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: int = 32,
    activation: Activation = "relu",
    batch_norm: bool = False,
) -> nn.Sequential:
    """Three 3x3 convolutions (the last two with stride 2) and one fully connected layer.

    Args:
        input_shape: `[C, H, W]`.
        num_classes: Outputs.
        width: Channels of the first layer; the second and third have twice as many.
        activation: `relu`, `leaky_relu`, `gelu` or `sigmoid`.
        batch_norm: Put a batch norm after each convolution.
    """
    widths = (input_shape[0], width, 2 * width, 2 * width)
    layers: list[nn.Module] = [Normalize()]
    for i, stride in enumerate((1, 2, 2)):
        layers.append(nn.Conv2d(widths[i], widths[i + 1], 3, stride=stride, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(widths[i + 1]))
        layers.append(ACTIVATIONS[activation]())
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(_flat_size(features.eval(), input_shape), num_classes)).train()


@models.register("lenet")
def lenet(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """The network of Deep Leakage from Gradients (NeurIPS 2019): three 5x5 sigmoid convolutions, one linear layer.

    Strides 2, 2, 1; 12 channels each; every weight and bias uniform in [-0.5, 0.5], which keeps the
    sigmoids steep. No normalization layer, as in the original.

    Args:
        input_shape: `[C, H, W]`.
        num_classes: Outputs.
    """
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, 12, 5, stride=stride, padding=2), nn.Sigmoid()]
        channels = 12
    features = nn.Sequential(*layers, nn.Flatten())
    model = nn.Sequential(*features, nn.Linear(_flat_size(features, input_shape), num_classes))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


@models.register("cnn6")
def cnn6(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """CNN6 of R-GAP (Zhu and Blaschko, ICLR 2021), as its released code has it: no bias, LeakyReLU 0.2, no pooling.

    Six convolutions (4x4, then 3x3; strides 2, 2, 1, 1, 2, 1; 12, 36, 36, 36, 64 and 128 channels) and one linear
    layer, without a normalization in front. Deviation: one output per class in place of one logistic output.

    Args:
        input_shape: `[C, H, W]`.
        num_classes: Outputs.

    >>> sum(p.numel() for p in cnn6((3, 32, 32), 10).parameters())
    154256
    """
    plan = [(12, 4, 2, 2), (36, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1), (128, 3, 1, 1)]
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for width, kernel, stride, padding in plan:
        layers += [nn.Conv2d(channels, width, kernel, stride, padding, bias=False), nn.LeakyReLU(0.2)]
        channels = width
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(_flat_size(features, input_shape), num_classes, bias=False))
