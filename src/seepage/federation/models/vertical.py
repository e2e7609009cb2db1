"""Vertical federated learning as one module: each party reads its own part of every example, a head joins them."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from seepage.base.nn import in_mode
from seepage.base.registry import models
from seepage.errors import SeepageError

Block = tuple[slice, ...]
"""One party's part of an example: slices over the example's axes, e.g. channels, rows, columns."""

Bend = Literal["relu", "leaky_relu", "sigmoid"]
Body = Literal["convolutions", "flat", "logistic"]
_BENDS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "sigmoid": nn.Sigmoid}


class Party(nn.Module):
    """One party's network: features, the first fully connected layer, and the layers after it.

    Attributes:
        features: From the party's block to `[n, d1]`, the input of `first`. Holds no parameters for tables.
        first: The first fully connected layer, `d1` to `d2`.
        rest: What follows, up to the party's `[n, classes]` output.
    """

    def __init__(self, features: nn.Module, first: nn.Linear, rest: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.first = first
        self.rest = rest

    def forward(self, block: Tensor) -> Tensor:
        output: Tensor = self.rest(self.first(self.features(block)))
        return output


class VerticalModel(nn.Module):
    """Parties and head as one module over whole examples; parameter names carry the party (`parties.2.first.bias`).

    Args:
        blocks: Each party's slices over an example's axes.
        parties: As many networks, each `[n, *block]` to `[n, k]`.
        head: From the joined party outputs to `[n, classes]`.
    """

    def __init__(self, blocks: Sequence[Block], parties: Sequence[Party], head: nn.Module) -> None:
        super().__init__()
        if len(blocks) != len(parties):
            raise SeepageError(f"{len(parties)} parties need as many blocks, got {len(blocks)}; give one block each")
        self.blocks = tuple(blocks)
        self.parties = nn.ModuleList(parties)
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = [party(inputs[(slice(None), *block)]) for party, block in zip(self.parties, self.blocks, strict=True)]
        logits: Tensor = self.head(torch.cat(outputs, dim=1))
        return logits


class SumOfParties(nn.Module):
    """The head of a linear model: the parties' outputs, side by side as `[n, parties * classes]`, are added up.

    >>> SumOfParties(2)(torch.tensor([[1.0, 2.0, 10.0, 20.0]]))
    tensor([[11., 22.]])
    """

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.parties = parties

    def forward(self, joined: Tensor) -> Tensor:
        logits: Tensor = joined.unflatten(1, (self.parties, -1)).sum(1)
        return logits


@models.register("vertical")
def vertical(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    parties: int = 4,
    hidden: int | Sequence[int] = 256,
    channels: int = 64,
    activation: Bend = "relu",
    body: Body = "convolutions",
    batch_norm: bool = False,
) -> VerticalModel:
    """The network of CAFE (NeurIPS 2021, figure 4) for M parties, over tiles of an image or columns of a table.

    For images a party has two 5x5 convolutions (`channels` and twice as many), each followed by the activation and
    a 2x2 max pool that keeps odd edges; then fully connected layers of `hidden`, 64 and `num_classes` outputs, all
    activated; the head is one linear layer. For tables (flat inputs) there are no convolutions. Weights are
    Glorot-uniform and biases zero, as in the released code.

    Args:
        input_shape: `[C, H, W]` of an image or `[d]` of a table's row.
        num_classes: Outputs of each party and of the head.
        parties: Number of parties. Images are cut into a grid as square as M allows: 4 are quadrants.
        hidden: Width of the first fully connected layer, one for all parties or one each.
        channels: Channels of the first convolution.
        activation: `relu`, `leaky_relu` or `sigmoid`.
        body: `flat`: no convolutions for images either, so a party's first fully connected layer reads its part of the
            example itself. `logistic`: logistic regression; each party has that one layer, with as many neurons as
            there are classes (`hidden` is not used), and the logits are the sum of the parties' outputs.
        batch_norm: A batch norm behind each convolution, in front of its activation. Not in figure 4: one of the
            paper's rivals compares the statistics that it keeps.

    Raises:
        SeepageError: Where the parties' parts do not make up the example.

    >>> model = vertical((1, 28, 28), 10, hidden=8, channels=2)
    >>> model.blocks[1], tuple(model.parties[1].first.weight.shape)
    ((slice(None, None, None), slice(0, 14, None), slice(14, 28, None)), (8, 64))
    """
    blocks = _blocks(tuple(input_shape), parties)
    hiddens = [hidden] * len(blocks) if isinstance(hidden, int) else list(hidden)
    if len(hiddens) != len(blocks) or min(hiddens) < 1 or channels < 1:
        raise SeepageError(
            f"hidden must be one width or {len(blocks)} (one per party), each at least 1, got {hidden}; correct it"
        )
    shapes = [
        tuple(len(range(*part.indices(side))) for part, side in zip(block, input_shape, strict=True))
        for block in blocks
    ]
    head: nn.Module
    if body == "logistic":
        members = [Party(nn.Flatten(), nn.Linear(math.prod(shape), num_classes), nn.Identity()) for shape in shapes]
        head = SumOfParties(len(blocks))
    else:
        members = [
            _party(shape, width, num_classes, channels, activation, body, batch_norm)
            for shape, width in zip(shapes, hiddens, strict=True)
        ]
        head = nn.Linear(num_classes * len(blocks), num_classes)
    return _initialized(VerticalModel(blocks, members, head))


def _initialized(model: VerticalModel) -> VerticalModel:
    """The model with Glorot-uniform weights and zero biases; batch norms keep PyTorch's ones and zeros."""
    for name, parameter in model.named_parameters():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d):
            continue
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.xavier_uniform_(parameter)
    return model


