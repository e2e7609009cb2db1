r"""An update as a measurement: the gradient behind it, and for each entry how far off it may be.

A server holds the difference of two states of the weights in some number format, made of a gradient by a known rule:

    x  = clamp(f g, -limit, limit) + c w                    f: one factor (clipping to a norm), c: decay in the gradient
    w' = (1 - a) w - s psi(x),   psi(x) = x / (sqrt(floor^2 + (gain x)^2) + eps)             a: decay beside it

One psi serves all of PyTorch's optimizers that start without a memory:

    SGD        floor 1, gain 0, eps 0                      psi = x
    Adam       floor 0, gain 1, eps 1e-8                   psi = x / (|x| + eps), as m = g and v = g^2 unbiased
    RMSprop    floor 0, gain sqrt(1 - alpha), eps 1e-8
    Adadelta   floor sqrt(eps), gain sqrt(1 - rho)         s = lr sqrt(eps)
    Adagrad    floor 0, gain 1, eps 1e-10

It is inverted entry by entry. With u = psi(x), v = |u| and q = 1 - (gain v)^2,

    |x| = v (eps + sqrt((eps gain v)^2 + q floor^2)) / q,    dx/du = 1 / psi'(x)

so the error of x is that of u, which the number format and the arithmetic of the optimizer leave, over the slope
psi'(x). Of Adam that is `(|g| + eps)^2 / eps`: small entries are known well, large ones not at all.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from seepage.base.number_formats import SIGNIFICANT_BITS, format_of, half_units
from seepage.base.storage import Tensors
from seepage.errors import SeepageError

EVEN = 3**-0.5
"""Standard deviation of an error that is evenly spread over -1 to 1: what rounding does, in units of half a step."""
ROUNDING = 0.425 * 2.0**-24
"""Relative standard deviation of one float32 rounding: `2^-24 sqrt(E[m^-2] / 3)` for mantissas m of density 1/m."""
SATURATED = 6.0
"""Errors of u from its ceiling `1 / gain` below which nothing is known of an entry but a least size: an even error
reaches 1.8 of them, and at 6 the slope of psi changes by a third within one."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One local step of a client, from its gradient to its weights; the equation is the module's.

    Attributes:
        name: As the optimizer is called.
        rate: s; 1 where it is unknown and the gradient is read up to a factor.
        floor: Of psi.
        gain: Of psi. Its ceiling is `1 / gain`.
        eps: Of psi.
        coupled: c, the weight decay that is added to the gradient.
        limit: Largest size of an entry of the gradient, where it was clipped by value.
        scaled: An unknown factor f lies on the gradient: its norm was clipped, eps or the rate are guesses.
        roundings: Float32 roundings on the way from x to `s psi(x)`, constants included; one of a square counts 1/4.

    Example:
        >>> Step.adam(lr=1e-3).inverted(torch.tensor([0.5, -0.9], dtype=torch.float64))
        tensor([ 1.0000e-08, -9.0000e-08], dtype=torch.float64)
    """

    name: str
    rate: float = 1.0
    floor: float = 1.0
    gain: float = 0.0
    eps: float = 0.0
    coupled: float = 0.0
    limit: float = math.inf
    scaled: bool = False
    roundings: float = 1.0

    def __post_init__(self) -> None:
        sizes = {"rate": self.rate, "limit": self.limit, "floor + eps": self.floor + self.eps}
        wrong = [f"{name} above 0, got {value}" for name, value in sizes.items() if not value > 0]
        others = {"floor": self.floor, "gain": self.gain, "eps": self.eps, "coupled": self.coupled}
        wrong += [f"{name} of 0 or more, got {value}" for name, value in others.items() if not 0 <= value < math.inf]
        if wrong or not self.rate < math.inf:
            raise SeepageError(f"a local step needs {'; '.join(wrong) or 'a finite rate'}; state the client's own")

    @classmethod
    def sgd(cls, lr: float = 1.0, momentum: float = 0.0, *, nesterov: bool = False) -> Self:
        """Of SGD, whose first step with momentum is plain; with Nesterov's it is `1 + momentum` times as long."""
        return cls(name="SGD", rate=lr * (1 + momentum * nesterov), roundings=1 + nesterov)

    @classmethod
    def adam(
        cls,
        lr: float = 1e-3,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        coupled: float = 0.0,
    ) -> Self:
        """Of Adam and AdamW: the means of g and g^2, unbiased, are those of the one gradient.

        Their factors `1 - beta` are float32 numbers and the corrections others, which moves the ceiling by up to 1e-7
        of itself: as much as the gap `eps / |g|` below it of a gradient of 0.1.
        """
        own = [(_single(1 - beta), 1 - beta) for beta in betas]
        rate = own[0][0] * _single(lr / own[0][1]) * _single(math.sqrt(own[1][1])) / math.sqrt(own[1][0])
        return cls(name="Adam", rate=rate, floor=0.0, gain=1.0, eps=eps, coupled=coupled, roundings=8)

    @classmethod
    def rmsprop(cls, lr: float = 1e-2, eps: float = 1e-8, alpha: float = 0.99) -> Self:
        """Of RMSprop: v = (1 - alpha) g^2."""
        gain = math.sqrt(_single(1 - alpha))
        return cls(name="RMSprop", rate=_single(lr), floor=0.0, gain=gain, eps=eps, roundings=8)

    @classmethod
    def adagrad(cls, lr: float = 1e-2, eps: float = 1e-10) -> Self:
        """Of Adagrad, whose sum of squares begins at 0."""
        return cls(name="Adagrad", rate=lr, floor=0.0, gain=1.0, eps=eps, roundings=6)

    @classmethod
    def adadelta(cls, lr: float = 1.0, eps: float = 1e-6, rho: float = 0.9) -> Self:
        """Of Adadelta: `sqrt(eps) g / sqrt((1 - rho) g^2 + eps)`."""
        root = math.sqrt(eps)
        return cls(name="Adadelta", rate=lr * root, floor=root, gain=math.sqrt(1 - rho), roundings=8)

    @property
    def linear(self) -> bool:
        """Whether psi is a factor alone."""
        return self.gain == 0

    @property
    def bent(self) -> bool:
        """Whether entries can be read at a guess of them: psi is no factor, and nothing else was added or cut off."""
        return not self.linear and not self.coupled and not math.isfinite(self.limit)

    @property
    def most(self) -> float:
        """What no entry moves by more than."""
        return self.rate / self.gain if self.gain else math.inf

    def psi(self, x: Tensor) -> Tensor:
        """What one unit of the rate changes, of x of any shape."""
        found: Tensor = x / (self._root(x) + self.eps)
        return found

    def slope(self, x: Tensor) -> Tensor:
        """psi'(x) = (floor^2 / r + eps) / (r + eps)^2 with r = sqrt(floor^2 + (gain x)^2)."""
        root = self._root(x)
        bent = self.floor**2 / root if self.floor else 0.0
        found: Tensor = (bent + self.eps) / (root + self.eps).square()
        return found

    def _root(self, x: Tensor) -> Tensor:
        # floor^2 underflows for no floor that an optimizer has.
        found: Tensor = (self.floor**2 + (self.gain * x).square()).sqrt() if self.floor else self.gain * x.abs()
        return found

    def inverted(self, u: Tensor) -> Tensor:
        """X with psi(x) = u, in float64; |u| is below the ceiling."""
        v = u.abs()
        room = (1 - self.gain * v) * (1 + self.gain * v)  # q
        found: Tensor = u * (self.eps + ((self.eps * self.gain * v).square() + room * self.floor**2).sqrt()) / room
        return found

    def over(self, share: float) -> Self:
        """The same step of a gradient that is `share` times as small."""
        if share == 1:
            return self
        if self.linear:
            return replace(self, rate=self.rate * share, coupled=self.coupled / share, limit=self.limit / share)
        # psi(s x) = x / (sqrt((floor / s)^2 + (gain x)^2) + eps / s)
        own = {name: getattr(self, name) / share for name in ("floor", "eps", "coupled", "limit")}
        return replace(self, **own)


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Number formats that an update went through: `float32`, `float16`, `bfloat16`, `int8` (a step for each row).

    Attributes:
        stored: Of the returned weights; `difference`: none, as the difference itself was sent and is rounded to
            float32 alone.
        gradient: Of each entry of the gradient, as under autocast.
        arithmetic: Relative error that each entry has besides, such as that of an optimizer that runs in a coarse
            format.
        sums: Error that each entry of a tensor has besides, as a share of its largest: what sums over examples and
            positions leave where their terms cancel.
    """

    stored: str = "float32"
    gradient: str = "float32"
    arithmetic: float = 0.0
    sums: float = 0.0

    @property
    def coarse(self) -> str | None:
        """The format of the weights or of the gradient that is coarser than float32; None: there is none."""
        return next((one for one in (self.stored, self.gradient) if one not in FINE), None)

    def __post_init__(self) -> None:
        known = {"float64", "float32", "int8", "difference", *SIGNIFICANT_BITS}
        wrong = [one for one in (self.stored, self.gradient) if one not in known]
        if wrong or not 0 <= self.arithmetic < 1:
            raise SeepageError(f"unknown number format {wrong or self.arithmetic}; name one of {sorted(known)}")


def _single(number: float) -> float:
    """A number as float32 holds it."""
    return float(torch.tensor(number, dtype=torch.float64).float())


def decay_of(share: float) -> float:
    """What a decay beside the gradient takes off a weight of one: PyTorch multiplies by `1 - share`, rounded."""
    return 1 - _single(1 - share)


FINE = ("float64", "float32", "difference")
BITS = {"float64": 53, "float32": 24, **SIGNIFICANT_BITS}
"""Bits of a number's significand, with the leading one that is not stored."""


