"""Descent on y = x^2 with and without FedLeak's gradient regularization (Fan et al. 2025, appendix D, Figure 10)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.search.directions import Blended, Direction, Gradients, LookAhead, Plain
from seepage.base.progress import ProgressCallback
from seepage.papers.run import Value

START = 0.5
"""First x of the example."""
STEPS = 6
"""Number of steps of the example."""
WEIGHT = 0.3
"""lambda' of the example."""


@dataclass(frozen=True)
class Parabola:
    """A place on y = x^2, as a direction may ask about it.

    Attributes:
        x: Where it is.
        lr: Step size.
        share: Share of the steps done.
    """

    x: Tensor
    lr: float
    share: float = 0.0

    @property
    def moved(self) -> int:
        return 1

    def gradients_at(self, moves: Sequence[Tensor]) -> Gradients:
        return [2 * (self.x + moves[0])]

    def step_along(self, gradients: Sequence[Tensor]) -> Gradients:
        return [-self.lr * gradients[0]]

    def noise(self, like: Sequence[Tensor]) -> Gradients:
        return [torch.zeros_like(tensor) for tensor in like]


def descend(direction: Direction, lr: float, steps: int = STEPS) -> list[float]:
    """Where gradient descent goes from 0.5, the start first.

    >>> [round(x, 3) for x in descend(Plain(), 1.0, 3)]
    [0.5, -0.5, 0.5]
    >>> [round(x, 3) for x in descend(LookAhead(weight=0.3, signed=False), 1.0, 3)]
    [0.5, 0.1, 0.02]
    """
    x = torch.tensor([START], dtype=torch.float64)
    path = [x.item()]
    for _ in range(steps - 1):
        place = Parabola(x, lr)
        x = x - lr * direction([2 * x], place)[0]
        path.append(x.item())
    return path


def figure_10(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """Where x is after 0 to 5 steps of two sizes: plain, blended with the point ahead, and as equation 13 has it."""
    directions: dict[str, Direction] = {
        "plain": Plain(),
        "regularized": LookAhead(weight=WEIGHT, signed=False),
        "as equation 13": Blended(weight=WEIGHT, k=START),
    }
    return [
        Value(row=f"step {lr:g}, {name}", column=column, ours=x)
        for lr in (1.0, 0.9)
        for name, direction in directions.items()
        for column, x in enumerate(descend(direction, lr))
    ]
