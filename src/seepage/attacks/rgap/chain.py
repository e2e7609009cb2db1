"""A network as a chain of linear maps with element-wise functions between them, each map as a matrix."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from seepage.attacks.base import refuse
from seepage.base.nn import as_inputs, calls_in_pass
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.federation.types import Tensors

INSTEAD = "use a matching attack such as inverting_gradients"
PASSED_OVER = (nn.Flatten, nn.Identity, nn.Dropout)
BASIS_VECTORS_AT_ONCE = 256
"""Basis vectors passed through a convolution at a time."""


@dataclass(frozen=True)
class Activation:
    """An element-wise function that can be turned around, at least in part.

    Attributes:
        forward: From inputs to outputs.
        inverse: From outputs to inputs.
        derivative: Derivative, by the input.
        known: Where the output determines the input.
    """

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    known: Callable[[Tensor], Tensor]


def _everywhere(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)


def _positive(y: Tensor) -> Tensor:
    """Which outputs of a ReLU are positive beyond the error of the solution."""
    return y > FLOAT32_NETWORK * y.abs().max()


def activation_of(module: nn.Module | None) -> Activation | None:
    """The activation of a module (None: the identity), or None where it has no inverse that is known here.

    >>> y = torch.tensor([-0.2, 3.0])
    >>> activation_of(nn.LeakyReLU(0.2)).inverse(y)
    tensor([-1.,  3.])
    """
    match module:
        case None:
            return Activation(torch.clone, torch.clone, torch.ones_like, _everywhere)
        case nn.ReLU():
            return Activation(torch.relu, torch.clone, lambda z: (z > 0).to(z), _positive)
        case nn.LeakyReLU(negative_slope=a) if a > 0:
            return Activation(
                lambda z: torch.where(z > 0, z, a * z),
                lambda y: torch.where(y > 0, y, y / a),
                lambda z: torch.where(z > 0, torch.ones_like(z), torch.full_like(z, a)),
                _everywhere,
            )
        case nn.Sigmoid():
            return Activation(
                torch.sigmoid,
                lambda y: y.clamp(1e-9, 1 - 1e-9).logit(),
                lambda z: z.sigmoid() * (1 - z.sigmoid()),
                _everywhere,
            )
        case nn.Tanh():
            return Activation(
                torch.tanh,
                lambda y: y.clamp(-1 + 1e-9, 1 - 1e-9).atanh(),
                lambda z: 1 - z.tanh().square(),
                _everywhere,
            )
    return None


@dataclass(frozen=True, eq=False)
class LinearMap:
    """One linear map of the chain and what comes after it.

    Attributes:
        name: Module name.
        module: Its shape: strides, padding.
        weight: Its weight at the round's parameters, float64.
        bias: Likewise, or None.
        shape: `[C, H, W]` or `[d]` of what it reads.
        after: The activation behind it.
    """

    name: str
    module: nn.Linear | nn.Conv2d
    weight: Tensor
    bias: Tensor | None
    shape: tuple[int, ...]
    after: Activation

    @property
    def unknowns(self) -> int:
        return int(torch.Size(self.shape).numel())

    def outputs(self, reading: Float[Tensor, "k d"]) -> Float[Tensor, "k out"]:
        """What the map makes of `[k, unknowns]` inputs, before the activation."""
        if isinstance(self.module, nn.Linear):
            made = reading @ self.weight.T  # [k, in] @ [in, out]
        else:
            made = self._convolved(reading.reshape(-1, *self.shape)).flatten(1)
        return made + self.spread_bias(made.shape[1])

    def pulled_back(self, slopes: Float[Tensor, "k out"]) -> Float[Tensor, "k d"]:
        """`W^T k` for the slopes k of each output: the loss's slopes in what the map reads."""
        if isinstance(self.module, nn.Linear):
            return slopes @ self.weight  # [k, out] @ [out, d]
        # The transpose of a linear map is its derivative, at any point: strides and padding need no code of their own.
        reading = self.weight.new_zeros((len(slopes), *self.shape)).requires_grad_()
        with torch.enable_grad():
            made = self._convolved(reading)
        return torch.autograd.grad(made, reading, slopes.reshape(made.shape))[0].flatten(1)

    def matrix(self) -> Tensor:
        """`[outputs, unknowns]` the map without its bias."""
        if isinstance(self.module, nn.Linear):
            return self.weight
        # Column j of the matrix is what the convolution makes of basis vector j. [unknowns, outputs], transposed
        parts = [self._convolved(part).flatten(1) for part in self._basis()]
        return torch.cat(parts).T

    def gradient_system(self, output_gradient: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """`A [r, unknowns]` and `b [r]` with `A x = b` where x, what the layer reads, gives its weight this gradient.

        A fully connected layer's `k x^T = gradient`, k the gradient of its outputs, is multiplied by `k^T / |k|` from
        the left: the same least squares, in as many rows as unknowns.

        Args:
            output_gradient: `[outputs]` derivative of the loss by the layer's outputs.
            gradient: Of its weight.
        """
        if isinstance(self.module, nn.Linear):
            size = output_gradient.norm().clamp(min=1e-300)
            # k^T k x / |k| = G^T k / |k|: one equation for each unknown.
            return size * torch.eye(self.unknowns).to(output_gradient), gradient.T @ output_gradient / size
        # dL/dW[o, c, i, j] = sum over places l of k[o, l] x[patch l at c, i, j]: linear in x, one column per basis
        # vector, [o c i j, unknowns] in all.
        by_place = output_gradient.reshape(len(self.weight), -1)  # [o, places]
        parts = [torch.einsum("ol,xcl->xoc", by_place, self._patches(part)).flatten(1) for part in self._basis()]
        return torch.cat(parts).T, gradient.flatten()

    def spread_bias(self, outputs: int) -> Tensor:
        """`[outputs]` the bias, broadcast to all output places."""
        if self.bias is None:
            return self.weight.new_zeros(outputs)
        return self.bias.repeat_interleave(outputs // len(self.bias))

    def _basis(self) -> Iterator[Tensor]:
        eye = torch.eye(self.unknowns).to(self.weight)
        yield from eye.reshape(-1, *self.shape).split(BASIS_VECTORS_AT_ONCE)

    def _convolved(self, images: Tensor) -> Tensor:
        conv = self.module
        assert isinstance(conv, nn.Conv2d)
        return F.conv2d(images, self.weight, None, conv.stride, conv.padding, conv.dilation)

    def _patches(self, images: Tensor) -> Tensor:
        """`[x, c, places]` what each place of the output sees."""
        conv = self.module
        assert isinstance(conv, nn.Conv2d)
        assert not isinstance(conv.padding, str)
        return F.unfold(images, conv.kernel_size, conv.dilation, conv.padding, conv.stride)


@dataclass(frozen=True, eq=False)
class Pass:
    """What examples make of the layers from one layer on.

    Attributes:
        first: The layer whose readings were given, counted from 0.
        readings: What each layer reads from `first` on, `[k, in]` each.
        outputs: What each map makes of it before its activation, `[k, out]` each; the last are the logits.
    """

    first: int
    readings: tuple[Float[Tensor, "k _"], ...]
    outputs: tuple[Float[Tensor, "k _"], ...]

    def reading(self, layer: int) -> Float[Tensor, "k d"]:
        """What a layer reads, counted from the network's first."""
        return self.readings[layer - self.first]


@dataclass(frozen=True, eq=False)
class Chain:
    """All maps of a model, first to last.

    Attributes:
        maps: The linear maps.
        scale: `[d]` what each flattened input is multiplied with before the first layer.
        shift: `[d]` what is added after that.
    """

    maps: tuple[LinearMap, ...]
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(cls, model: nn.Module, params: Tensors, input_shape: tuple[int, ...]) -> "Chain":
        """Convert a model to a chain.

        Raises:
            Inapplicable: For anything but a `nn.Sequential` of linear layers, plain convolutions and activations.
        """
        steps = list(_leaves(model, ""))
        places = [i for i, (_, step) in enumerate(steps) if isinstance(step, nn.Linear | nn.Conv2d)]
        if not places:
            inside = any(isinstance(module, nn.Linear | nn.Conv2d) for module in model.modules())
            raise refuse("network")(
                f"the model ({type(model).__name__}) is no nn.Sequential, and only that says in which order its "
                "layers are applied, one after the other, as the recursion needs them"
                if inside
                else "the model has no fully connected and no convolution layer",
                INSTEAD,
            )
        for i in places:
            _check_map(*steps[i], params)
        _check_rest(steps[places[0] + 1 :])
        seen = _read(model, [steps[i][0] for i in places], params, input_shape)
        maps = []
        for i, after, tensor in zip(places, [*places[1:], len(steps)], seen, strict=True):
            name, module = steps[i]
            assert isinstance(module, nn.Linear | nn.Conv2d)
            bias = params.get(f"{name}.bias")
            maps.append(
                LinearMap(
                    name,
                    module,
                    params[f"{name}.weight"].double(),
                    None if bias is None else bias.double(),
                    tuple(tensor.shape[1:]),
                    _between(steps[i + 1 : after]),
                )
            )
        # f(0), f(1), f(1/2): with a scale and a shift per entry the third lies half-way between the others.
        zero, one, half = seen[0].flatten(1).double()
        scale = one - zero
        if zero.numel() != torch.Size(input_shape).numel() or (scale == 0).any():
            raise refuse("input_not_read")(
                f"what comes before {steps[places[0]][0]!r}, the first fully connected layer or convolution of images, "
                "is no scaling of each input value",
                INSTEAD,
            )
        if not torch.allclose(half, zero + 0.5 * scale, atol=1e-5):
            raise refuse("input_not_read")("what comes before the first layer is not linear", INSTEAD)
        return cls(tuple(maps), scale, zero)

    def __len__(self) -> int:
        return len(self.maps)

    def run(self, first: int, reading: Float[Tensor, "k d"]) -> Pass:
        """Forward from what layer `first` reads."""
        readings, outputs = [reading], list[Tensor]()
        for layer in self.maps[first:]:
            outputs.append(layer.outputs(readings[-1]))
            readings.append(layer.after.forward(outputs[-1]))
        return Pass(first, tuple(readings[:-1]), tuple(outputs))

    def slopes(self, passed: Pass, labels: Int[Tensor, " k"]) -> dict[int, Float[Tensor, "k _"]]:
        """Gradient of each example's own cross-entropy in the outputs of each layer from `passed.first` on.

        slope of the last layer = softmax(logits) - onehot(label)
        slope of layer l        = act'(outputs of layer l) * (slope of layer l + 1 @ W of layer l + 1)
        """
        logits, last = passed.outputs[-1], len(self) - 1
        slopes = {last: logits.softmax(1) - F.one_hot(labels, logits.shape[1])}
        for layer in range(last - 1, passed.first - 1, -1):
            bend = self.maps[layer].after.derivative(passed.outputs[layer - passed.first])
            slopes[layer] = bend * self.maps[layer + 1].pulled_back(slopes[layer + 1])
        return slopes

    def to_inputs(self, readings: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """From what the first layer reads to flattened inputs, before any normalization."""
        inputs: Tensor = (readings - self.shift) / self.scale  # what comes before the first layer is scale * x + shift
        return inputs


def solved(parts: Iterable[tuple[Tensor, Tensor]], rcond: float) -> tuple[Tensor, int, float]:
    """Least squares of several kinds of equations `A x = b`: the solution, the rank and the relative residual.

    Args:
        parts: A `[r, d]` and b `[r]` of each kind, scaled to rows of mean norm 1: kinds may differ by orders of size.
        rcond: Singular values below this share of the largest do not count.
    """
    # Rows of weights and of gradients differ by orders of size, and least squares would heed the larger kind alone.
    systems = [(a, b, a.norm(dim=1).mean().clamp(min=1e-300)) for a, b in parts if len(a)]
    a = torch.cat([a / size for a, _, size in systems]).cpu()
    b = torch.cat([b / size for _, b, size in systems]).cpu()
    # gelsd decomposes by singular values: the minimum-norm solution, and the rank.
    found = torch.linalg.lstsq(a, b[:, None], rcond=rcond, driver="gelsd")
    x = found.solution[:, 0]
    # |A x - b| / |b|: how much of what was asked for the solution does not explain.
    residual = float((a @ x - b).norm() / b.norm().clamp(min=1e-300))
    return x.to(systems[0][0]), int(found.rank), residual


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules in the order they are applied; only `nn.Sequential` says that order."""
    if isinstance(module, nn.Sequential):
        for key, child in module._modules.items():  # named_children() leaves out a module that is used twice
            assert child is not None
            yield from _leaves(child, f"{name}.{key}" if name else key)
    else:
        yield name, module


def _check_map(name: str, module: nn.Module, params: Tensors) -> None:
    if f"{name}.weight" not in params or (module.bias is not None and f"{name}.bias" not in params):
        raise refuse("not_sent")(f"layer {name!r} is not trained, so no gradient of it is sent", INSTEAD)
    if isinstance(module, nn.Conv2d) and (
        module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str)
    ):
        raise refuse("network")(f"convolution {name!r} is grouped or padded with other things than zeros", INSTEAD)


def _check_rest(steps: list[tuple[str, nn.Module]]) -> None:
    """Refuse, by name, what cannot be turned around."""
    for name, module in steps:
        if isinstance(module, (nn.Linear, nn.Conv2d, *PASSED_OVER)) or activation_of(module) is not None:
            continue
        kind = type(module).__name__
        why = {
            "MaxPool2d": "keeps only the largest of several values",
            "AvgPool2d": "keeps only means",
            "AdaptiveAvgPool2d": "keeps only means",
            "BatchNorm2d": "ties the values of a batch together",
            "GELU": "takes two inputs to one output",
            "SiLU": "takes two inputs to one output",
        }.get(kind, "has a way through it, such as a residual connection, that is no chain of layers")
        raise refuse("network")(f"the recursion cannot go back through {name or 'the model'!r}: {kind} {why}", INSTEAD)


def _between(steps: list[tuple[str, nn.Module]]) -> Activation:
    """The activation of the modules between two maps."""
    activations = [module for _, module in steps if not isinstance(module, PASSED_OVER)]
    if len(activations) > 1:
        raise refuse("network")(f"two activations follow each other at {steps[-1][0]!r}", INSTEAD)
    activation = activation_of(activations[0] if activations else None)
    assert activation is not None
    return activation


def _read(model: nn.Module, names: list[str], params: Tensors, input_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """What each module reads where the model's inputs are all 0, all 1 and all 1/2."""
    like = next(iter(params.values()))
    probes = torch.tensor([0.0, 1.0, 0.5]).to(like).reshape(3, *[1] * len(input_shape)).expand(3, *input_shape)
    with torch.no_grad():
        calls = calls_in_pass(model, names, params, as_inputs(model, probes))
    if [len(calls.get(name, [])) for name in names] != [1] * len(names):
        raise refuse("not_called_once")("a layer is used more than once", INSTEAD)
    return tuple(calls[name][0].input for name in names)
