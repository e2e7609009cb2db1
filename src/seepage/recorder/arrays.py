"""Weights as a framework hands them over, under the model's own names and one tensor at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from seepage.attacks.exposure.decay import WeightDecay, decay_of_rows
from seepage.base.nn import as_inputs, forward, in_mode, last_linear
from seepage.base.storage import LazyTensors
from seepage.errors import SeepageError, short
from seepage.federation.models.naming import renamed, tied_names
from seepage.federation.models.weights import stripped
from seepage.federation.sent_tensors import check_finite, check_fits
from seepage.federation.types import Tensors

Part = Literal["params", "buffers", "frozen"]


def tensor_of(array: Any) -> Tensor:
    """A framework's array as a tensor; of the same memory where that may be written to.

    Raises:
        SeepageError: For something that holds no numbers, such as what was encrypted.
    """
    if isinstance(array, Tensor):
        return array
    try:
        return torch.from_numpy(np.require(array, requirements=["W", "C"]))
    except (TypeError, ValueError) as error:
        raise SeepageError(
            f"{type(array).__name__} is no array of numbers, so nothing can be read from it; record before it is "
            "encrypted or packed"
        ) from error


@dataclass(frozen=True)
class Layout:
    """A model's names and shapes, without its weights.

    Attributes:
        like: A tensor of each name of its `state_dict` on the meta device, which takes no memory; of tied parameters
            the first name.
        parts: Which parameters are trained, which frozen, and which names are buffers.
        fixed: Buffers that no `state_dict` has, and frozen parameters as the model was built with them, which
            messages often leave out.
        outputs: Shape of its outputs for one example.
        tied: Second names of tied parameters, each with the first.
        orders: Names that arrays without names may stand for, in their order.
        last: Names of weight and bias of its last fully connected layer, where it has one row per output.
    """

    like: Tensors
    parts: Mapping[str, Part]
    fixed: Tensors
    outputs: tuple[int, ...]
    tied: Mapping[str, str] = field(default_factory=dict)
    orders: tuple[tuple[str, ...], ...] = ()
    last: tuple[str, str | None] | None = None

    @classmethod
    def of(cls, model: nn.Module, input_shape: tuple[int, ...], names: Sequence[str] | None = None) -> "Layout":
        """The layout of a model that reads examples of this shape.

        Args:
            model: The model.
            input_shape: Of one example.
            names: What arrays without names stand for, in their order; None: the `state_dict` where they are as many,
                else the parameters that the model trains.

        Raises:
            SeepageError: For a name that the model does not have, and a model that cannot be run.
        """
        state, tied = model.state_dict(), tied_names(model)
        like = {name: tensor.detach().to("meta") for name, tensor in state.items() if name not in tied}
        parts: dict[str, Part] = {
            name: "params" if parameter.requires_grad else "frozen" for name, parameter in model.named_parameters()
        }
        parts |= {name: "buffers" for name, _ in model.named_buffers()}
        fixed = {name: tensor.clone() for name, tensor in model.named_buffers() if name not in like}
        fixed |= {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        strange = next((name for name in names or () if name not in state), None)
        if strange is not None:
            raise SeepageError(f"names=… holds {short(strange)}, which the model has not; name its own parameters")
        trained = tuple(name for name, part in parts.items() if part == "params")
        orders = (tuple(names),) if names is not None else (tuple(state), trained)
        outputs = _outputs(model, input_shape)
        return cls(like, parts, fixed, outputs, tied, orders, last_linear(model, outputs[0]))

    @property
    def classes(self) -> int:
        """Outputs of its last layer."""
        return self.outputs[0]

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.like.values())

    def of_part(self, part: Part) -> list[str]:
        """The names of one part."""
        return [name for name, found in self.parts.items() if found == part]

    def named(self, arrays: Mapping[str, Tensor]) -> LazyTensors:
        """Arrays under the model's names, in its number format; those only numbered are taken to be in its order.

        What wrappers put before every name is left out, and second names of tied parameters, and the short names of
        `peft` are resolved. A name that the model does not have is kept as it is.
        """
        keys = stripped({name: name for name in arrays})
        order = next((names for names in self.orders if len(names) == len(keys)), None)
        if order is not None and all(name.isdigit() for name in keys):
            keys = dict(zip(order, keys.values(), strict=True))
        other = renamed(keys, self.like, self.tied)
        # Of two names of a parameter the first one counts.
        own_names = {name: key for name, key in keys.items() if name not in other}
        keys = {**{other.get(name, name): key for name, key in keys.items()}, **own_names}
        own = {key: name for name, key in keys.items()}

        def make(key: str) -> Tensor:
            tensor, like = _plain(arrays[key], key).detach(), self.like.get(own[key])
            if like is None:
                return tensor
            # Some frameworks give single numbers a dimension of their own.
            one = tensor.reshape(like.shape) if tensor.numel() == like.numel() == 1 else tensor
            return one.to("cpu", like.dtype)

        return LazyTensors(keys, make)


def _plain(tensor: Tensor, name: str) -> Tensor:
    """The tensor, where it holds real numbers one beside the other; a client may send any kind."""
    odd = tensor.is_complex() or tensor.is_quantized or tensor.is_meta or tensor.is_nested
    if odd or tensor.layout != torch.strided:
        kind = "complex numbers" if tensor.is_complex() else "no plain array of numbers"
        raise SeepageError(f"{short(name)} holds {kind}, which no weights are; send dense, real weights")
    return tensor


def _outputs(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        with torch.no_grad(), in_mode(model, training=False):
            found = forward(model, {}, as_inputs(model, torch.zeros(2, *input_shape)))
            return found.shape[1], *found.shape[2:]
    except Exception as error:
        raise SeepageError(
            f"the model cannot be run on an example of shape {input_shape} ({type(error).__name__}: "
            f"{str(error)[:120]}); give the input_shape that it reads, or leave the recorder out"
        ) from error


@dataclass(frozen=True)
class Sent:
    """One update under the model's names.

    Attributes:
        layout: The model's.
        before: The weights that were sent out.
        update: The update, by the name of its parameter.
        kind: `gradient` or `delta`.
        rate: Of a gradient: the learning rate that the difference of weights was divided by.
        decay: Weight decay that was found in the difference and taken out of it.
        missing: Trained parameters that did not come back.
        personal: Those of them that were not sent out either.
    """

    layout: Layout
    before: Mapping[str, Tensor]
    update: Mapping[str, Tensor]
    kind: Literal["gradient", "delta"]
    rate: float | None = None
    decay: WeightDecay | None = None
    missing: tuple[str, ...] = ()
    personal: frozenset[str] = frozenset()

    @classmethod
    def between(
        cls,
        layout: Layout,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        lr: float | None,
        t: int,
        difference: bool = False,
        softmax: bool = False,
        hold: bool = False,
    ) -> "Sent":
        """The update between two states: their difference, or a gradient where the rate of one SGD step is given.

        Args:
            layout: Names, shapes and kinds of the model's tensors.
            before: State that was sent out; may lack frozen parameters, and trained ones that `after` lacks too.
            after: State that was returned; may lack parameters.
            lr: Learning rate of the one SGD step between the states; None: not known, or several steps.
            t: Index of the round, for messages.
            difference: Whether `after` is the difference itself.
            softmax: Whether the loss is one of the softmax, with which weight decay can be detected.
            hold: Whether to keep the update in memory, for repeated reads.

        Raises:
            SeepageError: Where a state does not fit the model, where no trained parameter was returned, and where the
                update is not finite.
        """
        start, end = layout.named(before), layout.named(after)
        trained = layout.of_part("params")
        personal = frozenset(name for name in trained if name not in start and name not in end)
        held = {name: like for name, like in layout.like.items() if name in start or layout.parts[name] == "params"}
        held = {name: like for name, like in held.items() if name not in personal}
        check_fits(start, held, "the weights that were sent out", "the model")
        check_fits(end, layout.like, "the returned weights", "the model", partial=True)
        names = {name: name for name in trained if name in end}
        if not names:
            raise SeepageError("none of the model's trained parameters were returned, so there is no update to record")

        raw = LazyTensors(names, lambda name: end[name] if difference else end[name] - start[name])
        decay = decay_of_rows(layout.last, start, raw) if softmax else None

        def make(name: str) -> Tensor:
            share = 0.0 if decay is None else decay.shares.get(name, 0.0)
            moved = raw[name] + share * start[name] if share else raw[name]
            return moved if lr is None else -moved / lr

        made = LazyTensors(names, make)
        update = dict(made) if hold else made
        check_finite(update, t)
        missing = tuple(name for name in trained if name not in names)
        kind: Literal["gradient", "delta"] = "delta" if lr is None else "gradient"
        return cls(layout, start, update, kind, lr, decay, missing, personal)

    @property
    def decayed(self) -> dict[str, float]:
        """The share of each weight that weight decay took off it, by name."""
        return {} if self.decay is None else dict(self.decay.shares)

    def load(self, model: nn.Module) -> None:
        """Put the weights that were sent out, one by one, into a model that lies at others."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name not in self.personal:
                    parameter.copy_(self._sent_out(name))

    @property
    def buffers(self) -> Tensors:
        """The buffers that were sent out."""
        return {name: self._sent_out(name) for name in self.layout.of_part("buffers")}

    @property
    def state(self) -> LazyTensors:
        """The model that was sent out, `params/NAME`, `buffers/NAME` and `frozen/NAME`."""
        keys = {f"{part}/{name}": name for name, part in self.layout.parts.items() if name not in self.personal}
        return LazyTensors(keys, self._sent_out)

    @property
    def params(self) -> Tensors:
        """The trained parameters that were sent out."""
        return {name: self._sent_out(name) for name in self.layout.of_part("params") if name not in self.personal}

    def _sent_out(self, name: str) -> Tensor:
        return self.before[name] if name in self.before else self.layout.fixed[name]
