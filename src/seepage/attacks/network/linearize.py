"""A network's inner quantities as functions of its input, and their derivative as a linear map that is cheap to apply.

Convolutions and fully connected layers are seen where they are called, so any network can be read: chains, residual
blocks, layers that are written as functions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.overrides import TorchFunctionMode

from seepage.base.nn import in_mode
from seepage.base.second_derivatives import STAND_INS
from seepage.federation.types import Tensors

PIECEWISE: Mapping[Callable[..., Any], float] = {
    torch.relu: 0.0,
    torch.relu_: 0.0,
    Tensor.relu: 0.0,
    Tensor.relu_: 0.0,
    F.relu: 0.0,
    F.relu_: 0.0,
    F.leaky_relu: 0.01,
}
"""Activations that are linear on either side of zero, with the slope on the negative side."""
DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
"""Calls that in train mode put zeros in the place of some entries, and divide the others by the share that is left."""


class _Convolution(torch.autograd.Function):
    """`conv2d` whose derivative of the derivative is one convolution: PyTorch's own also makes one for the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: tuple[Any, ...]) -> Tensor:
        ctx.weight, ctx.geometry, ctx.shape = weight, geometry, x.shape
        return torch.conv2d(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Transposed.apply(grads[0], ctx.weight, ctx.shape, ctx.geometry), None, None, None


class _Transposed(torch.autograd.Function):
    """The transposed convolution: from a gradient of the outputs to that of the inputs, `W^T g`."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor, shape: torch.Size, geometry: tuple[Any, ...]) -> Tensor:
        ctx.weight, ctx.geometry = weight, geometry
        back: Tensor = conv2d_input(shape, weight, grad, *geometry)
        return back

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # The derivative of W^T g in g is W again.
        return torch.conv2d(grads[0], ctx.weight, None, *ctx.geometry), None, None, None


class _BatchNorm(torch.autograd.Function):
    """Batch norm whose derivative of the derivative costs what the derivative does; PyTorch's own, several times that.

    In a channel, over the N positions of a batch and with what they are normalized to, x, the derivative of the outputs
    is `gamma / s (I - 1 1^T / N - x x^T / N)`, in eval mode `gamma / s I`: symmetric, so that J v is made as J^T u is.
    """

    @staticmethod
    def forward(ctx: Any, read: Tensor, running: Any, weight: Any, bias: Any, training: bool, eps: float) -> Tensor:
        given: Tensor
        given, mean, scale = torch.ops.aten.native_batch_norm(read, weight, bias, *running, training, 0.0, eps)
        state = (read.detach(), weight, *running, mean, scale, training, eps, (True, False, False))
        ctx.slope = lambda grad: torch.ops.aten.native_batch_norm_backward(grad.contiguous(), *state)[0]
        return given

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Symmetric.apply(grads[0], ctx.slope), None, None, None, None, None


class _Symmetric(torch.autograd.Function):
    """A symmetric linear map: a slope goes back through it as values go forth."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.slope = apply
        return apply(grad)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.slope(grads[0]), None


@dataclass(frozen=True, eq=False)
class LayerUse:
    """One call of a layer with a weight.

    Attributes:
        weight: The weight, `[O, C, k, k]` or `[O, d]`.
        geometry: Stride, padding, dilation and groups of a convolution; empty: a fully connected layer.
        input: What it read, `[n, C, H, W]` or `[n, d]`.
        output: What it gave, `[n, O, H', W']` or `[n, O]`.
    """

    weight: Tensor
    geometry: tuple[Any, ...]
    input: Tensor
    output: Tensor

    def weight_gradient(self, reading: Tensor, slopes: Tensor) -> Tensor:
        """Gradient of the weight where the layer reads `reading` and its outputs have the gradient `slopes`.

        Linear in each of the two: `G[o, c, k] = sum_{i, p} slopes[i, o, p] reading[i, c, p + k]`.
        """
        if not self.geometry:
            return slopes.T @ reading  # D^T X: [O, n] @ [n, d]
        # G[o, c, k] of all examples at once: correlation of what was read with the slopes.
        gradient: Tensor = conv2d_weight(reading, self.weight.shape, slopes, *self.geometry)
        return gradient

    def to_reading(self, matrix: Tensor, slopes: Tensor) -> Tensor:
        """The adjoint of `weight_gradient` in its first argument: from a weight's shape to that of the input.

        With the layer's own weight as the matrix: what goes back to what it read, `W^T D`.
        """
        if not self.geometry:
            return slopes @ matrix  # [n, O] @ [O, d]
        shape = (len(slopes), *self.input.shape[1:])
        back: Tensor = conv2d_input(shape, matrix, slopes, *self.geometry)
        return back

    def applied(self, reading: Tensor) -> Tensor:
        """What a convolution gives for another reading, without its bias."""
        return torch.conv2d(reading, self.weight, None, *self.geometry)

    def patches(self, reading: Tensor) -> Tensor:
        """`[n, C k k, P]` what a convolution reads at each of its P output positions; 0 beyond the border."""
        stride, padding, dilation, _ = self.geometry
        columns: Tensor = F.unfold(reading, self.weight.shape[2:], dilation, padding, stride)
        return columns

    def places(self) -> Tensor:
        """`[k k, P]` which input position each output position reads with each entry of the kernel; 0 is the border.

        The first input position is 1.
        """
        numbers = torch.arange(1, self.input[0, 0].numel() + 1, dtype=torch.float64)
        return self.patches(numbers.view(1, 1, *self.input.shape[2:]))[0].long()

    def maps(self, rows: Tensor) -> Tensor:
        """`[n, c, H, W]` maps of its input's size from one row for each position of each example, `[n H W, c]`."""
        return rows.reshape(-1, *self.input.shape[2:], rows.shape[1]).permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, eq=False)
