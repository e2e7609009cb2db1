"""A linear decoder from the features in front of the last layer back to images, fitted without any data."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.guided.synthetic import batches, synthetic_images
from seepage.core.nn import LayerCall, captured_calls, forward, generator, in_mode
from seepage.errors import Inapplicable
from seepage.types import Knowledge, Round

IMAGES = 512
"""Synthetic images that the decoder is fitted on: as many forward passes of one example."""
CHUNK = 64
"""Of these, how many go through the network at once in eval mode."""
RIDGE = 1e-3
"""Ridge penalty, over the mean square of a column."""
NEAR = 25 * 24
"""Columns up to which a position's neighborhood is 5 x 5; above, 3 x 3."""


@dataclass(frozen=True)
class FeatureDecoder:
    """Images from features, by ridge regression.

    Where the last layer reads a map `[c, h, w]` that was flattened, each block of pixels is regressed on the features
    at its position and next to it, with the same weights everywhere, as a convolution would. Where it reads a pooled
    or otherwise mixed vector, the whole image is regressed on the whole vector, which tells little more than its color.

    Attributes:
        weights: `[columns + 1, outputs]`; the last row is the constant.
        map: `(c, h, w)` of the map behind the features, or None.
        shape: `(C, H, W)` of an image.
        bounds: The value range.
        scale: Root mean square of the features it was fitted on.
        near: Side of the neighborhood.
    """

    weights: Tensor
    map: tuple[int, int, int] | None
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    scale: float
    near: int

    def __call__(self, features: Tensor) -> Tensor:
        """`[n, k]` features to images `[n, C, H, W]` in the value range."""
        low, high = self.bounds
        middle = (low + high) / 2
        found = self._columns(features) @ self.weights  # [n * positions, outputs]
        if self.map is None:
            return (middle + found.reshape(-1, *self.shape)).clamp(low, high)
        block = (self.shape[1] // self.map[1], self.shape[2] // self.map[2])
        # fold puts the block of each position, [C * block], at its place: [n, C * block, positions] to [n, C, H, W].
        blocks = found.reshape(len(features), -1, found.shape[1]).transpose(1, 2)
        return (middle + F.fold(blocks, self.shape[1:], block, stride=block)).clamp(low, high)

    def _columns(self, features: Tensor) -> Tensor:
        return _columns(features / self.scale, self.map, self.near)


def _columns(features: Tensor, shape: tuple[int, int, int] | None, near: int) -> Tensor:
    """What is regressed on, `[n * positions, columns + 1]`: neighborhoods of a map or whole vectors, and a constant."""
    columns = features
    if shape is not None:
        around = F.unfold(features.reshape(-1, *shape), near, padding=near // 2)  # [n, c * near^2, positions]
        columns = around.transpose(1, 2).reshape(-1, around.shape[1])
    return torch.cat([columns, torch.ones_like(columns[:, :1])], 1)


def fit_decoder(observed: Round, knowledge: Knowledge, head: str, size: int, *, seed: int = 0) -> FeatureDecoder:
    """Fit a decoder for the network of this round.

    Args:
        observed: The round, whose weights and buffers the network has.
        knowledge: What the attacker knows.
        head: Name of the last fully connected layer.
        size: Examples per batch, of which batch norm in train mode takes its statistics.
        seed: Of the synthetic images.

    Raises:
        Inapplicable: For inputs that are no images, and where the layer is not called or not with `[n, k]`.
    """
    if len(knowledge.input_shape) != 3:
        raise Inapplicable("a decoder of features makes images", "use inverting_gradients")
    draw = generator(seed, "decoder")
    like = next(iter(observed.params.values()))
    images = synthetic_images(IMAGES, knowledge.input_shape, knowledge.value_range, draw).to(like)
    trains = knowledge.client.batch_coupled(knowledge.model)
    kept, parts, shape = [], [], None
    for chunk in batches(IMAGES, size if trains else CHUNK):
        features, shape = _seen(observed, knowledge, head, images[chunk])
        kept.append(images[chunk])
        parts.append(features)
    features, images = torch.cat(parts), torch.cat(kept)
    if shape is not None and (images.shape[2] % shape[1] or images.shape[3] % shape[2]):
        shape = None
    return _fitted(features, images, shape, knowledge.value_range)


def _fitted(
    features: Tensor, images: Tensor, shape: tuple[int, int, int] | None, bounds: tuple[float, float]
) -> FeatureDecoder:
    scale = max(float(features.square().mean().sqrt()), 1e-12)
    near = 5 if shape is not None and 25 * shape[0] <= NEAR else 3
    columns = _columns(features / scale, shape, near)
    wanted = images - sum(bounds) / 2
    if shape is None:
        wanted = wanted.flatten(1)
    else:
        block = (images.shape[2] // shape[1], images.shape[3] // shape[2])
        wanted = F.unfold(wanted, block, stride=block).transpose(1, 2).reshape(len(columns), -1)
    # (A^T A + r I) B = A^T Y in float64: columns behind a ReLU are often alike, and some are always zero.
    square = (columns.T @ columns).double()
    square += RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype, device=square.device)
    weights = torch.linalg.solve(square, (columns.T @ wanted).double()).to(features)
    return FeatureDecoder(weights, shape, tuple(images.shape[1:]), bounds, scale, near)


@torch.no_grad()
def _seen(
    observed: Round, knowledge: Knowledge, head: str, inputs: Tensor
) -> tuple[Tensor, tuple[int, int, int] | None]:
    """Features `[n, k]` of some inputs, and the shape of the map they were flattened from, if any."""
    model = knowledge.model
    leaves = [name for name, module in model.named_modules() if not list(module.children())]
    with captured_calls(model, leaves) as calls, in_mode(model, training=knowledge.client.mode == "train"):
        forward(model, observed.params, inputs, buffers=observed.buffers)
    features = head_input(calls.get(head, ()))
    width = features.shape[1]
    # The last map with as many values as the head reads is the one that was flattened, if it holds the same values.
    for call in reversed([call for several in calls.values() for call in several]):
        output = call.output
        if output.ndim == 4 and output[0].numel() == width and min(output.shape[2:]) > 1:
            same = torch.equal(output.flatten(1), features)
            return features, (output.shape[1], output.shape[2], output.shape[3]) if same else None
    return features, None


def head_input(calls: Sequence[LayerCall]) -> Tensor:
    """What the last layer was given, `[n, k]`.

    Raises:
        Inapplicable: Where it was not called once, or with something else.
    """
    if len(calls) != 1 or calls[0].input.ndim != 2:
        raise Inapplicable("the last layer is not called once for each batch", "use inverting_gradients")
    return calls[0].input
