"""FedProx: local steps that are held near the weights the server sent."""

import math
from dataclasses import dataclass

import numpy as np

from seepage.base.registry import clients
from seepage.errors import SeepageError
from seepage.federation.clients.fedavg import FedAvg
from seepage.federation.types import Tensors


@clients.register("fedprox")
@dataclass(frozen=True, kw_only=True, repr=False)
class FedProx(FedAvg):
    """FedAvg with a proximal term: each local step also goes back towards the weights that were sent.

    Li et al., MLSys 2020, equation 2: the client minimizes F(w) + mu / 2 |w - w_0|^2, so that a local step follows
    grad F(w) + mu (w - w_0). With `mu` 0 this is `FedAvg`. All other options are those of `FedAvg`.

    Args:
        mu: Weight of the proximal term; the paper tries 0.001 to 1.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from seepage.federation.types import Batch
        >>> model = nn.Linear(4, 3)
        >>> params = {name: p.detach() for name, p in model.named_parameters()}
        >>> batch = Batch(torch.rand(6, 4), torch.arange(6) % 3)
        >>> free, held = (FedProx(lr=0.1, steps=9, mu=mu)(model, params, batch) for mu in (0.0, 5.0))
        >>> bool(held.tensors["weight"].norm() < free.tensors["weight"].norm())
        True
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov:
            raise SeepageError("the client rule fedprox has no nesterov; leave it out of the recipe's [client]")
        if not 0 <= self.mu < math.inf:
            raise SeepageError(f"the client rule fedprox needs mu >= 0, got {self.mu}; correct the recipe's [client]")

    def step_gradient(self, gradient: Tensors, now: Tensors, start: Tensors) -> Tensors:
        return {name: g + self.mu * (now[name] - start[name].detach()) for name, g in gradient.items()}

    def reaches(self, steps: int) -> list[float]:
        # One weight, in units of -lr, after a gradient of 1 in the first step alone:
        # v <- m v + g - lr mu x, x <- x + v.
        # A step earlier or later makes the same way earlier or later, so x after k steps is the reach of the k-th last.
        moved = velocity = 0.0
        after = []
        for step in range(steps):
            velocity = self.momentum * velocity + float(step == 0) - self.lr * self.mu * moved
            moved += velocity
            after.append(moved)
        return after[::-1]

    def _reach_of_many(self, steps: int) -> float:
        # The recursion of `reaches` is linear in (v, x, s), with s the running sum of x: n - 1 further steps are the
        # (n - 1)-th power of its 3 x 3 matrix, by repeated squaring.
        pull = self.lr * self.mu
        once = np.array(
            [
                [self.momentum, -pull, 0.0],  # v
                [self.momentum, 1.0 - pull, 0.0],  # x + v
                [self.momentum, 1.0 - pull, 1.0],  # s + x + v
            ]
        )
        with np.errstate(all="ignore"):  # a step that is too long for its pull grows without end
            return float((np.linalg.matrix_power(once, steps - 1) @ np.ones(3))[2])