class Activated:
    """One call of an activation: what it read, what it gave, and its slope below zero (None: it is curved)."""

    input: Tensor
    output: Tensor
    slope: float


@dataclass(frozen=True, eq=False)
class Held:
    """An activation that is known: where it is on, and what it gives.

    Attributes:
        on: Where its slope is that of positive numbers, shaped like what it reads.
        value: What it gives, in the place of what it would; None: what it reads, times these slopes.
        passes: Whether its output depends on what it reads, as far as derivatives go.
    """

    on: Tensor
    value: Tensor | None = None
    passes: bool = True

    def __call__(self, read: Tensor, slope: float) -> Tensor:
        """What goes on in the place of the activation's own output: the known slopes, and the known value."""
        if self.value is not None and not self.passes:
            return self.value
        bent = torch.where(self.on, read, slope * read)  # linear: its derivative is `on + slope (1 - on)`
        # The value does not depend on what was read; its derivative does, as if it did.
        return bent if self.value is None else self.value + (bent - bent.detach())


class ForwardPass(TorchFunctionMode):
    """Records the layers with weights and the activations of one forward pass.

    Args:
        held: Activations that are known, by their place.

    Attributes:
        layers: In the order of their calls.
        activations: Those of `PIECEWISE`, in the order of their calls.
        dropouts: Of each of `DROPOUTS` the number of layers before it, and the share of entries that it drops.
    """

    def __init__(self, held: Mapping[int, Held] | None = None) -> None:
        super().__init__()
        self.held = held or {}
        self.layers: list[LayerUse] = []
        self.activations: list[Activated] = []
        self.dropouts: list[tuple[int, float]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (F.conv2d, torch.conv2d):
            return self._convolve(*args, **given)
        if func is F.batch_norm:
            return _normalize(*args, **given)
        if func is F.linear:
            output = F.linear(*args, **given)
            self.layers.append(LayerUse(args[1], (), args[0], output))
            return output
        if func in PIECEWISE:
            # In place or not: what was read is kept, so a copy is what goes on.
            slope = args[1] if len(args) > 1 and func is F.leaky_relu else given.get("negative_slope", PIECEWISE[func])
            if len(self.activations) in self.held:
                output = self.held[len(self.activations)](args[0], slope)
            else:
                output = F.leaky_relu(args[0], slope) if slope else torch.relu(args[0])
            self.activations.append(Activated(args[0], output, slope))
            return output
        if func in DROPOUTS:
            self.dropouts.append((len(self.layers), float(args[1] if len(args) > 1 else given.get("p", 0.5))))
        return STAND_INS.get(func, func)(*args, **given)

    def _convolve(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        stride, dilation = _pair(stride), _pair(dilation)
        if padding == "valid":
            padding = 0
        elif padding == "same":
            padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, weight.shape[2:], strict=True))
        geometry = (stride, _pair(padding), dilation, groups)
        output: Tensor = _Convolution.apply(input, weight, bias, geometry)
        self.layers.append(LayerUse(weight, geometry, input, output))
        return output


