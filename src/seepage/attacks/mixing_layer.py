"""The fully connected layer whose weight gradient mixes the batch: its choice, its input and the network behind it."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from seepage.attacks.base import MATCHING, Inapplicable
from seepage.core.adapters import inside_adapters
from seepage.core.nn import InputLayer, as_inputs, calls_in_pass, forward, generator, in_mode, input_layer
from seepage.fitting import not_sent
from seepage.types import Knowledge, Round, Tensors

MIN_ZEROS = 0.05
"""Least share of exact zeros in a layer's input from which it is taken to come from a ReLU."""
ROWS_AT_ONCE = 4_096
"""Outputs of a layer that are passed through the network behind it at a time."""


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
    reads = input_layer(model, observed.params, knowledge.input_shape)
    modules = dict(model.named_modules())
    if name is not None and name not in modules:
        raise Inapplicable(
            f"the model has no layer {name!r}", f"name one of {', '.join(_linear_names(model)) or 'none'}"
        )
    if name is not None and not isinstance(modules[name], nn.Linear):
        raise Inapplicable(
            f"layer {name!r} is a {type(modules[name]).__name__} and no fully connected layer",
            f"name one of {', '.join(_linear_names(model)) or 'none'}",
        )
    sent = [one for one in _linear_names(model) if _weight_of(one) in observed.update.tensors]
    if not _linear_names(model):
        raise Inapplicable("the model has no fully connected layer", f"use {MATCHING}")
    if not sent or (name is not None and name not in sent):
        raise not_sent(_weight_of(name or _linear_names(model)[0]), [*observed.params, *observed.personal])
    names = [name] if name is not None else sent
    if name is None and reads is not None and reads.weight == _weight_of(names[0]):
        return _described(names[0], knowledge, observed, reads, sparse=False)
    inputs = _probed(sent, knowledge, observed)
    # Of a layer that reads tokens or places the gradient mixes these, and not the examples.
    flat = [one for one in names if one in inputs]
    if not flat:
        what = f"layer {name!r} does not read" if name is not None else "no fully connected layer of the model reads"
        raise Inapplicable(
            f"{what} one vector per example, once in a pass (but tokens or positions, or its weight is used without a "
            "call of it), so the rows of its gradient do not mix the examples",
            f"name one of {', '.join(inputs)}" if inputs else f"use {MATCHING}",
        )
    # A ReLU's outputs are non-negative, and some of them are exactly zero.
    seen = inputs[flat[0]]
    sparse = bool((seen >= 0).all()) and float((seen == 0).float().mean()) > MIN_ZEROS
    return _described(flat[0], knowledge, observed, reads, sparse=sparse)


def _linear_names(model: nn.Module) -> list[str]:
    aside = inside_adapters(model)
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in aside]


def _described(
    name: str, knowledge: Knowledge, observed: Round, reads: InputLayer | None, *, sparse: bool
) -> MixingLayer:
    weight = _weight_of(name)
    bias = f"{weight.removesuffix('weight')}bias"  # frozen or withheld, it is as good as not there
    own = reads if reads is not None and reads.weight == weight else None
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
    once = {name: calls[name][0].input for name in names if len(calls.get(name, [])) == 1}
    return {name: seen for name, seen in once.items() if seen.dim() == 2 and len(seen) == 2}


@dataclass(frozen=True, eq=False)
class DownstreamNetwork:
    """The network behind one fully connected layer, as a function of the layer's output, in float64.

    Attributes:
        model: The whole model.
        layer: Name of the layer (`""`: the model itself).
        params: Its parameters.
        buffers: Its buffers.
        input_shape: Shape of one example of the whole model.
    """

    model: nn.Module
    layer: str
    params: Tensors
    buffers: Tensors
    input_shape: tuple[int, ...]

    @cached_property
    def _exact(self) -> Tensors:
        """All parameters in float64, including those that are not trained."""
        own = {name: p.detach().double() for name, p in self.model.named_parameters() if name not in self.params}
        return own | {name: p.double() for name, p in self.params.items()}

    @cached_property
    def _statistics(self) -> Tensors:
        buffers = self.buffers or dict(self.model.named_buffers())
        return {name: b.double() if b.is_floating_point() else b for name, b in buffers.items()}

    def logits(self, outputs: Tensor) -> Tensor:
        """`[r, m]` outputs of the layer to `[r, k]` logits.

        The layer is called on next to nothing, and the outputs take the place of what it gives.
        """
        # A copy each time: the layer behind may write to it.
        handle = self.model.get_submodule(self.layer).register_forward_hook(lambda _, __, ___: outputs.clone())
        try:
            with in_mode(self.model, training=False):
                return self._through(self._exact, self._statistics, outputs)
        finally:
            handle.remove()

    def _through(self, params: Tensors, buffers: Tensors, like: Tensor) -> Tensor:
        """Run the model on an empty batch, which skips the layers in front; if that fails, on one zero image."""
        none, one = (as_inputs(self.model, like.new_zeros((n, *self.input_shape))) for n in (0, 1))
        try:
            return forward(self.model, params, none, buffers=buffers)
        # A reshape to (n, -1) is not possible with n = 0, nor are some normalizations, which say so in other ways.
        except (RuntimeError, IndexError, ValueError):
            pass
        try:
            return forward(self.model, params, one, buffers=buffers)
        except (RuntimeError, IndexError, ValueError) as error:
            if len(like) == 1:
                raise
            # Rows of this layer beside one row of another.
            raise Inapplicable(
                f"the network behind layer {self.layer!r} is no function of its outputs alone: other layers' outputs, "
                f"or as many examples, are wanted beside them ({error})",
                f"use cocktail_party, or {MATCHING}",
            ) from None

    def probabilities(self, outputs: Tensor) -> Tensor:
        """`[r, k]` predicted probabilities."""
        with torch.no_grad():
            return self.logits(outputs).softmax(1)

    def backward(self, outputs: Tensor, errors: Tensor) -> Tensor:
        """`[r, m, ...]`: `L_i^T e` for each row's own errors `[r, k]` or several of them `[c, r, k]`."""
        several = errors if errors.dim() == 3 else errors[None]
        pulled = []
        for some in several.split(max(1, ROWS_AT_ONCE // len(outputs))):
            # L_i = d logits_i / d outputs_i [k, m]. Example i's logits depend on its own outputs only, so one pass over
            # the outputs, repeated for each set of errors, gives all rows L_i^T e_i [r, m].
            leaf = outputs.detach().repeat(len(some), 1).requires_grad_()
            (found,) = torch.autograd.grad(self.logits(leaf), leaf, some.flatten(0, 1))
            pulled.append(found.view(len(some), *outputs.shape))
        return torch.cat(pulled) if errors.dim() == 3 else pulled[0][0]


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
