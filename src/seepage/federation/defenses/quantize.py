"""Send every entry with few bits."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from seepage.base.registry import defenses
from seepage.errors import SeepageError
from seepage.federation.types import ClientUpdate, ClientView, Defense, DefenseModel, Likelihood, Tensors, Update


@defenses.register("quantize")
@dataclass(frozen=True, kw_only=True)
class Quantize(Defense):
    """Round each tensor to evenly spaced levels (FedLeak, Section 6.4, with 32, 16, 8, 4 and 1 bit).

    From 2 to 31 bits: the `2 ** bits - 1` whole multiples of `s / (2 ** (bits - 1) - 1)` up to s, where s is the
    tensor's largest magnitude; zero is one of them. 1 bit: the sign, times the tensor's mean magnitude (that scale is
    nearest to the tensor), or with `stochastic` times its largest. 32 bits: single precision, otherwise as it is.

    FedLeak does not say how it rounds; even levels with one scale per tensor are the choice made here. An attacker
    reads the scale and the levels off the update.

    Args:
        bits: Bits per entry, 1 to 32.
        stochastic: Round up or down at random, so that each entry is right on average (Alistarh et al. 2017, with the
            largest magnitude in place of the norm). Else to the nearest level, and of an exact half to the even one.

    Example:
        >>> sent = Quantize(bits=2)._send(torch.tensor([-4.0, 0.5, 3.0]), torch.Generator())
        >>> sent.tolist()
        [-4.0, 0.0, 4.0]
    """

    reads_examples: ClassVar[bool] = False

    bits: int
    stochastic: bool = False

    def __post_init__(self) -> None:
        if self.bits not in range(1, 33):
            raise SeepageError(f"Quantize needs bits from 1 to 32, got bits={self.bits}; correct the recipe")

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        return replace(update, tensors={name: self._send(t, generator) for name, t in update.tensors.items()})

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return (Rounded(self.bits, self.stochastic),) if 1 < self.bits < 32 else ()

    def likelihood(self, rule: ClientUpdate, examples: float) -> "RoundingLikelihood | None":
        return RoundingLikelihood(self.bits, self.stochastic) if self.bits < 32 else None

    def wire_bytes(self, update: Update) -> int:
        return update.encoded_bytes(self.bits)

    def _send(self, tensor: Tensor, generator: Generator) -> Tensor:
        """The tensor as it is sent, in its own dtype.

        With 2 to 31 bits it is on a grid of `2 k + 1` levels of step `max|x| / k`, with `k = 2^(bits - 1) - 1`; 32 bits
        are single precision and 1 bit leaves signs.
        """
        if self.bits == 32:
            return tensor.float().to(tensor.dtype)
        # In double precision, since 31 bits do not fit into the 24 of a float.
        exact = tensor.double()
        largest = float(exact.abs().max()) if exact.numel() else 0.0
        if largest == 0.0:
            return tensor.clone()
        if self.bits == 1:
            return self._signs(exact, largest, generator).to(tensor.dtype)
        step = largest / (2 ** (self.bits - 1) - 1)
        places = exact / step
        rounded = (places + _uniform(places, generator)).floor() if self.stochastic else places.round()
        sent: Tensor = (rounded * step).clamp(-largest, largest)
        return sent.to(tensor.dtype)

    def _signs(self, exact: Tensor, largest: float, generator: Generator) -> Tensor:
        if not self.stochastic:
            return torch.where(exact >= 0, 1.0, -1.0).to(exact) * float(exact.abs().mean())
        chance = (1 + exact / largest) / 2
        return torch.where(_uniform(exact, generator) < chance, 1.0, -1.0).to(exact) * largest


def _uniform(like: Tensor, generator: Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like.device)


@dataclass(frozen=True)
class Rounded(DefenseModel):
    """Each entry lies within half a step (a whole one, if rounded at random) of what was sent."""

    bits: int
    stochastic: bool = False

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        return {name: self._one(tensor, target[name]) for name, tensor in dummy.items()}

    def suited_to(self, *, scale_free: bool, absolute: bool, single_gradient: bool) -> "Rounded | None":
        # Squared distances and cosines stop at the interval's edge and do better with the levels as they are.
        return self if absolute else None

    def _one(self, dummy: Tensor, sent: Tensor) -> Tensor:
        step = sent.abs().max() / (2 ** (self.bits - 1) - 1)
        reach = step if self.stochastic else step / 2
        off = dummy - sent
        return sent + off - off.clamp(-reach, reach)


WITHIN = 0.1
"""Slope inside a rounding interval, where that beyond it is 1. On 24 digits that nothing else scores 0.03, 0.1 and 0.3
were within 1 dB of one another; with squares in place of sums `bayes` did worse than without this knowledge."""
SOFTNESS = 0.5
"""Width of the transition between a right and a wrong sign, in units of the tensor's mean magnitude. Of 0.3, 0.5, 1 and
2 chosen on the same digits, where 0.5 and 1 were best."""
IMPOSSIBLE = 0.95
"""Share of the way to an impossible rounding from which the log chance goes on as a straight line."""


@dataclass(frozen=True)
class RoundingLikelihood(Likelihood):
    """How likely a guess's gradient is rounded to the levels that were sent, each tensor in units of its own step.

    With u the difference of an entry to its level over the step:

    - nearest level: certain for |u| <= 1/2 and impossible beyond. No start of a search fulfills all of these intervals,
      so the log chance falls linearly beyond, by 1 per step, and by `WITHIN` inside.
    - at random: the chance of a level is 1 - |u| (exact), continued as a straight line from `IMPOSSIBLE` on.
    - 1 bit: what was sent is a sign s and the mean magnitude m of the tensor. A wrong sign is impossible, which
      `log(1 + exp(-s g' / (SOFTNESS m)))` softens; and `(mean |g'| / m - 1) ** 2`, times the tensor's entries, holds
      the guess to the magnitude. At random the chance of a sign is `(1 + s g' / largest) / 2`, exact.

    Args:
        bits: Bits per entry, 1 to 31.
        stochastic: Whether entries are rounded at random.

    >>> half_a_step_off = {"w": torch.tensor([3.0, 0.5])}
    >>> round(float(RoundingLikelihood(bits=3)(half_a_step_off, {"w": torch.tensor([3.0, 0.0])})), 3)
    0.05
    """

    bits: int
    stochastic: bool = False

    def __call__(self, dummy: Tensors, sent: Tensors) -> Tensor:
        # A tensor of zeros has no step, and says nothing here.
        terms = [self._one(dummy[name], tensor) for name, tensor in sent.items() if bool(tensor.any())]
        return torch.stack(terms).sum()

    def _one(self, dummy: Tensor, sent: Tensor) -> Tensor:
        largest = sent.abs().max()
        if self.bits == 1:
            return self._signs(dummy / largest, sent.sign())
        off = (dummy - sent).abs() / (largest / (2 ** (self.bits - 1) - 1))  # |u|
        if self.stochastic:
            return _minus_log(1 - off).sum()
        outside: Tensor = WITHIN * off + (1 - WITHIN) * (off - 0.5).clamp(min=0)
        return outside.sum()

    def _signs(self, scaled: Tensor, sign: Tensor) -> Tensor:
        """Of entries over the magnitude that was sent."""
        if self.stochastic:
            return _minus_log((1 + sign * scaled) / 2).sum()
        wrong: Tensor = F.softplus(-sign * scaled / SOFTNESS).sum()
        return wrong + scaled.numel() * (scaled.abs().mean() - 1).pow(2)


def _minus_log(chance: Tensor) -> Tensor:
    """`-log(chance)`, as a straight line of the same slope where the chance is nearly 0 or below."""
    least = 1 - IMPOSSIBLE
    # -log p = -log c + (c - p) / c for p < c: the tangent at c.
    return -chance.clamp(min=least).log() + (least - chance).clamp(min=0) / least