def _normalize(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    # A batch's own statistics leave the running ones as they are: nothing here reads them afterwards.
    running = (None, None) if training else (running_mean, running_var)
    output: Tensor = _BatchNorm.apply(input, running, weight, bias, training, eps)
    return output


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


@dataclass(frozen=True, eq=False)
class VictimNetwork:
    """A model at a round's weights, on inputs in units of its value range.

    Attributes:
        model: The architecture.
        params: The round's weights.
        buffers: The round's buffers.
        low: Smallest value of an input.
        span: Largest minus smallest value.
        held: Activations that are known, by their place in a pass.
        training: Whether batch norm takes the statistics of the images of a pass; otherwise it is in eval mode.
        channels_last: The model reads images `[n, H, W, C]`.
    """

    model: nn.Module
    params: Tensors
    buffers: Tensors
    low: float
    span: float
    held: Mapping[int, Held] = field(default_factory=dict)
    training: bool = False
    channels_last: bool = False

    def inputs(self, unit: Tensor) -> Tensor:
        """What the model reads of `[n, C, H, W]` images in [0, 1]."""
        return self.low + self.span * (unit.movedim(1, -1) if self.channels_last else unit)

    def run(self, unit: Tensor) -> ForwardPass:
        """One forward pass on `[n, C, H, W]` images in [0, 1], recorded."""
        seen, like = ForwardPass(self.held), next(iter(self.params.values()))
        # Weights that a round does not carry are the model's own, in the type and place of the others.
        own = self.model.named_parameters()
        frozen = {name: weight.detach().to(like) for name, weight in own if name not in self.params}
        # Batch norm in train mode writes to its buffers.
        buffers = {name: b.clone() for name, b in self.buffers.items()} if self.training else self.buffers
        state = {**frozen, **self.params, **buffers}
        with in_mode(self.model, training=self.training), seen:
            functional_call(self.model, state, (self.inputs(unit.to(like)),))
        return seen

    def zero(self, like: Tensor) -> Tensor | None:
        """`[1, C, H, W]` the image that the first layer reads as zeros; None where it reads no scaled image."""
        # Read = a unit + b, pixel by pixel, is 0 at unit = -b / a, with b what black gives and a what white adds to it.
        black, white = torch.zeros_like(like[:1]), torch.ones_like(like[:1])
        with torch.no_grad():
            low, high = (self.run(image.expand(2, *like.shape[1:])).layers[0].input[:1] for image in (black, white))
        if low.shape != black.shape or not bool((high != low).all()):
            return None
        return -low / (high - low)

    def names(self, seen: ForwardPass) -> list[str]:
        """The weight's name of each recorded layer; empty for a weight that is no parameter."""
        known = {id(tensor): name for name, tensor in self.params.items()}
        return [known.get(id(layer.weight), "") for layer in seen.layers]
