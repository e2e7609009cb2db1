"""Fully connected networks on flattened inputs."""

from math import prod

from torch import nn

from seepage.base.registry import models
from seepage.federation.models.normalize import Normalize


@models.register("fc2")
def fc2(input_shape: tuple[int, ...], num_classes: int, *, hidden: int = 256) -> nn.Sequential:
    """FC-2 of the Cocktail Party Attack (ICML 2023, section 5): `d -> hidden -> classes` with a ReLU.

    Args:
        input_shape: Shape of one example, `[C, H, W]` or any other.
        num_classes: Outputs.
        hidden: Width of the hidden layer; the paper uses 256 for every data set.

    >>> sum(p.numel() for p in fc2((1, 8, 8), 10, hidden=4).parameters())
    310
    """
    return nn.Sequential(
        Normalize(), nn.Flatten(), nn.Linear(prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    )


@models.register("mlp3")
def mlp3(input_shape: tuple[int, ...], num_classes: int, *, hidden: int = 256) -> nn.Sequential:
    """Three fully connected layers with ReLU: `d -> hidden -> hidden -> classes`.

    FedLeak's section 3 speaks of three hidden layers and its appendix A of three layers: this has three layers, two of
    them hidden.

    Args:
        input_shape: Shape of one example.
        num_classes: Outputs.
        hidden: Width of the hidden layers.
    """
    return nn.Sequential(
        Normalize(),
        nn.Flatten(),
        nn.Linear(prod(input_shape), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )
