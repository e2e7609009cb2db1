"""The blocks at the end of a residual network: which layers they are made of, and the network behind them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seepage.attacks.network import AttackedRound
from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.activations.deconvolution import REMEDY
from seepage.attacks.reading.head import HeadFeatures
from seepage.attacks.reading.head.equations import UNEXPLAINED
from seepage.base.nn import LayerCall, captured_calls, forward, generator, in_mode, last_linear
from seepage.errors import refuse
from seepage.federation.types import Tensors

PROBES = 16
"""Random images that show the slope of each channel."""
OFF_SLOPE = 1e-3
"""A channel whose slope is a smaller share of the median one counts as off for an example."""


@dataclass(frozen=True, kw_only=True)
class InnerActivations(HeadFeatures):
    """What the last block of a network read for each example, beside the features that it gave.

    Attributes:
        layer: Name of the convolution that reads `activations`: the first one of the last block, or of one further in.
        activations: `[n, C, H, W]` float64.
        offset_known: `[C]` channels of `activations` whose additive constant is known.
    """

    layer: str
    activations: Float[Tensor, "n C H W"]
    offset_known: Bool[Tensor, " C"]


@dataclass(frozen=True, eq=False)
class Block:
    """A convolution, a ReLU and another convolution, and the network behind them, which ends in pooling and the head.

    Attributes:
        attacked: The round.
        head: Name of the last fully connected layer.
        last: Name of the second convolution; at the end of the network, of its last one.
        before: Name of the convolution whose outputs, normalized and behind a ReLU, the last one reads.
        source: Name of the module whose output `before` reads.
        calls: All calls on random images, with their graph.
        convolutions: Names of all convolutions whose gradients were sent, in the order of the calls.
    """

    attacked: AttackedRound
    head: str
    last: str
    before: str
    source: str
    calls: Mapping[str, LayerCall]
    convolutions: tuple[str, ...]

    @classmethod
    def of(cls, attacked: AttackedRound) -> Self:
        """Read off one pass on random images.

        Raises:
            Inapplicable: Where the network does not end so.
        """
        knowledge, observed, client = attacked.knowledge, attacked.observed, attacked.knowledge.client
        names = last_linear(knowledge.model, knowledge.num_outputs)
        if names is None:
            raise refuse("no_head")("the model has no last linear layer", REMEDY)
        if observed.batch_size is None:
            raise refuse("no_batch_size")("the batch size is unknown", "name it with --batch-size")
        if not (knowledge.softmax_labels and client.single_gradient):
            raise refuse("no_softmax_gradient")("the update is not one gradient of cross-entropy", REMEDY)
        head = names[0].removesuffix(".weight")
        calls = _calls(attacked)
        layers = {name: attacked.model.get_submodule(name) for name in calls if f"{name}.weight" in attacked.gradient}
        convolutions = [name for name, layer in layers.items() if _is_usable(layer)]
        plain = [name for name in convolutions if is_plain(layers[name])]
        if not plain or head not in calls or calls[head].input.shape[1:] != (calls[plain[-1]].output.shape[1],):
            raise refuse("network")(
                "the last layer does not read the pooled outputs of a convolution with a kernel of several entries "
                "(a bottleneck ends in one of a single entry)",
                REMEDY,
            )
        return cls._ending_in(plain[-1], attacked, head, calls, convolutions)

    @classmethod
    def _ending_in(
        cls,
        last: str,
        attacked: AttackedRound,
        head: str,
        calls: Mapping[str, LayerCall],
        convolutions: Sequence[str],
    ) -> Self:
        for before in reversed(convolutions[: convolutions.index(last)]):
            source = _source(calls, calls[before].input)
            if feeds(calls[before], calls[last].input) and source is not None:
                return cls(attacked, head, last, before, source, calls, tuple(convolutions))
        raise refuse("network")("the last convolution does not read another one behind a ReLU", REMEDY)

    def use(self, name: str) -> LayerUse:
        """A convolution's call as the linear algebra wants it: its weight in float64, on a CPU."""
        layer, call = self.attacked.model.get_submodule(name), self.calls[name]
        assert isinstance(layer, nn.Conv2d)
        geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
        weight = self.attacked.observed.params[f"{name}.weight"].double().cpu()
        return LayerUse(weight, geometry, call.input.detach(), call.output.detach())

    @cached_property
    def _weight(self) -> Float[Tensor, "C k"]:
        return self.attacked.observed.params[f"{self.head}.weight"].double().cpu()

    def logit_slopes(self, slopes: Float[Tensor, "n O h w"], name: str) -> Float[Tensor, "n C"]:
        """A, slopes of the loss in the logits, each row times the example's factor.

        Args:
            slopes: Gradients of a layer's outputs: `D[i, o, p] = top[o] (A_i W)[o]` where output o is on, else 0.
            name: That layer.
        """
        top = slope_of_channels(self.calls[self.head].input, self.calls[name].output)  # [O]
        rows = []
        # Behind pooling all positions of an output have one slope where they are on: top[o] (A_i W)[o].
        for each in slopes.flatten(2):  # [O, positions]
            # The largest is D where the output is on somewhere, and rounding where it is nowhere.
            largest = each.gather(1, each.abs().argmax(1, keepdim=True))[:, 0]  # [O]
            on = (largest.abs() > OFF_SLOPE * largest.abs().median()) & (top != 0)
            # W^T A_i = D / top, in the least-squares sense, on the outputs that are on.
            rows.append(torch.linalg.lstsq(self._weight[:, on].T, (largest / top)[on, None]).solution[:, 0])
        found = torch.stack(rows)
        # Of softmax minus label the label's entry alone is negative, and as long as all others together.
        if bool((found.gather(1, found.abs().argmax(1, keepdim=True)) > 0).any()):
            raise refuse("conflict")("the gradients of the last convolution's outputs are those of no label", REMEDY)
        return found

    def tail(self, read: Float[Tensor, "n C H W"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n C"]]:
        """Features and class probabilities where the last block reads this."""
        observed = self.attacked.observed
        with torch.no_grad():
            features, logits = self._behind(
                read.to(self.attacked.like()), observed.params, observed.buffers, training=False
            )
        return features.double().cpu(), logits.double().cpu().softmax(1)

    def _behind(
        self, read: Tensor, params: Tensors, buffers: Tensors, *, training: bool
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n C"]]:
        """Features and logits of a pass in which the last block reads this."""
        model, shape = self.attacked.model, self.attacked.knowledge.input_shape
        # A clone: the network may change it in place.
        replaced = model.get_submodule(self.source).register_forward_hook(lambda *_: read.clone())
        try:
            with captured_calls(model, [self.head]) as calls, in_mode(model, training=training):
                logits = forward(model, params, read.new_zeros(len(read), *shape), buffers=buffers)
        finally:
            replaced.remove()
        return calls[self.head][0].input, logits

    def found(
        self,
        read: Float[Tensor, "n C H W"],
        features: Float[Tensor, "n k"],
        labels: Int[Tensor, " n"],
        probabilities: Float[Tensor, "n C"],
        wanted: Float[Tensor, "n C"],
        share: float,
        offset_known: Bool[Tensor, " C"] | None = None,
    ) -> InnerActivations:
        """In the order of the labels, where the network's softmax minus label is the one that the gradient wants.

        Raises:
            Inapplicable: Where it is not.
        """
        misfit = float(contradiction(probabilities, labels, wanted).max())
        if not misfit < UNEXPLAINED:
            raise refuse("conflict")("the solved activations contradict the network's own class probabilities", REMEDY)
        order = labels.argsort(stable=True)
        features, labels, probabilities = features[order], labels[order], probabilities[order]
        # W^T (p_i - y_i) / n, as of the head itself. [n, k]
        slopes = (probabilities - F.one_hot(labels, probabilities.shape[1])) / len(labels)
        every = torch.ones(read.shape[1], dtype=torch.bool)
        return InnerActivations(
            layer=self.before, activations=read[order], offset_known=every if offset_known is None else offset_known,
            head=self.head, features=features, labels=labels, probabilities=probabilities,
            signal=slopes @ self._weight, noise=misfit * features.square().mean(1).sqrt(),
            known=torch.ones(len(labels), dtype=torch.bool), doubt=None, share=share,
        )  # fmt: skip


def contradiction(
    probabilities: Float[Tensor, "n C"], labels: Int[Tensor, " n"], wanted: Float[Tensor, "n C"]
) -> Float[Tensor, " n"]:
    """Relative difference of softmax minus label, as the network has it, from what the gradient wants."""
    own = probabilities - F.one_hot(labels, probabilities.shape[1])
    off: Tensor = (wanted - own).norm(dim=1) / own.norm(dim=1).clamp(min=1e-12)
    return off


def _calls(attacked: AttackedRound) -> dict[str, LayerCall]:
    """Calls of the modules that are used once, on random images, in the order in which they end, with their graph."""
    model, knowledge, observed = attacked.model, attacked.knowledge, attacked.observed
    low, high = knowledge.value_range
    images = torch.rand((PROBES, *knowledge.input_shape), generator=generator(0, "probe images"))
    every = [name for name, _ in model.named_modules() if name]
    weights: Tensors = {name: weight.detach() for name, weight in observed.params.items()}
    with captured_calls(model, every) as calls, in_mode(model, training=False), _OutOfPlace():
        inputs = (low + (high - low) * images).to(attacked.like()).requires_grad_()
        try:
            forward(model, weights, inputs, buffers=observed.buffers)
        except RuntimeError as error:
            raise refuse("does_not_run")(
                f"the network does not run on inputs of shape {tuple(knowledge.input_shape)} ({error})",
                "name the shape of an example with --shape",
            ) from None
    return {name: several[0] for name, several in calls.items() if len(several) == 1}


class _OutOfPlace(TorchFunctionMode):
    """ReLUs in place make tensors of their own: what is behind one is another tensor than what is in front of it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (F.relu, F.relu_, torch.relu_, Tensor.relu_):
            return torch.relu(args[0])
        return func(*args, **(kwargs or {}))


def _is_usable(layer: nn.Module) -> bool:
    """Whether it is a convolution of one group that reads zeros beyond the border."""
    if not isinstance(layer, nn.Conv2d):
        return False
    return layer.groups == 1 and isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"


def is_plain(layer: nn.Module) -> bool:
    """Whether a convolution has a kernel of several entries, moved by one position."""
    assert isinstance(layer, nn.Conv2d)
    return layer.stride == (1, 1) and min(layer.kernel_size) > 1


def _source(calls: Mapping[str, LayerCall], read: Tensor) -> str | None:
    """Name of the outermost module that made this very tensor: further in, it may have been something else before.

    A shortcut that does nothing gives the tensor that it was given.
    """
    made = [name for name, call in calls.items() if call.output is read and call.input is not read]
    return made[-1] if made else None


def feeds(call: LayerCall, read: Tensor) -> bool:
    """Whether `read` is this layer's output behind an affine map of each channel and a ReLU."""
    if call.output.shape != read.shape:
        return False
    # Behind a ReLU the slope of an entry is zero just where the entry is; mixing of entries would spread it.
    (slope,) = torch.autograd.grad(read.sum(), call.output, retain_graph=True, allow_unused=True)
    return slope is not None and bool(((slope != 0) == (read > 0)).all())


def slope_of_channels(after: Tensor, before: Tensor) -> Float[Tensor, " O"]:
    """Derivative of `after` in each channel of `before` where units are on; 0 for a channel that never is."""
    (slope,) = torch.autograd.grad(after.sum(), before, retain_graph=True)
    # Each entry is the channel's slope or 0, so the entry of largest size is the slope.
    flat = slope.transpose(0, 1).flatten(1).double().cpu()  # [O, images positions]
    return flat.gather(1, flat.abs().argmax(1, keepdim=True))[:, 0]
