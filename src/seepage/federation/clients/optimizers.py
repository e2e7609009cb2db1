"""PyTorch's optimizers on named tensors and differentiable, which PyTorch's own are not.

Each starts without a memory, as in every round, and has PyTorch's constants. The server's Adam of `transcript.vertical`
is another: its state is a snapshot, and its epsilon Keras's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from seepage.federation.measured import Step
from seepage.federation.types import Tensors

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "signsgd"]
NAMES: tuple[OptimizerName, ...] = get_args(OptimizerName)
WITH_MOMENTUM = ("sgd", "rmsprop")

FLOOR = 1e-30
"""Below the square of any float32 gradient; without it the root of an entry that is zero has no derivative."""


@dataclass(kw_only=True)
class Optimizer(ABC):
    """What becomes of weights and gradients, step by step.

    Args:
        lr: Rate.
        momentum: Of SGD and RMSprop.
        nesterov: Of SGD: the step looks ahead.
        weight_decay: Times the weights, added to the gradient. Of AdamW: times the rate, taken off the weights.
        eps: Epsilon of those that have one; None: PyTorch's.
        steps: Steps made.
        kept: What is remembered of earlier steps, by kind and name; zeros at first.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    eps: float | None = None
    steps: int = 0
    kept: dict[str, Tensors] = field(default_factory=dict)

    def step(self, params: Tensors, gradients: Tensors) -> Tensors:
        """The weights after one more step."""
        self.steps += 1
        return {name: self._moved(name, tensor, gradients[name]) for name, tensor in params.items()}

    def _moved(self, name: str, weight: Tensor, gradient: Tensor) -> Tensor:
        # g <- g + c w;  w <- w - lr u(g)
        return weight - self.lr * self.direction(name, gradient + self.weight_decay * weight)

    @abstractmethod
    def direction(self, name: str, gradient: Tensor) -> Tensor:
        """u(g): what is taken off the weights, in units of the rate."""

    @property
    def first(self) -> Step | None:
        """Its first step, where that can be inverted."""
        return None

    @property
    def decays_beside(self) -> float:
        """The share of each weight that a step takes off it beside the gradient."""
        return 0.0

    def remembered(self, kind: str, name: str, like: Tensor) -> Tensor:
        return self.kept.setdefault(kind, {}).get(name, torch.zeros_like(like))

    def average(self, kind: str, name: str, keep: float, new: Tensor, *, share: float | None = None) -> Tensor:
        """V <- keep v + share x, where share is 1 - keep unless it is given."""
        mean = keep * self.remembered(kind, name, new) + (1 - keep if share is None else share) * new
        self.kept[kind][name] = mean
        return mean


class SGD(Optimizer):
    """v <- m v + g; u = v, or g + m v with Nesterov's momentum."""

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        if not self.momentum:
            return gradient
        velocity = self.average("velocity", name, self.momentum, gradient, share=1.0)
        return gradient + self.momentum * velocity if self.nesterov else velocity

    @property
    def first(self) -> Step:
        return replace(Step.sgd(self.lr, self.momentum, nesterov=self.nesterov), coupled=self.weight_decay)


class LocalAdam(Optimizer):
    """Kingma et al., ICLR 2015, Algorithm 1: u = m' / (sqrt(v') + 1e-8), with the means of g and g g unbiased."""

    BETAS, EPS = (0.9, 0.999), 1e-8

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        a, b = self.BETAS
        mean = self.average("mean", name, a, gradient) / (1 - a**self.steps)
        square = self.average("square", name, b, gradient * gradient) / (1 - b**self.steps)
        return mean / ((square + FLOOR).sqrt() + (self.EPS if self.eps is None else self.eps))

    @property
    def first(self) -> Step:
        return Step.adam(self.lr, self.EPS if self.eps is None else self.eps, self.BETAS, coupled=self.weight_decay)


class AdamW(LocalAdam):
    """Loshchilov and Hutter, ICLR 2019, Algorithm 2: the decay is taken off the weights, beside Adam's step."""

    def _moved(self, name: str, weight: Tensor, gradient: Tensor) -> Tensor:
        return (1 - self.decays_beside) * weight - self.lr * self.direction(name, gradient)

    @property
    def first(self) -> Step:
        return replace(super().first, coupled=0.0)

    @property
    def decays_beside(self) -> float:
        return self.lr * self.weight_decay


class RMSprop(Optimizer):
    """u = g / (sqrt(v) + 1e-8), v the mean of g g with 0.99 of the one before; with momentum v' <- m v' + u."""

    KEEP, EPS = 0.99, 1e-8

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        square = self.average("square", name, self.KEEP, gradient * gradient)
        unit = gradient / ((square + FLOOR).sqrt() + (self.EPS if self.eps is None else self.eps))
        return self.average("velocity", name, self.momentum, unit, share=1.0) if self.momentum else unit

    @property
    def first(self) -> Step:
        eps = self.EPS if self.eps is None else self.eps
        return replace(Step.rmsprop(self.lr, eps, self.KEEP), coupled=self.weight_decay)


class Adagrad(Optimizer):
    """Duchi et al., JMLR 2011: u = g / (sqrt(s) + 1e-10), s the sum of all g g."""

    EPS = 1e-10

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        total = self.average("sum", name, 1.0, gradient * gradient, share=1.0)
        return gradient / ((total + FLOOR).sqrt() + (self.EPS if self.eps is None else self.eps))

    @property
    def first(self) -> Step:
        return replace(Step.adagrad(self.lr, self.EPS if self.eps is None else self.eps), coupled=self.weight_decay)


class Adadelta(Optimizer):
    """Zeiler, 2012, Algorithm 1: u = sqrt(s + eps) / sqrt(v + eps) g, s and v the means of u u and g g."""

    KEEP, EPS = 0.9, 1e-6

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        square = self.average("square", name, self.KEEP, gradient * gradient)
        reach = self.remembered("moved", name, gradient)
        eps = self.EPS if self.eps is None else self.eps
        unit = (reach + eps).sqrt() / (square + eps).sqrt() * gradient
        self.average("moved", name, self.KEEP, unit * unit)
        return unit

    @property
    def first(self) -> Step:
        eps = self.EPS if self.eps is None else self.eps
        return replace(Step.adadelta(self.lr, eps, self.KEEP), coupled=self.weight_decay)


class SignSGD(Optimizer):
    """u = sign(g): of Adam's first step all but its epsilon. Its slope is zero everywhere."""

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        return gradient.sign()


OPTIMIZERS: dict[OptimizerName, type[Optimizer]] = {
    "sgd": SGD, "adam": LocalAdam, "adamw": AdamW, "rmsprop": RMSprop, "adagrad": Adagrad,
    "adadelta": Adadelta, "signsgd": SignSGD,
}  # fmt: skip


def clipped(gradients: Tensors, norm: float | None, value: float | None) -> Tensors:
    """Gradients as `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_` leave them.

    Args:
        gradients: By name.
        norm: Largest Euclidean norm of all of them together; None: any.
        value: Largest size of an entry; None: any.

    >>> clipped({"w": torch.tensor([3.0, 4.0])}, norm=1.0, value=None)["w"]
    tensor([0.6000, 0.8000])
    """
    if norm is not None:
        length = (torch.stack([g.square().sum() for g in gradients.values()]).sum() + FLOOR).sqrt()
        share = (norm / (length + 1e-6)).clamp(max=1.0)
        gradients = {name: share * g for name, g in gradients.items()}
    if value is not None:
        gradients = {name: g.clamp(-value, value) for name, g in gradients.items()}
    return gradients
