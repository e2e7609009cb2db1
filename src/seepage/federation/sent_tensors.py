"""Whether named tensors fit a model: the same names and shapes, or those of a part of it, and finite."""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from seepage.errors import Inapplicable, NotFinite, SeepageError, refuse, short


class SentTensors(dict[str, Tensor]):
    """The gradient of what was sent. Asking for a tensor that was not sent is `Inapplicable`, and never a zero.

    >>> SentTensors({"w": torch.zeros(1)}, trained=["w", "head"])["head"]
    Traceback (most recent call last):
        ...
    seepage.errors.Inapplicable: the gradient of 'head' was not sent (trained, and withheld); use a matching attack \
such as inverting_gradients, which matches what was sent
    """

    def __init__(self, tensors: Mapping[str, Tensor], trained: Collection[str]) -> None:
        super().__init__(tensors)
        self.trained = trained

    def __missing__(self, name: str) -> Tensor:
        raise not_sent(name, self.trained)


def not_sent(name: str, trained: Collection[str]) -> Inapplicable:
    """The refusal of what needs a tensor that did not come, with the reason why it did not."""
    why = "trained, and withheld" if name in trained else "frozen, or made of others"
    return refuse("not_sent")(
        f"the gradient of {short(name)} was not sent ({why})",
        "use a matching attack such as inverting_gradients, which matches what was sent",
    )


def check_fits(
    tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str, whose: str, *, partial: bool = False
) -> None:
    """Raise `SeepageError` unless `tensors` has exactly the names and shapes of `like`.

    Args:
        tensors: By name.
        like: By name.
        what: How to call the first in messages.
        whose: How to call the second.
        partial: Names may be missing from `tensors`, but not all of them.
    """
    missing, extra = sorted(set(like) - set(tensors)), sorted(set(tensors) - set(like))
    if partial and (tensors or not like):
        missing = []
    if missing or extra:
        parts = [f"lacks {_some(missing)}"] * bool(missing) + [f"has unknown {_some(extra)}"] * bool(extra)
        raise SeepageError(
            f"{what} does not fit {whose}: it {' and '.join(parts)}; "
            "use the model, with the same options, that the update was made with"
        )
    for name, tensor in tensors.items():
        if tensor.shape != like[name].shape:
            raise SeepageError(
                f"{what} does not fit {whose}: {short(name)} has shape {short(tuple(tensor.shape))}, "
                f"expected {tuple(like[name].shape)}; use the model the update was made with"
            )


LARGEST_VALUE = 1e15
"""Of a weight, or of a gradient's entry: a sum of the squares of 300 million of them is a number in float32 still.

What is larger comes of a training that diverged, or of somebody who means to stop whoever looks: decompositions of such
matrices end in no result.
"""


def check_finite(update: Mapping[str, Tensor], t: int, what: str = "update") -> None:
    """Raise `NotFinite` where the update of round `t` holds NaN, infinite values, or some beyond `LARGEST_VALUE`.

    Args:
        update: By name.
        t: The round, for the message.
        what: How to call it in the message.
    """
    for name in update:
        largest = largest_value(update[name])
        if largest <= LARGEST_VALUE:
            continue
        found = f"values of {largest:.2g}" if largest < math.inf else "NaN or infinite values"
        raise NotFinite(
            f"the {what} of round {t} holds {found} in {short(name)}, so nothing "
            "can be read from it; check the client's training for overflow and record again"
        )


def largest_value(tensor: Tensor) -> float:
    """The largest magnitude of an entry; infinite where one is NaN, 0 where there is none."""
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor.detach() if tensor.dtype.itemsize > 1 else tensor.detach().float())
    largest = max(-low.item(), high.item())
    return math.inf if math.isnan(largest) else float(largest)


def _some(names: list[str]) -> str:
    return f"[{', '.join(map(short, names[:3]))}]"
