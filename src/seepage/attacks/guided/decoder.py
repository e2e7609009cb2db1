"""The linear decoder for a round: from what a layer reads, `[n, k]`, to images in the value range."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seepage.attacks.reading.decoding import AT_ONCE, Decoder
from seepage.base.nn import LayerCall, captured_calls, forward, generator, in_mode
from seepage.errors import refuse
from seepage.federation.types import Knowledge, Round


def fit_decoder(observed: Round, knowledge: Knowledge, layer: str, size: int) -> Callable[[Tensor], Tensor]:
    """Fit a decoder for the network of this round.

    Args:
        observed: The round, whose weights and buffers the network has.
        knowledge: What the attacker knows.
        layer: Name of the layer whose inputs are decoded: the last fully connected one, or a convolution.
        size: Examples per batch, of which batch norm in train mode takes its statistics.

    Returns:
        From features `[n, k]` to images `[n, C, H, W]` in the value range.

    Raises:
        Inapplicable: For inputs that are no images, and where the layer is not called once.
    """
    if len(knowledge.input_shape) != 3:
        raise refuse("no_images")("a decoder of features makes images", "use inverting_gradients")
    like, (low, high) = next(iter(observed.params.values())), knowledge.value_range
    shape: tuple[int, int, int] | None = None

    def maps(unit: Tensor) -> Tensor:
        nonlocal shape
        features, shape = _seen(observed, knowledge, layer, low + (high - low) * unit.to(like))
        return features.view(len(features), *shape)

    at_once = size if knowledge.client.batch_coupled(knowledge.model) else AT_ONCE
    decoder = Decoder(maps, knowledge.input_shape, generator(0, "decoder"), at_once)
    map_shape = shape
    assert map_shape is not None
    return lambda features: low + (high - low) * decoder(features.reshape(-1, *map_shape))


@torch.no_grad()
def _seen(observed: Round, knowledge: Knowledge, layer: str, inputs: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """What the layer reads, `[n, k]`, and the shape of the map that it is or was flattened from, else `(k, 1, 1)`."""
    model = knowledge.model
    leaves = [name for name, module in model.named_modules() if not list(module.children())]
    with captured_calls(model, leaves) as calls, in_mode(model, training=knowledge.client.mode == "train"):
        forward(model, observed.params, inputs, buffers=observed.buffers)
    features = layer_input(calls.get(layer, ()))
    read = calls[layer][0].input
    if read.ndim == 4:
        return features, (read.shape[1], read.shape[2], read.shape[3])
    width = features.shape[1]
    # The last map with as many values as the head reads is the one that was flattened, if it holds the same values.
    for call in reversed([call for several in calls.values() for call in several]):
        output = call.output
        if output.ndim == 4 and output[0].numel() == width and min(output.shape[2:]) > 1:
            same = torch.equal(output.flatten(1), features)
            return features, (output.shape[1], output.shape[2], output.shape[3]) if same else (width, 1, 1)
    return features, (width, 1, 1)


def layer_input(calls: Sequence[LayerCall]) -> Tensor:
    """What a layer was given, flattened to `[n, k]`.

    Raises:
        Inapplicable: Where it was not called once, or with something else than one vector or map per example.
    """
    if len(calls) != 1 or calls[0].input.ndim not in (2, 4):
        raise refuse("not_called_once")("the layer is not called once for each batch", "use inverting_gradients")
    return calls[0].input.flatten(1)
