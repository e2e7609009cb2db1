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
    nearest to the tensor). 32 bits: single precision, otherwise as it is.

    FedLeak does not say how it rounds; even levels with one scale per tensor are the choice made here, each entry to
    the nearest one, and of an exact half to the even one. An attacker reads the scale and the levels off the update.

    Args:
        bits: Bits per entry, 1 to 32.

    Example:
        >>> sent = Quantize(bits=2)._send(torch.tensor([-4.0, 0.5, 3.0]))
        >>> sent.tolist()
        [-4.0, 0.0, 4.0]
    """

    reads_examples: ClassVar[bool] = False

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in range(1, 33):
            raise SeepageError(f"Quantize needs bits from 1 to 32, got bits={self.bits}; correct the recipe")

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        return replace(update, tensors={name: self._send(t) for name, t in update.tensors.items()})

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return (Rounded(self.bits),) if 1 < self.bits < 32 else ()

    def likelihood(self, rule: ClientUpdate, examples: float) -> "RoundingLikelihood | None":
        return RoundingLikelihood(self.bits) if self.bits < 32 else None

    def wire_bytes(self, update: Update) -> int:
        return update.encoded_bytes(self.bits)

    def _send(self, tensor: Tensor) -> Tensor:
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
            return torch.where(exact >= 0, 1.0, -1.0).to(tensor) * float(exact.abs().mean())
        step = largest / (2 ** (self.bits - 1) - 1)
        sent: Tensor = ((exact / step).round() * step).clamp(-largest, largest)
        return sent.to(tensor.dtype)


@dataclass(frozen=True)
class Rounded(DefenseModel):
    """Each entry lies within half a step of what was sent."""

    bits: int

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        return {name: self._one(tensor, target[name]) for name, tensor in dummy.items()}

    def suited_to(self, *, scale_free: bool, absolute: bool, single_gradient: bool) -> "Rounded | None":
        # Squared distances and cosines stop at the interval's edge and do better with the levels as they are.
        return self if absolute else None

    def _one(self, dummy: Tensor, sent: Tensor) -> Tensor:
        reach = sent.abs().max() / (2 ** (self.bits - 1) - 1) / 2
        off = dummy - sent
        return sent + off - off.clamp(-reach, reach)


WITHIN = 0.1
"""Slope inside a rounding interval, where that beyond it is 1. On 24 digits that nothing else scores 0.03, 0.1 and 0.3
were within 1 dB of one another; with squares in place of sums `bayes` did worse than without this knowledge."""
SOFTNESS = 0.5
"""Width of the transition between a right and a wrong sign, in units of the tensor's mean magnitude. Of 0.3, 0.5, 1 and
2 chosen on the same digits, where 0.5 and 1 were best."""


@dataclass(frozen=True)
class RoundingLikelihood(Likelihood):
    """How likely a guess's gradient is rounded to the levels that were sent, each tensor in units of its own step.

    With u the difference of an entry to its level over the step:

    - A level is certain for |u| <= 1/2 and impossible beyond. No start of a search fulfills all of these intervals, so
      the log chance falls linearly beyond, by 1 per step, and by `WITHIN` inside.
    - 1 bit: what was sent is a sign s and the mean magnitude m of the tensor. A wrong sign is impossible, which
      `log(1 + exp(-s g' / (SOFTNESS m)))` softens; and `(mean |g'| / m - 1) ** 2`, times the tensor's entries, holds
      the guess to the magnitude.

    Args:
        bits: Bits per entry, 1 to 31.

    >>> half_a_step_off = {"w": torch.tensor([3.0, 0.5])}
    >>> round(float(RoundingLikelihood(bits=3)(half_a_step_off, {"w": torch.tensor([3.0, 0.0])})), 3)
    0.05
    """

    bits: int

    def __call__(self, dummy: Tensors, sent: Tensors) -> Tensor:
        # A tensor of zeros has no step, and says nothing here.
        terms = [self._one(dummy[name], tensor) for name, tensor in sent.items() if bool(tensor.any())]
        return torch.stack(terms).sum()

    def _one(self, dummy: Tensor, sent: Tensor) -> Tensor:
        largest = sent.abs().max()
        if self.bits == 1:
            scaled = dummy / largest
            wrong: Tensor = F.softplus(-sent.sign() * scaled / SOFTNESS).sum()
            return wrong + scaled.numel() * (scaled.abs().mean() - 1).pow(2)
        off = (dummy - sent).abs() / (largest / (2 ** (self.bits - 1) - 1))  # |u|
        outside: Tensor = WITHIN * off + (1 - WITHIN) * (off - 0.5).clamp(min=0)
        return outside.sum()