def spread_of(values: Tensor, form: str) -> Tensor:
    """Standard deviation of what rounding to a format does to each of some numbers, float64, in their shape.

    An even error of half a step, `2^(e - bits)` beside a size from 2^e to 2^(e + 1). Eight bits have one step for
    each row, a 127th of its largest entry.

    >>> (spread_of(torch.tensor([1.0, 3.0]), "bfloat16") * 12**0.5 * 2**7).round().tolist()
    [1.0, 2.0]
    """
    exact = values.double()
    if form == "difference":
        return torch.zeros_like(exact)
    if form == "int8":
        rows = exact.reshape(len(exact), -1) if exact.ndim > 1 else exact.reshape(1, -1)
        return (EVEN / 254 * rows.abs().amax(1, keepdim=True)).expand_as(rows).reshape(exact.shape).contiguous()
    if form in SIGNIFICANT_BITS:
        return EVEN * half_units(exact, form)
    size = exact.abs().clamp(min=torch.finfo(torch.float32).smallest_normal)
    return EVEN * torch.exp2(size.log2().floor() - BITS[form])


@dataclass(frozen=True, eq=False)
class Measured:
    """A gradient with its errors, by parameter.

    Attributes:
        value: The gradient, float64, in each parameter's shape; up to one factor where `step.scaled`. Where nothing is
            known but that an entry is large, a size that it may well have.
        error: Standard error of each entry, in units of the gradient; infinite where nothing more is known.
        step: The step that was inverted; None: a gradient was sent.
        formats: Through which number formats it went, where that is known.
        moved: Of a bent step u = psi(x) and its standard errors, of each entry, those at the ceiling included.

    Example:
        >>> before = {"w": torch.full((3,), 0.5)}
        >>> gradient = torch.tensor([1e-6, 1e-4, 1.0])
        >>> weight = before["w"].clone().requires_grad_()
        >>> weight.grad = gradient
        >>> torch.optim.Adam([weight], lr=1e-3).step()
        >>> found = read_update(before, {"w": weight.detach() - before["w"]}, Step.adam(lr=1e-3))
        >>> [f"{v:.1e} +- {e:.0e}" for v, e in zip(found.value["w"].tolist(), found.error["w"].tolist())]
        ['1.0e-06 +- 9e-10', '9.8e-05 +- 8e-06', '7.8e-04 +- inf']
    """

    value: Tensors
    error: Tensors
    step: Step | None = None
    formats: Formats | None = None
    moved: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value.keys() != self.error.keys():
            raise SeepageError("a measurement needs an error for each tensor, and none without one; give both")
        for name, value in self.value.items():
            error = self.error[name]
            if error.shape != value.shape or not bool(value.isfinite().all()) or not bool((error >= 0).all()):
                raise SeepageError(f"the measurement of {name} needs finite values, and for each an error of 0 or more")

    def accuracy(self, names: Iterable[str] | None = None) -> float | None:
        """Median relative error of the entries that are not zero, of some tensors or all; None: there are none.

        Infinite where more than half are unknown.
        """
        chosen = list(self.value if names is None else names)
        parts = [(self.error[name] / self.value[name].abs())[self.value[name] != 0].flatten() for name in chosen]
        every = torch.cat(parts) if parts else torch.zeros(0)
        return float(every.median()) if len(every) else None

    def known(self, names: Iterable[str] | None = None) -> float:
        """Share of the entries that are not zero of which more than a least size is known."""
        chosen = list(self.value if names is None else names)
        live = sum(int((self.value[name] != 0).sum()) for name in chosen)
        return sum(int(((self.value[name] != 0) & self.error[name].isfinite()).sum()) for name in chosen) / max(live, 1)


