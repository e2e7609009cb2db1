"""Whether named tensors fit a model: the same names and shapes, or those of a part of it, and finite."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from seepage.errors import Inapplicable, NotFinite, SeepageError, short


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
    why = "trained, and withheld" if name in trained else "frozen, so nobody has one"
    return Inapplicable(
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


def check_finite(update: Mapping[str, Tensor], t: int) -> None:
    """Raise `NotFinite` where the update of round `t` holds NaN or infinite values."""
    for name in update:
        if not _is_finite(update[name]):
            raise NotFinite(
                f"the update of round {t} holds NaN or infinite values in {short(name)}, so nothing "
                "can be read from it; check the client's training for overflow and record again"
            )


def _is_finite(tensor: Tensor) -> bool:
    # The sum is there at once; it is not finite where a value is not, and where finite values overflow it.
    return bool(tensor.sum().isfinite()) or bool(torch.isfinite(tensor).all())


def _some(names: list[str]) -> str:
    return f"[{', '.join(map(short, names[:3]))}]"
