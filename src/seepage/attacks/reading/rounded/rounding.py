"""How coarsely an update was rounded on its way: by the format its weights, or the gradient itself, were kept in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.base.number_formats import SIGNIFICANT_BITS, NumberFormat, format_of
from seepage.federation.types import ClientUpdate, Round, Tensors, Update

Place = Literal["weights", "gradient"]
PLACES: tuple[Place, ...] = ("weights", "gradient")
ARITHMETIC: dict[Place, float] = {"weights": 2.0**-10, "gradient": 2.0**-8}
"""Relative rounding that an entry is taken to carry beside that of its format: sums in the client's own arithmetic, and
factors that were rounded before the sum where the gradient itself is of such a format, as under autocast."""
GLANCE = 2**16
"""Entries of a tensor that are looked at, the first ones: a few rows show what its values are like."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of an update that is read as a gradient.

    Attributes:
        format: Name of the number format; `float32` where weights were returned in no coarser one.
        where: `weights`: the returned ones were rounded, so a small change is lost beside a large weight.
            `gradient`: its own entries were, so each is known to the same share.
        half: By parameter, in its shape, float64, in units of the gradient: how far an entry may be off.
    """

    format: str
    where: Place
    half: Tensors

    @property
    def input_share(self) -> float:
        """Relative error of an example that the client may have rounded itself, before it computed anything."""
        bits = SIGNIFICANT_BITS.get(self.format)
        return 0.0 if bits is None else 2.0**-bits

    @property
    def product_share(self) -> float:
        """Relative error of the products that a layer adds up: as its factors were rounded, where its gradient was."""
        return self.input_share if self.where == "gradient" else 0.0

    @property
    def words(self) -> str:
        """What was rounded, for a sentence."""
        if self.where == "gradient":
            return f"the gradient is made of {self.format} numbers"
        return f"the returned weights are {self.format} numbers"


def glance(observed: Round, client: ClientUpdate, name: str) -> Rounding | None:
    """The coarse format of one tensor by its first `GLANCE` entries, whose `half` alone is given; None: there is none.

    Args:
        observed: The round.
        client: The client's rule, which reads a difference of weights as a gradient.
        name: A parameter that was sent, a large one.
    """
    rows = max(1, GLANCE // max(1, observed.update.tensors[name][:1].numel()))
    for where in PLACES:
        kept = _kept(observed, client, name, where, rows)
        form = None if kept is None else format_of(*kept[:2])
        if kept is not None and form is not None:
            return Rounding(form.name, where, {name: _half(kept, form, where)})
    return None


def weights_format(observed: Round, name: str) -> str | None:
    """Name of the coarse format of the returned weights, whatever rule made the step; None: there is none.

    Args:
        observed: The round, with a difference of weights.
        name: A parameter that was sent, a large one; its first `GLANCE` entries are looked at.
    """
    rows = max(1, GLANCE // max(1, observed.update.tensors[name][:1].numel()))
    before = observed.params[name][:rows].double()
    after = before + observed.update.tensors[name][:rows].double()
    form = format_of(after, torch.finfo(torch.float32).eps * torch.maximum(before.abs(), after.abs()))
    return None if form is None else form.name


def rounding_of(observed: Round, client: ClientUpdate, names: Sequence[str]) -> Rounding | None:
    """How some tensors of a round's update were rounded; None for a gradient whose first tensor is of no coarse format.

    A difference of weights is rounded at least as float32 rounds these, which is much where the step was small.

    Args:
        observed: The round.
        client: The client's rule, which reads a difference of weights as a gradient.
        names: Parameters that were sent, the largest first.

    Example:
        >>> from seepage.federation.clients import FedAvg
        >>> before = torch.linspace(-1, 1, 64)
        >>> after = (before + 0.1 * before.cos()).bfloat16().float()
        >>> sent = Round(0, {"w": before}, Update({"w": after - before}, kind="delta"))
        >>> rounding_of(sent, FedAvg(lr=0.1, steps=1), ["w"]).words
        'the returned weights are bfloat16 numbers'
    """
    seen, half, first = glance(observed, client, names[0]), dict[str, Tensor](), None
    where = "weights" if seen is None else seen.where
    for name in names:
        kept = _kept(observed, client, name, where)
        if kept is None:
            return None
        form = None if seen is None else format_of(*kept[:2], like=first)
        first = first or form
        half[name] = _half(kept, form, where)
        if seen is None:
            half[name] += kept[1] / kept[2]
    return Rounding("float32" if first is None else first.name, where, half)


_Kept = tuple[Tensor, Tensor, float, Tensor]
"""One tensor in the numbers that may have been rounded: the returned weights, or the gradient; how far float32
arithmetic puts them off, in its shape; what one unit of the gradient changes in a value; and the gradient, float64."""


def _half(kept: _Kept, form: NumberFormat | None, where: Place) -> Tensor:
    """How far a gradient's entries may be off, by the format of what was kept and by arithmetic."""
    # Three errors, added as if independent: rounding to the format, arithmetic in it, and float32's beside the largest.
    values, _, unit, gradient = kept
    rounded = torch.zeros_like(values) if form is None else form.half / unit
    own = (0.0 if form is None else ARITHMETIC[where]) * gradient
    least = torch.finfo(torch.float32).eps * gradient.abs().max()
    return (rounded.square() + own.square() + least.square()).sqrt()


def _kept(observed: Round, client: ClientUpdate, name: str, where: Place, rows: int | None = None) -> _Kept | None:
    """A tensor, or its first rows, as weights or as a gradient; None for the weights of a gradient sent as it is."""
    update, before, size = observed.update, observed.params[name][:rows].double(), observed.batch_size
    gradient = client.as_gradient(Update({name: update.tensors[name][:rows]}, update.kind), size)[name].double()
    single = torch.finfo(torch.float32).eps
    rate = update.rate
    if update.kind == "delta":
        # A weight moves by -lr times the gradient, or by what momentum makes of that.
        # The rule is linear, so a change of 1 in a weight shows one over the rate.
        one = client.as_gradient(Update({name: torch.ones(1, dtype=torch.float64)}, "delta"), size)[name]
        rate = 1 / float(one.abs())
    if rate is None:
        return None if where == "weights" else (gradient, single * gradient.abs(), 1.0, gradient)
    # w' = w - rate g - a w: the weights as they were after the step, with a the share taken off by weight decay.
    after = before - rate * gradient - update.decayed.get(name, 0.0) * before
    slack = single * torch.maximum(before.abs(), after.abs())
    if where == "weights":
        return after, slack, rate, gradient
    # A difference of float32 weights carries the rounding of both.
    return gradient, 2 * slack / rate, 1.0, gradient
