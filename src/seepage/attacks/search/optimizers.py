"""Optimizers and schedules, as frozen settings of PyTorch's own."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, MultiStepLR

from seepage.errors import SeepageError

Schedule = Literal["constant", "step", "cosine", "warmup_cosine", "cosine_restarts"]
WARMUP = 50
"""Steps over which `warmup_cosine` rises to the full rate."""


class OptimizerSettings(ABC):
    """Settings from which an optimizer is made for each restart.

    Attributes:
        lr: Learning rate, or step length.
    """

    lr: float

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise SeepageError(f"a learning rate must be positive, got lr={self.lr}; correct the recipe")

    @abstractmethod
    def make(self, unknowns: list[Tensor]) -> torch.optim.Optimizer:
        """An optimizer over one restart's unknowns."""


@dataclass(frozen=True, kw_only=True)
class Adam(OptimizerSettings):
    """Adam; with `weight_decay` > 0 it is AdamW (decoupled).

    Args:
        lr: Learning rate of the attack's own optimizer, in units of its unknowns per step; not the client's.
        betas: Decay of the running means of the gradient and of its square.
        weight_decay: Share of each unknown that a step of rate 1 takes off.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    def make(self, unknowns: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(unknowns, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class LBFGS(OptimizerSettings):
    """Limited-memory BFGS; one step makes up to `inner` evaluations.

    Args:
        lr: Step length without a line search.
        inner: Iterations within one step; PyTorch's default is 20.
        history: Past pairs kept.
        line_search: Use a strong-Wolfe line search; the published attacks use none.
    """

    lr: float = 1.0
    inner: int = 20
    history: int = 100
    line_search: bool = False

    def make(self, unknowns: list[Tensor]) -> torch.optim.Optimizer:
        # The tolerances are off: with gradients far below 1 PyTorch's defaults end the search at its start.
        return torch.optim.LBFGS(
            unknowns,
            lr=self.lr,
            max_iter=self.inner,
            history_size=self.history,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe" if self.line_search else None,
        )


def make_schedule(optimizer: torch.optim.Optimizer, schedule: Schedule, steps: int) -> LRScheduler:
    """A learning-rate schedule over `steps` steps.

    `step` divides the rate by 10 at 3/8, 5/8 and 7/8 of the steps (Inverting Gradients); `cosine` anneals to 0;
    `warmup_cosine` does so after rising over 50 steps, or a tenth of them if that is less (GradInversion);
    `cosine_restarts` anneals to 0 ten times, each from the full rate (FedLeak, appendix A: every 1,000 of 10,000).
    """
    if schedule == "step":
        # Whole-number milestones as in the authors' code: N // 2.667, N // 1.6, N // 1.142.
        milestones = [int(steps // divisor) for divisor in (2.667, 1.6, 1.142)]
        return MultiStepLR(optimizer, milestones, gamma=0.1)
    if schedule == "cosine":
        return CosineAnnealingLR(optimizer, T_max=max(1, steps))
    if schedule == "warmup_cosine":
        rise = max(1, min(WARMUP, steps // 10))
        return LambdaLR(optimizer, lambda step: min((step + 1) / rise, 1.0) * _half_cosine(step / max(1, steps)))
    if schedule == "cosine_restarts":
        period = max(1, steps // 10)
        return LambdaLR(optimizer, lambda step: _half_cosine(step % period / period))
    return LambdaLR(optimizer, lambda _: 1.0)


def _half_cosine(share: float) -> float:
    return (1 + math.cos(math.pi * min(share, 1.0))) / 2