def straight(step: Step, u: Tensor, spread: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Entries and errors by the tangent of psi at expected ones: `e + (u - psi(e)) / psi'(e)`, `sigma_u / psi'(e)`.

    Errors at measured values are smaller where the noise made an entry small, so a mean that is weighted by them is too
    small: by four times its variance over that of an entry, of Adam. Those at a fit are not; and of an entry at the
    ceiling they say that it is large, and how unsurely so.

    Args:
        step: A bent step without decay in its gradient.
        u: What each entry moved by, over minus the rate.
        spread: Standard errors of that.
        expected: e, of the same shape.
    """
    slope = step.slope(expected)
    return expected + (u - step.psi(expected)) / slope, spread / slope


def read_update(
    before: Mapping[str, Tensor],
    moved: Mapping[str, Tensor],
    step: Step,
    formats: Formats = Formats(),
    *,
    shares: Mapping[str, float] | None = None,
) -> Measured:
    """The gradient behind a difference of weights, with the errors that a step and number formats imply.

    Errors add up in squares: the weights' own rounding over the rate, that of the optimizer's arithmetic, both
    carried through the inverse of psi, and those of the gradient's own format.

    Args:
        before: The weights that were sent out, by name.
        moved: Weights after minus before, of some or all of them.
        step: The client's step.
        formats: Number formats on the way.
        shares: a, the share of each weight that a decay beside the gradient took off, by name; 0 of those missing.

    Raises:
        SeepageError: Where a difference has no weights, or another shape.
    """
    value, error, raw = dict[str, Tensor](), dict[str, Tensor](), dict[str, tuple[Tensor, Tensor]]()
    for name, change in moved.items():
        if name not in before or before[name].shape != change.shape:
            raise SeepageError(f"the difference of {name} has no weights of its shape; give those that were sent out")
        value[name], error[name], *kept = _entries(before[name], change, step, formats, (shares or {}).get(name, 0.0))
        raw |= {name: (kept[0], kept[1])} if step.bent else {}
    return Measured(value, error, step, formats, raw)


def measured_entries(
    before: Tensor, moved: Tensor, step: Step, formats: Formats, share: float = 0.0
) -> tuple[Tensor, Tensor]:
    """One tensor's gradient and its standard errors, float64; arguments as of `read_update`."""
    return _entries(before, moved, step, formats, share)[:2]


def _entries(
    before: Tensor, moved: Tensor, step: Step, formats: Formats, share: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, and u with its standard errors."""
    weight, change = before.double(), moved.double()
    if formats.stored == "float32":
        # A difference in float32 may have lost what the weights still had: the nearest weight is the one returned.
        change = (weight + change).float().double() - weight
    u = -(change + decay_of(share) * weight) / step.rate
    # The weights are stored once, and once more where a decay was taken off them first.
    stored = spread_of(weight + change, formats.stored).square()
    stored = stored + spread_of(weight, formats.stored).square() * (share > 0)
    # A difference that was sent as it is has but its own rounding, to float32.
    own = spread_of(change, "float32").square() if formats.stored == "difference" else 0.0
    spread = ((stored + own) / step.rate**2 + step.roundings * (ROUNDING * u).square()).sqrt()
    lost, whole = torch.zeros_like(u, dtype=torch.bool), u
    if not step.linear:
        # Beyond the ceiling less some errors psi is flat: at least so large, and that is all. Where the errors are as
        # large as the ceiling, not even that.
        room = 1 / step.gain - u.abs()
        lost = room < SATURATED * spread
        # Half an error from the ceiling still says where u was, to whoever reads it again.
        most = (1 / step.gain - spread / 2).clamp(min=0.5 / step.gain)
        u = torch.where(lost, u.sign() * torch.minimum(u.abs(), most), u)
    x = step.inverted(u)
    # d x = d u / psi'(x); the sum with c w is rounded once, its product once.
    square = (spread / step.slope(x)).square()
    pull = step.coupled * weight
    if step.coupled:
        square = square + (ROUNDING * x).square() + (ROUNDING * pull).square()
    gradient = x - pull
    error = (square + _own_errors(gradient, formats)).sqrt()
    lost |= gradient.abs() >= step.limit - 2 * error
    return gradient, error.masked_fill(lost, math.inf), whole, spread


def _own_errors(gradient: Tensor, formats: Formats) -> Tensor:
    """Squares of the errors that a gradient's entries had before any step was made of them."""
    square = (formats.arithmetic * gradient).square()
    if formats.gradient != "float32":
        square = square + spread_of(gradient, formats.gradient).square()
    return square + (formats.sums * gradient.abs().max() if gradient.numel() else 0.0) ** 2


# --- a gradient that was read before: its weights and errors again, tensor by tensor --------------------------------


GLANCE, FEW = 2**16, 64
"""Entries of a tensor that are looked at for its format, the first ones; and so few that another tensor tells it."""
COARSE_ARITHMETIC = {"stored": EVEN * 2.0**-10, "gradient": EVEN * 2.0**-8}
"""Relative error of an entry beside that of a coarse format: sums in the client's own arithmetic, and factors that were
rounded before the sum where the gradient itself is of such a format, as under autocast."""
SUMS = EVEN * 2.0**-23
"""Share of a tensor's largest entry by which float32 sums put off each."""


def weights_moved(gradient: Tensor, before: Tensor, step: Step, share: float) -> Tensor:
    """By how much the weights moved, float64, of the gradient that was read off them."""
    weight, exact = before.double(), gradient.double()
    return -step.rate * step.psi(exact + step.coupled * weight) - decay_of(share) * weight


def format_told(
    gradient: Tensor, before: Tensor | None, step: Step | None, share: float, like: Formats | None = None
) -> Formats:
    """The coarse format that a tensor's entries tell, of the weights after the step or of the gradient itself.

    Args:
        gradient: A parameter's, of many entries.
        before: Its weights, where they are known.
        step: How its weights followed from it; None: it was sent as it is.
        share: Of its decay.
        like: What a larger tensor told, for one of few entries. Integers need a step of their own, and small tensors
            are seldom made of them.
    """
    if like is not None and (like.coarse is None or gradient.numel() < FEW):
        return Formats(sums=SUMS) if like.coarse == "int8" else like
    rows = max(1, GLANCE // max(1, gradient[:1].numel())) if gradient.ndim else 1
    part = gradient[:rows] if gradient.ndim else gradient.reshape(1)
    exact, single = part.double(), torch.finfo(torch.float32).eps
    slack = single * exact.abs()
    if step is not None and before is not None:
        start = before[:rows].reshape(part.shape).double()
        after = start + weights_moved(part, start, step, share)
        room = single * torch.maximum(start.abs(), after.abs())
        found = format_of(after, room)
        if found is not None:
            return Formats(stored=found, arithmetic=COARSE_ARITHMETIC["stored"], sums=SUMS)
        if not step.linear:
            return Formats(sums=SUMS)  # small entries of what a bent step leaves are errors, which fit any format
        slack = 2 * measured_entries(start, after - start, step, Formats(), share)[1]
    found = format_of(exact, slack)
    if found is None:
        return Formats(sums=SUMS)
    return Formats(gradient=found, arithmetic=COARSE_ARITHMETIC["gradient"], sums=SUMS)


def entries_of_step(
    gradient: Tensor, before: Tensor, step: Step, share: float, formats: Formats
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One tensor's gradient with its errors, and u with its own, by the weights that it was read off.

    Arguments as of `format_told`.
    """
    return _entries(before, weights_moved(gradient, before, step, share), step, formats, share)


def entries_of_gradient(gradient: Tensor, formats: Formats) -> tuple[Tensor, Tensor]:
    """The same of a gradient that was sent as it is."""
    exact = gradient.double()
    return exact, (spread_of(exact, "float32").square() + _own_errors(exact, formats)).sqrt()
