"""The blocks at the end of a residual network: which layers they are made of, and the network behind them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seepage.attacks.activations.batch_norm import BatchNorm
from seepage.attacks.activations.deconvolution import REMEDY
from seepage.attacks.gauss_newton.linearize import LayerUse
from seepage.core.nn import LayerCall, captured_calls, forward, generator, in_mode, last_linear
from seepage.errors import Inapplicable
from seepage.types import Knowledge, Round, Tensors

PROBES = 16
"""Random images that show the slope of each channel."""
FAINT = 1e-3
"""A channel whose slope is a smaller share of the median one counts as off for an example."""


@dataclass(frozen=True, eq=False)
class Block:
    """A convolution, a ReLU and another convolution, and the network behind them, which ends in pooling and the head.

    Attributes:
        observed: The round.
        knowledge: What is known.
        head: Name of the last fully connected layer.
        last: Name of the second convolution; at the end of the network, of its last one.
        before: Name of the convolution whose outputs, normalized and behind a ReLU, the last one reads.
        source: Name of the module whose output `before` reads.
        calls: All calls on random images, with their graph.
        convolutions: Names of all convolutions whose gradients were sent, in the order of the calls.
    """

    observed: Round
    knowledge: Knowledge
    head: str
    last: str
    before: str
    source: str
    calls: Mapping[str, LayerCall]
    convolutions: tuple[str, ...]

    @classmethod
    def of(cls, observed: Round, knowledge: Knowledge) -> "Block":
        """Read off one pass on random images.

        Raises:
            Inapplicable: Where the network does not end so.
        """
        names = last_linear(knowledge.model, knowledge.num_outputs)
        if names is None:
            raise Inapplicable("the model has no last linear layer", REMEDY)
        if observed.batch_size is None:
            raise Inapplicable("the batch size is unknown", "name it with --batch-size")
        client = knowledge.client
        if not (knowledge.softmax_labels and client.single_gradient):
            raise Inapplicable("the update is not one gradient of cross-entropy", REMEDY)
        head = names[0].removesuffix(".weight")
        calls = _calls(observed, knowledge)
        sent = observed.gradient(client)
        layers = {name: knowledge.model.get_submodule(name) for name in calls if f"{name}.weight" in sent}
        convolutions = [name for name, layer in layers.items() if _is_usable(layer)]
        plain = [name for name in convolutions if _is_plain(layers[name])]
        if not plain or head not in calls or calls[head].input.shape[1:] != (calls[plain[-1]].output.shape[1],):
            raise Inapplicable(
                "the last layer does not read the pooled outputs of a convolution with a kernel of several entries "
                "(a bottleneck ends in one of a single entry)",
                REMEDY,
            )
        return cls._ending_in(plain[-1], observed, knowledge, head, calls, convolutions)

    @classmethod
    def _ending_in(
        cls,
        last: str,
        observed: Round,
        knowledge: Knowledge,
        head: str,
        calls: Mapping[str, LayerCall],
        convolutions: Sequence[str],
    ) -> "Block":
        for before in reversed(convolutions[: convolutions.index(last)]):
            source = _source(calls, calls[before].input)
            if _feeds(calls[before], calls[last].input) and source is not None:
                return cls(observed, knowledge, head, last, before, source, calls, tuple(convolutions))
        raise Inapplicable("the last convolution does not read another one behind a ReLU", REMEDY)

    def previous(self) -> "Block":
        """The block whose output this one reads: two convolutions, each with a batch norm behind it.

        Raises:
            Inapplicable: Where there is none.
        """
        given = self.calls[self.source].output
        for last in reversed(self.convolutions[: self.convolutions.index(self.before)]):
            norm = self.normalizes(last)
            if norm is None or not _is_plain(self.knowledge.model.get_submodule(last)):
                continue
            if _feeds(self.calls[norm], given):
                return self._ending_in(last, self.observed, self.knowledge, self.head, self.calls, self.convolutions)
        raise Inapplicable("in front of it is no block of two convolutions", REMEDY)

    def use(self, name: str) -> LayerUse:
        """A convolution's call as the linear algebra wants it: its weight in float64, on a CPU."""
        layer, call = self.knowledge.model.get_submodule(name), self.calls[name]
        assert isinstance(layer, nn.Conv2d)
        geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
        weight = self.observed.params[f"{name}.weight"].double().cpu()
        return LayerUse(weight, geometry, call.input.detach(), call.output.detach())

    @cached_property
    def _weight(self) -> Float[Tensor, "C k"]:
        return self.observed.params[f"{self.head}.weight"].double().cpu()

    def logit_slopes(self, slopes: Float[Tensor, "n O h w"], name: str) -> Float[Tensor, "n C"]:
        """A, slopes of the loss in the logits, each row times the example's factor.

        Args:
            slopes: Gradients of a layer's outputs: `D[i, o, p] = top[o] (A_i W)[o]` where output o is on, else 0.
            name: That layer.
        """
        top = slope_of_channels(self.calls[self.head].input, self.calls[name].output)  # [O]
        rows = []
        for each in slopes.flatten(2):  # [O, positions]
            largest = each.gather(1, each.abs().argmax(1, keepdim=True))[:, 0]
            on = (largest.abs() > FAINT * largest.abs().median()) & (top != 0)
            rows.append(torch.linalg.lstsq(self._weight[:, on].T, (largest / top)[on, None]).solution[:, 0])
        found = torch.stack(rows)
        # Of softmax minus label the label's entry alone is negative, and as long as all others together.
        if bool((found.gather(1, found.abs().argmax(1, keepdim=True)) > 0).any()):
            raise Inapplicable("the gradients of the last convolution's outputs are those of no label", REMEDY)
        return found

    def tail(self, read: Float[Tensor, "n C H W"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n C"]]:
        """Features and class probabilities where the last block reads this."""
        model, like = self.knowledge.model, next(iter(self.observed.params.values()))
        module = model.get_submodule(self.source)
        inputs = torch.zeros(len(read), *self.knowledge.input_shape).to(like)
        replaced = module.register_forward_hook(lambda *_: read.to(like, copy=True))
        try:
            with torch.no_grad(), captured_calls(model, [self.head]) as calls, in_mode(model, training=False):
                logits = forward(model, self.observed.params, inputs, buffers=self.observed.buffers)
        finally:
            replaced.remove()
        return calls[self.head][0].input.double().cpu(), logits.double().cpu().softmax(1)

    def normalizes(self, layer: str) -> str | None:
        """Name of the batch norm that reads a layer's outputs."""
        return next((name for name in self._norms if self.calls[name].input is self.calls[layer].output), None)

    @cached_property
    def front(self) -> str | None:
        """Name of the batch norm whose outputs, and perhaps a shortcut's, are what `before` reads behind a ReLU."""
        read = self.calls[self.source].output
        return next((name for name in reversed(self._norms) if _feeds(self.calls[name], read)), None)

    @cached_property
    def shortcut(self) -> tuple[str, str] | None:
        """Names of the convolution and the batch norm on the shortcut; None where what was read is added as it is.

        Raises:
            Inapplicable: Where it is neither.
        """
        final, read = self.normalizes(self.last), self.calls[self.before].input
        assert final is not None  # `norms` refused it
        behind = self._normalized(final)
        # What the block gives: its second norm's outputs, and the shortcut's, behind a ReLU.
        given = next((call.output for call in self.calls.values() if _feeds(self.calls[final], call.output)), None)
        if given is not None:
            if read.shape == behind.shape and torch.allclose((behind + read).relu(), given):
                return None
            for name in self.convolutions:
                norm = self.normalizes(name)
                if norm not in (None, final) and self.calls[name].input is read:
                    assert norm is not None
                    if torch.allclose((behind + self._normalized(norm)).relu(), given):
                        return name, norm
        raise Inapplicable("the last block adds up something else than its input or one convolution of it", REMEDY)

    def _normalized(self, name: str) -> Tensor:
        """What a batch norm gave for the random images, before anything was added to it in place."""
        params, buffers = self.observed.params, self.observed.buffers
        layer = self.knowledge.model.get_submodule(name)
        assert isinstance(layer, nn.BatchNorm2d)
        running = (buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"])
        weights = (params[f"{name}.weight"], params[f"{name}.bias"])
        return F.batch_norm(self.calls[name].input, *running, *weights, training=False, eps=layer.eps)

    @cached_property
    def _norms(self) -> list[str]:
        return [name for name in self.calls if isinstance(self.knowledge.model.get_submodule(name), nn.BatchNorm2d)]

    def norms(self, gradients: Mapping[str, Tensor]) -> tuple[BatchNorm, BatchNorm, BatchNorm]:
        """The batch norms behind the convolution before, behind the last one, and in front of both.

        Raises:
            Inapplicable: Where one of them is missing, or its gradients.
        """
        names = [self.normalizes(self.before), self.normalizes(self.last), self.front]
        found = [self.norm(name, gradients) for name in names if name is not None]
        if len(found) < len(names):
            raise Inapplicable("the last block is not made of convolutions with batch norms behind them", REMEDY)
        return found[0], found[1], found[2]

    def norm(self, name: str, gradients: Mapping[str, Tensor]) -> BatchNorm:
        """A batch norm and its gradients."""
        return BatchNorm.of(self.knowledge.model, name, self.observed.params, gradients)

    def coupled_tail(
        self, read: Float[Tensor, "n C H W"], labels: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n C"], Float[Tensor, "n C H W"]]:
        """`tail` in train mode, and the gradient of the mean loss in what the last block reads, in float64."""
        model, leaf = self.knowledge.model, read.clone().requires_grad_()
        state = {**dict(model.named_parameters()), **self.observed.params}
        params = {name: weight.detach().double().cpu() for name, weight in state.items()}
        buffers = {name: _double(buffer.cpu()) for name, buffer in self.observed.buffers.items()}
        inputs = torch.zeros(len(read), *self.knowledge.input_shape, dtype=torch.float64)
        replaced = model.get_submodule(self.source).register_forward_hook(lambda *_: leaf.clone())
        try:
            with captured_calls(model, [self.head]) as calls, in_mode(model, training=True):
                logits = forward(model, params, inputs, buffers=buffers)
        finally:
            replaced.remove()
        (slopes,) = torch.autograd.grad(F.cross_entropy(logits, labels), leaf)
        return calls[self.head][0].input.detach(), logits.detach().softmax(1), slopes


def _calls(observed: Round, knowledge: Knowledge) -> dict[str, LayerCall]:
    """Calls of the modules that are used once, on random images, in the order in which they end, with their graph."""
    model, like = knowledge.model, next(iter(observed.params.values()))
    low, high = knowledge.value_range
    images = torch.rand((PROBES, *knowledge.input_shape), generator=generator(0, "probe images"))
    every = [name for name, _ in model.named_modules() if name]
    weights: Tensors = {name: weight.detach() for name, weight in observed.params.items()}
    with captured_calls(model, every) as calls, in_mode(model, training=False), _OutOfPlace():
        inputs = (low + (high - low) * images).to(like).requires_grad_()
        try:
            forward(model, weights, inputs, buffers=observed.buffers)
        except RuntimeError as error:
            raise Inapplicable(
                f"the network does not run on inputs of shape {tuple(knowledge.input_shape)} ({error})",
                "name the shape of an example with --shape",
            ) from None
    return {name: several[0] for name, several in calls.items() if len(several) == 1}


class _OutOfPlace(TorchFunctionMode):
    """ReLUs in place make tensors of their own, so that what is behind one is told from what is in front of it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (F.relu, F.relu_, torch.relu_, Tensor.relu_):
            return torch.relu(args[0])
        return func(*args, **(kwargs or {}))


def _double(buffer: Tensor) -> Tensor:
    return buffer.double() if buffer.is_floating_point() else buffer


def _is_usable(layer: nn.Module) -> bool:
    """Whether it is a convolution of one group that reads zeros beyond the border."""
    if not isinstance(layer, nn.Conv2d):
        return False
    return layer.groups == 1 and isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"


def _is_plain(layer: nn.Module) -> bool:
    """Whether a convolution has a kernel of several entries, moved by one position."""
    assert isinstance(layer, nn.Conv2d)
    return layer.stride == (1, 1) and min(layer.kernel_size) > 1


def _source(calls: Mapping[str, LayerCall], read: Tensor) -> str | None:
    """Name of the outermost module that made this very tensor: further in, it may have been something else before.

    A shortcut that does nothing gives the tensor that it was given.
    """
    made = [name for name, call in calls.items() if call.output is read and call.input is not read]
    return made[-1] if made else None


def _feeds(call: LayerCall, read: Tensor) -> bool:
    """Whether `read` is this layer's output behind an affine map of each channel and a ReLU."""
    if call.output.shape != read.shape:
        return False
    (slope,) = torch.autograd.grad(read.sum(), call.output, retain_graph=True, allow_unused=True)
    return slope is not None and bool(((slope != 0) == (read > 0)).all())


def slope_of_channels(after: Tensor, before: Tensor) -> Float[Tensor, " O"]:
    """Derivative of `after` in each channel of `before` where units are on; 0 for a channel that never is."""
    (slope,) = torch.autograd.grad(after.sum(), before, retain_graph=True)
    flat = slope.transpose(0, 1).flatten(1).double().cpu()  # [O, images positions]
    return flat.gather(1, flat.abs().argmax(1, keepdim=True))[:, 0]
