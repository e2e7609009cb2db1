"""The fully connected layer whose gradient mixes the batch: which one it is, what it reads, and what is behind it."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from seepage.attacks.base import Inapplicable
from seepage.core.nn import InputLayer, forward, generator, in_mode, input_layer
from seepage.types import Knowledge, Round, Tensors


@dataclass(frozen=True, eq=False)
class Layer:
    """The attacked layer and what feeds it.

    Attributes:
        name: Module name.
        weight: Name of its `[m, e]` weight.
        bias: Name of its `[m]` bias, or None.
        reads_input: How it reads the model's input; None: it reads an inner embedding.
        sparse: The embedding is non-negative with exact zeros (it comes from a ReLU).
    """

    name: str
    weight: str
    bias: str | None
    reads_input: InputLayer | None
    sparse: bool


def find_layer(knowledge: Knowledge, observed: Round, name: str | None) -> Layer:
    """The layer to attack.

    Raises:
        Inapplicable: Where the named module is no fully connected layer, or the model has none.
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
    first = name if name is not None else next(iter(_linear_names(model)), None)
    if first is None:
        raise Inapplicable(
            "the model has no fully connected layer", "use a matching attack such as inverting_gradients"
        )
    prefix = f"{first}." if first else ""
    linear = modules[first]
    assert isinstance(linear, nn.Linear)
    if f"{prefix}weight" not in observed.params:
        raise Inapplicable(
            f"layer {first!r} is not trained, so no gradient of it is sent", "name a layer that is trained"
        )
    bias = f"{prefix}bias" if linear.bias is not None else None
    mine = reads if reads is not None and reads.weight == f"{prefix}weight" else None
    return Layer(first, f"{prefix}weight", bias, mine, mine is None and _fed_by_relu(first, knowledge, observed))


def _linear_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def _fed_by_relu(name: str, knowledge: Knowledge, observed: Round) -> bool:
    """Whether the layer's input is non-negative with exact zeros at random model inputs."""
    low, high = knowledge.value_range
    probe = torch.rand((2, *knowledge.input_shape), generator=generator(0, "probe")) * (high - low) + low
    seen: list[Tensor] = []
    handle = knowledge.model.get_submodule(name).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    like = observed.params[next(iter(observed.params))]
    try:
        with torch.no_grad(), in_mode(knowledge.model, training=False):
            forward(knowledge.model, observed.params, probe.to(like), buffers=observed.buffers)
    finally:
        handle.remove()
    return len(seen) == 1 and bool((seen[0] >= 0).all()) and float((seen[0] == 0).float().mean()) > 0.05


@dataclass(frozen=True, eq=False)
class Tail:
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
        """All parameters in float64, those that are not trained included."""
        own = {name: p.detach().double() for name, p in self.model.named_parameters() if name not in self.params}
        return own | {name: p.double() for name, p in self.params.items()}

    @cached_property
    def _statistics(self) -> Tensors:
        buffers = self.buffers or dict(self.model.named_buffers())
        return {name: b.double() if b.is_floating_point() else b for name, b in buffers.items()}

    def logits(self, outputs: Tensor) -> Tensor:
        """`[r, m]` outputs of the layer to `[r, k]` logits.

        The layer is made an identity and fed the outputs, so nothing of the size of an image is computed.
        """
        m = outputs.shape[1]
        prefix = f"{self.layer}." if self.layer else ""
        identity = {f"{prefix}weight": torch.eye(m).to(outputs), f"{prefix}bias": outputs.new_zeros(m)}
        params, buffers = self._exact | identity, self._statistics
        handle = self.model.get_submodule(self.layer).register_forward_pre_hook(lambda _, __: (outputs,))
        try:
            with in_mode(self.model, training=False):
                return self._through(params, buffers, outputs)
        finally:
            handle.remove()

    def _through(self, params: Tensors, buffers: Tensors, like: Tensor) -> Tensor:
        """The model on no image at all, which spares the layers in front; on one, where it cannot do that."""
        try:
            return forward(self.model, params, like.new_zeros((0, *self.input_shape)), buffers=buffers)
        except RuntimeError:  # a reshape to (n, -1) is not possible with n = 0
            return forward(self.model, params, like.new_zeros((1, *self.input_shape)), buffers=buffers)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """`[r, k]` predicted probabilities."""
        with torch.no_grad():
            return self.logits(outputs).softmax(1)

    def backward(self, outputs: Tensor, errors: Tensor) -> Tensor:
        """`[r, m, ...]`: `L_i^T e` for each row's own errors `[r, k]` or several of them `[c, r, k]`."""
        leaf = outputs.detach().requires_grad_()
        logits = self.logits(leaf)
        several = errors if errors.dim() == 3 else errors[None]
        pulled = torch.stack([torch.autograd.grad(logits, leaf, e, retain_graph=True)[0] for e in several])
        return pulled if errors.dim() == 3 else pulled[0]


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
