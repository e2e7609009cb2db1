"""Distances of an attacker who knows the client's defense: what the defense hides is not held against a guess.

The dummy gradient goes through what is known of the defense before it is compared, so every distance can be used:
entries that were hidden are hidden in it too, and one that lies within the rounding of what was observed counts as
equal to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from seepage.attacks.matching.distances import L1, TINY, Cosine, Distance, safe_norm
from seepage.clients import FedSGD
from seepage.defenses import (
    Compose,
    DecayingNoise,
    GaussianNoise,
    LaplaceNoise,
    Outpost,
    PartialAccess,
    Quantize,
    SelectiveEncryption,
    Soteria,
    Sparsify,
    UnitNormNoise,
)
from seepage.errors import Inapplicable
from seepage.types import Defense, Knowledge, Round, Tensors


class Step(Protocol):
    """What a defense does to a gradient, as far as an attacker can follow it."""

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        """The dummy gradient as the defense would have sent it, given what it sent."""


@dataclass(frozen=True)
class Known(Distance):
    """A distance that follows the client's defense where the attacker is told of it, and is `inner` where not.

    Entries that `selective_encryption`, `soteria` and `partial_access` to the lowest set to zero are left out; those
    that `sparsify`, `outpost` and `partial_access` to the highest do were small, and count little (`FAINT`). A clip or
    a scaling of the whole update is applied to the dummy gradient too, where the client sends one gradient. With `L1`,
    entries that `quantize` rounded may lie anywhere within their rounding interval; squared distances and cosines do
    better with the levels as they are, since they stop at the interval's edge, and so does 1 bit (measured: see the
    tests). Other defenses are not followed, nor any defense of several clients whose updates are summed.

    >>> from seepage.attacks.matching.distances import L2
    >>> known = Known(L2()).given(Knowledge(nn.Identity(), FedSGD(), (1,), 2, defense=Sparsify(keep=0.5)))
    >>> dummy, sent = {"w": torch.tensor([2.0, 0.5, -3.0, 1.0])}, {"w": torch.tensor([2.0, 0.0, -3.0, 0.0])}
    >>> float(L2()(dummy, sent)), round(float(known(dummy, sent)), 4)
    (1.25, 0.0011)
    """

    inner: Distance

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return self.inner(dummy, target)

    def given(self, knowledge: Knowledge, observed: Round | None = None) -> Distance:
        inner, defense = self.inner.given(knowledge, observed), knowledge.defense
        if defense is None or knowledge.client.alone is not knowledge.client:
            return inner
        followed = _steps(defense.parts if isinstance(defense, Compose) else (defense,), knowledge.model)
        blind = isinstance(inner, Cosine)
        steps: list[Step] = []
        for step in followed:
            if isinstance(step, Clipped | UnitLength):
                # The length of a difference of weights is another unit, and a cosine is blind to any length.
                steps += [step] if isinstance(knowledge.client, FedSGD) and not blind else []
            elif not isinstance(step, Rounded) or isinstance(inner, L1):
                steps.append(step)
        return Through(inner, tuple(steps)) if steps else inner


@dataclass(frozen=True)
class Through(Distance):
    """A distance after the dummy gradient went through what the defense does."""

    inner: Distance
    steps: tuple[Step, ...]

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        for step in self.steps:
            dummy = step(dummy, target)
        return self.inner(dummy, target)


@dataclass(frozen=True)
class Clipped:
    """The whole gradient is scaled down to a Euclidean norm (order 2) or a sum of magnitudes (order 1)."""

    clip: float
    order: Literal[1, 2] = 2

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        if self.order == 2:
            size = safe_norm(dummy)
        else:
            size = torch.stack([tensor.abs().sum() for tensor in dummy.values()]).sum() + TINY
        scale = (self.clip / size).clamp(max=1)
        return {name: scale * tensor for name, tensor in dummy.items()}


@dataclass(frozen=True)
class UnitLength:
    """The whole gradient is scaled to norm 1."""

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        size = safe_norm(dummy)
        return {name: tensor / size for name, tensor in dummy.items()}


FAINT = 0.03
"""Weight of entries that are known to be small. Of 0, 0.03, 0.1 and 0.3 the one that did well with every search tried:
0 leaves L-BFGS on squared distances astray (12 dB, 38 dB with 0.03, on digits pruned to a tenth), more costs signed
Adam on cosines 15 dB and over."""


@dataclass(frozen=True)
class Hidden:
    """Entries that were sent as zero were hidden.

    Args:
        weight: By what the dummy's are multiplied: 0 where nothing is known of them, `FAINT` where they were small.
    """

    weight: float = 0.0

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        return {name: torch.where(target[name] == 0, self.weight * tensor, tensor) for name, tensor in dummy.items()}


@dataclass(frozen=True)
class HiddenColumns:
    """Columns of one weight that were sent as zero were hidden; zeros elsewhere are true."""

    weight: str

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        shown = (target[self.weight] != 0).any(0)
        return {**dummy, self.weight: dummy[self.weight] * shown}


@dataclass(frozen=True)
class Rounded:
    """Each entry lies within half a step (a whole one, if rounded at random) of what was sent."""

    bits: int
    stochastic: bool = False

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        return {name: self._one(tensor, target[name]) for name, tensor in dummy.items()}

    def _one(self, dummy: Tensor, sent: Tensor) -> Tensor:
        step = sent.abs().max() / (2 ** (self.bits - 1) - 1)
        reach = step if self.stochastic else step / 2
        off = dummy - sent
        return sent + off - off.clamp(-reach, reach)


def _steps(parts: Sequence[Defense], model: nn.Module) -> tuple[Step, ...]:
    """What can be followed of defenses in a row. Behind a defense that is not, zeros and levels no longer show."""
    steps: list[Step] = []
    for place, part in enumerate(parts):
        shows = all(isinstance(later, _SHOWING) for later in parts[place + 1 :])
        if isinstance(part, _SCALING) and place == 0:
            steps += _scaling(part)
        elif shows:
            steps += _hiding(part, model)
    return tuple(steps)


_SCALING = (GaussianNoise, DecayingNoise, LaplaceNoise, UnitNormNoise)
_SHOWING = (Sparsify, PartialAccess, SelectiveEncryption, Soteria)


def _scaling(part: Defense) -> list[Step]:
    if isinstance(part, UnitNormNoise):
        return [] if part.restore else [UnitLength()]
    assert isinstance(part, GaussianNoise | DecayingNoise | LaplaceNoise)
    if part.clip is None:
        return []
    return [Clipped(part.clip, 1 if isinstance(part, LaplaceNoise) else 2)]


def _hiding(part: Defense, model: nn.Module) -> list[Step]:
    match part:
        case Sparsify():
            return [Hidden(FAINT)] if part.keep < 1 else []
        case PartialAccess():
            return [Hidden(FAINT if part.which == "highest" else 0.0)]
        case Outpost():
            return [Hidden(FAINT)]
        case SelectiveEncryption():
            return [Hidden()]
        case Soteria():
            return _columns(part, model)
        case Quantize() if 1 < part.bits < 32:
            return [Rounded(part.bits, part.stochastic)]
    return []


def _columns(part: Soteria, model: nn.Module) -> list[Step]:
    try:
        return [HiddenColumns(f"{part.pruned_layer(model, dict(model.named_parameters()))}.weight")]
    except Inapplicable:  # another model than the defense ran on
        return []