def _blocks(shape: tuple[int, ...], parties: int) -> list[Block]:
    """The part of an example that each party holds, as slices along each of its axes; arguments as in `vertical`."""
    if len(shape) not in (1, 3):
        raise SeepageError(
            f"a vertical model takes images [C, H, W] or table rows [d], got inputs of shape {shape}; reshape the data"
        )
    if parties < 1:
        raise SeepageError(f"a vertical model needs at least one party, got parties={parties}; correct it")
    if len(shape) == 1:
        # Tables need no even split; the first parties take one column more.
        share, more = divmod(shape[0], parties)
        if share < 1:
            raise SeepageError(f"{parties} parties cannot share {shape[0]} columns; lower parties")
        ends = [share * i + min(i, more) for i in range(parties + 1)]
        return [(slice(start, stop),) for start, stop in pairwise(ends)]
    down = next(i for i in range(math.isqrt(parties), 0, -1) if parties % i == 0)
    across = parties // down
    if shape[1] % down or shape[2] % across:
        raise SeepageError(
            f"{parties} parties ({down} x {across}) do not tile an image of {shape[1]} x {shape[2]} pixels; "
            "choose another number of parties, or resize the data"
        )
    high, wide = shape[1] // down, shape[2] // across
    return [
        (slice(None), slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))
        for i in range(down)
        for j in range(across)
    ]


def _party(
    shape: tuple[int, ...],
    hidden: int,
    num_classes: int,
    channels: int,
    activation: Bend,
    body: Body,
    batch_norm: bool,
) -> Party:
    """One party's network for its part of an example.

    Args:
        shape: `[C, H, W]` or `[d]` of the part.
        hidden: Width of the first fully connected layer.
        num_classes: Number of outputs.
        channels: Channels of the first convolution.
        activation: Name of the activation.
        body: `convolutions` or `flat`.
        batch_norm: Whether a batch norm follows each convolution.
    """
    if activation not in _BENDS:
        raise SeepageError(f"activation must be one of {', '.join(_BENDS)}, got {activation!r}; correct the recipe")
    if body not in get_args(Body):
        raise SeepageError(f"body must be one of {', '.join(get_args(Body))}, got {body!r}; correct the recipe")
    bend = _BENDS[activation]
    layers: list[nn.Module] = []
    if len(shape) == 3 and body == "flat":
        layers.append(nn.Flatten())
    elif len(shape) == 3:
        for inside, outside in ((shape[0], channels), (channels, 2 * channels)):
            # ceil_mode keeps the last row and column of odd maps, as "same" padding does.
            pool = nn.MaxPool2d(2, ceil_mode=True)
            norm = [nn.BatchNorm2d(outside)] if batch_norm else []
            layers += [nn.Conv2d(inside, outside, 5, padding=2), *norm, bend(), pool]
        layers.append(nn.Flatten())
    features = nn.Sequential(*layers)
    with torch.no_grad(), in_mode(features, training=False):
        d1 = features(torch.zeros(1, *shape)).shape[1]
    rest = nn.Sequential(bend(), nn.Linear(hidden, 64), bend(), nn.Linear(64, num_classes), bend())
    return Party(features, nn.Linear(d1, hidden), rest)
