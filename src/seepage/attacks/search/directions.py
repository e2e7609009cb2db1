"""What a first-order optimizer is given instead of the plain gradient."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from seepage.errors import SeepageError

Gradients = list[Tensor]
"""One tensor per unknown, shaped like it: gradients of the objective, or moves."""


class SearchPoint(Protocol):
    """Where a search stands: what a direction may ask beyond the gradient it is given."""

    @property
    def share(self) -> float:
        """Share of the steps done, in [0, 1)."""

    @property
    def moved(self) -> int:
        """How many of the gradients are by unknowns that the inputs are made of; the labels' logits come after them."""

    def gradients_at(self, moves: Sequence[Tensor]) -> Gradients:
        """The objective's gradients at unknowns plus `moves`: one more evaluation. Logits stay where they are."""

    def step_along(self, gradients: Sequence[Tensor]) -> Gradients:
        """The moves of one full optimizer step that is given `gradients`; the optimizer is left as it was."""


class Direction(ABC):
    """Turns the gradients with respect to the unknowns into what the optimizer sees.

    Attributes:
        needs_plain_steps: It asks for a whole optimizer step, which an optimizer with a line search cannot tell.
        turns_labels: The last gradient it is given is that by the logits of labels that are searched for, if any are.
        step_noise: Standard deviation of normal noise on each unknown after a step, as a share of the learning rate.
    """

    needs_plain_steps: ClassVar[bool] = False
    turns_labels: bool = False

    @property
    def step_noise(self) -> float:
        return 0.0

    @abstractmethod
    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        """Tensors of the gradients' shapes."""


@dataclass(frozen=True)
class Plain(Direction):
    """The gradient itself."""

    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        return gradients


@dataclass(frozen=True)
class Sign(Direction):
    """Only its signs (Inverting Gradients): a step no longer depends on how steep the objective is."""

    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        return [gradient.sign() for gradient in gradients]


@dataclass(frozen=True, kw_only=True)
class Blended(Direction):
    """FedLeak's gradient regularization (USENIX Security 2025, eq. 13): `(1 - weight) g(x) + weight g(x + phi)`.

    `phi = k g(x) / |g(x)|`, the norm over all unknowns together. Two evaluations per step. As written phi goes *up* the
    objective; the paper's appendix D describes a point further *down* (`LookAhead` takes that one).

    Eq. 9 penalizes the same gradient by x for labels that are searched for, so that theirs is blended from x and
    x + phi too, at the same logits: `turns_labels`. Deviations: entries are chosen anew at x + phi, where line 8 of the
    paper's Algorithm 1 keeps those of x; without `turns_labels` labels take the gradient at x alone.

    Args:
        weight: lambda', in [0, 1].
        k: Length of phi, in units of the unknowns; the paper calls it a small constant and gives no number.
        turns_labels: Blend the gradient by the labels' logits as well.
    """

    weight: float
    k: float = 1e-3
    turns_labels: bool = False

    def __post_init__(self) -> None:
        _check_weight(self.weight, self.k)

    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        own = gradients[: place.moved]
        length = _length(own)
        if not length > 0:
            return gradients
        # phi = k g / |g|, of length k over all unknowns together.
        ahead = place.gradients_at([gradient * (self.k / length) for gradient in own])
        return _blend(gradients, ahead, self.weight)


@dataclass(frozen=True, kw_only=True)
class LookAhead(Direction):
    """Blend of the direction here and the one after a full optimizer step, as in FedLeak's released code.

    Args:
        weight: Share of the direction ahead.
        signed: Signs of gradients in both places, blended; else the gradients.
    """

    needs_plain_steps: ClassVar[bool] = True
    weight: float = 0.3
    signed: bool = True

    def __post_init__(self) -> None:
        _check_weight(self.weight, 1.0)

    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        # Where a whole step of the optimizer would lead, its memory left as it was; then the direction there.
        here = self._turned(gradients)
        ahead = self._turned(place.gradients_at(place.step_along(here)))
        return _blend(here, ahead, self.weight)

    def _turned(self, gradients: Gradients) -> Gradients:
        return [gradient.sign() for gradient in gradients] if self.signed else gradients


@dataclass(frozen=True)
class Langevin(Direction):
    """Normal noise of `scale` times the learning rate on each step (GradInversion, CVPR 2021).

    Args:
        scale: The paper's alpha_n.
    """

    scale: float

    @property
    def step_noise(self) -> float:
        return self.scale

    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        return gradients


def _length(gradients: Gradients) -> float:
    """Euclidean length over all tensors together."""
    return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))


def _blend(here: Gradients, ahead: Gradients, weight: float) -> Gradients:
    return [torch.lerp(a, b, weight) for a, b in zip(here, ahead, strict=True)]


def _check_weight(weight: float, k: float) -> None:
    if not 0 <= weight <= 1 or not k > 0:
        raise SeepageError(
            f"a blended direction needs a weight from 0 to 1 and a length above 0, got weight={weight}, k={k}; "
            "correct the recipe"
        )
