"""The fully connected layer whose weight gradient mixes the batch: its choice, and its input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.base import MATCHING, refuse
from seepage.base.adapters import inside_adapters
from seepage.base.nn import InputLayer, LayerCall, as_inputs, calls_in_pass, generator, input_layers
from seepage.federation.sent_tensors import not_sent
from seepage.federation.types import Knowledge, Round

MIN_ZEROS = 0.05
"""Least share of exact zeros, in values or in slopes, from which they are taken to pass a ReLU."""


@dataclass(frozen=True, eq=False)
class MixingLayer:
    """The attacked layer and what feeds it.

    Attributes:
        name: Module name.
        weight: Name of its `[m, e]` weight.
        bias: Name of its `[m]` bias, or None where it has none or it was not sent.
        reads_input: How it reads the model's input; None: it reads an inner embedding.
        sparse: The embedding is non-negative with exact zeros (it comes from a ReLU).
    """

    name: str
    weight: str
    bias: str | None
    reads_input: InputLayer | None
    sparse: bool


def find_layer(knowledge: Knowledge, observed: Round, name: str | None) -> MixingLayer:
    """The layer to attack: the named one, else the first that reads one vector per example.

    Raises:
        Inapplicable: Where there is no such layer, or its gradient is not sent.
    """
    model = knowledge.model
    reads = {one.weight: one for one in input_layers(model, observed.params, knowledge.input_shape)}
    modules = dict(model.named_modules())
    if name is not None and name not in modules:
        raise refuse("wrong_layer")(
            f"the model has no layer {name!r}", f"name one of {', '.join(_linear_names(model)) or 'none'}"
        )
    if name is not None and not isinstance(modules[name], nn.Linear):
        raise refuse("wrong_layer")(
            f"layer {name!r} is a {type(modules[name]).__name__} and no fully connected layer",
            f"name one of {', '.join(_linear_names(model)) or 'none'}",
        )
    sent = [one for one in _linear_names(model) if _weight_of(one) in observed.update.tensors]
    if not _linear_names(model):
        raise refuse("no_linear_layer")("the model has no fully connected layer", f"use {MATCHING}")
    if not sent or (name is not None and name not in sent):
        raise not_sent(_weight_of(name or _linear_names(model)[0]), [*observed.params, *observed.personal])
    names = [name] if name is not None else sent
    own = next((one.rpartition(".")[0] for one in reads if one in observed.update.tensors), None)
    if name is None and own is not None:
        return _described(own, observed, reads, sparse=False)
    inputs = _probed(sent, knowledge, observed)
    # Of a layer that reads tokens or places the gradient mixes these, and not the examples.
    flat = [one for one in names if one in inputs]
    if not flat:
        what = f"layer {name!r} does not read" if name is not None else "no fully connected layer of the model reads"
        raise refuse("not_called_once")(
            f"{what} one vector per example, once in a pass (but tokens or positions, or its weight is used without a "
            "call of it), so the rows of its gradient do not mix the examples",
            f"name one of {', '.join(inputs)}" if inputs else f"use {MATCHING}",
        )
    # A ReLU's outputs are non-negative, and some of them are exactly zero.
    seen = inputs[flat[0]]
    sparse = bool((seen >= 0).all()) and float((seen == 0).float().mean()) > MIN_ZEROS
    return _described(flat[0], observed, reads, sparse=sparse)


def _linear_names(model: nn.Module) -> list[str]:
    aside = inside_adapters(model)
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in aside]


def _described(name: str, observed: Round, reads: Mapping[str, InputLayer], *, sparse: bool) -> MixingLayer:
    weight = _weight_of(name)
    bias = f"{weight.removesuffix('weight')}bias"  # frozen or withheld, it is as good as not there
    own = reads.get(weight)
    return MixingLayer(name, weight, bias if bias in observed.update.tensors else None, own, own is None and sparse)


def _weight_of(name: str) -> str:
    return f"{name}.weight" if name else "weight"


def _probed(names: list[str], knowledge: Knowledge, observed: Round) -> dict[str, Tensor]:
    """Inputs `[2, e]` for two random examples, of each layer that reads one vector per example once in a pass."""
    low, high = knowledge.value_range
    probe = torch.rand((2, *knowledge.input_shape), generator=generator(0, "probe")) * (high - low) + low
    like = observed.params[next(iter(observed.params))]
    with torch.no_grad():
        inputs = as_inputs(knowledge.model, probe.to(like))
        calls = calls_in_pass(knowledge.model, names, observed.params, inputs, buffers=observed.buffers)
    return {name: calls[name][0].input.flatten(1) for name in names if mixes_examples(calls.get(name, []))}


def mixes_examples(calls: Sequence[LayerCall]) -> bool:
    """Whether a layer's rows mix the examples: called once in a pass of two, it reads one vector of each.

    >>> one = LayerCall(torch.zeros(2, 1, 5), torch.zeros(2, 1, 3))
    >>> mixes_examples([one]), mixes_examples([one, one])
    (True, False)
    """
    read = calls[0].input if len(calls) == 1 else None
    return read is not None and read.shape[:1] == (2,) and read.numel() == 2 * read.shape[-1]


def stretch(sources: Tensor, knowledge: Knowledge) -> Tensor:
    """`[k, d]` sources of unknown scale to images `[k, *shape]`, each filling the value range."""
    low, high = knowledge.value_range
    least, most = sources.amin(1, keepdim=True), sources.amax(1, keepdim=True)
    filled = low + (high - low) * (sources - least) / (most - least).clamp(min=1e-300)
    return filled.reshape(len(sources), *knowledge.input_shape)


def blurred(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flattened images smoothed with a 3 x 3 Gaussian: under noise the ICA sees structure first."""
    if len(shape) != 3 or min(shape[1:]) < 3:
        return rows
    line = torch.tensor([0.25, 0.5, 0.25]).to(rows)
    images = rows.reshape(-1, 1, *shape[1:])
    padded = nn.functional.pad(images, (1, 1, 1, 1), mode="replicate")
    return nn.functional.conv2d(padded, (line[:, None] * line)[None, None]).reshape(rows.shape)
