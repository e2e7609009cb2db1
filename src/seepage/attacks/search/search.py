"""One restart of a search: its unknowns, its optimizer, the best point seen."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.attacks.search.optimizers import OptimizerSettings, Schedule, make_schedule
from seepage.attacks.search.parameters import SearchSpace
from seepage.base.checkpoint import Resumable


class Restart(Resumable):
    """One restart.

    Attributes:
        lowest: The lowest objective so far; never a score.
        best: Inputs and labels of that point.
        ended: Why it is over; None: it goes on.
        still: Steps in which the lowest objective hardly fell below `mark`.

    Args:
        space: First unknowns, and how inputs are decoded from them.
        logits: `[n, classes]` first label logits, or None when labels are fixed.
        optimizer: Settings.
        schedule: Learning-rate schedule.
        steps: Steps the schedule spans.
    """

    kept = ("free", "optimizer", "schedule", "lowest", "best", "history", "evaluations", "ended", "still", "mark")

    def __init__(
        self,
        space: SearchSpace,
        logits: Tensor | None,
        optimizer: OptimizerSettings,
        schedule: Schedule,
        steps: int,
    ) -> None:
        self.space = space
        self.unknowns = [unknown.requires_grad_() for unknown in space.unknowns]
        self.logits = None if logits is None else logits.requires_grad_()
        self.free = self.unknowns + ([self.logits] if self.logits is not None else [])
        self.settings = optimizer
        self.optimizer = optimizer.make(self.free)
        self.schedule = make_schedule(self.optimizer, schedule, steps)
        self.lowest, self.best = math.inf, dict[str, Tensor]()
        self.history: list[tuple[int, float]] = []
        self.evaluations = 0
        self.ended: str | None = None
        self.still, self.mark = 0, math.inf

    def update_best(self, objective: float, inputs: Tensor, labels: Tensor) -> None:
        """Keep a point if it is the best so far."""
        if objective < self.lowest:
            self.lowest = objective
            self.best = {"inputs": inputs.detach().clone(), "labels": labels.detach().clone()}

    def decode(self, moves: Sequence[Tensor] | None = None) -> tuple[list[Tensor], Tensor]:
        """Leaf copies of the unknowns, moved, and the inputs decoded from them."""
        points = [unknown.detach() for unknown in self.unknowns]
        if moves is not None:
            points = [point + move for point, move in zip(points, moves, strict=True)]
        leaves = [point.requires_grad_() for point in points]
        return leaves, self.space.decode(leaves)

    def move(self, moves: Sequence[Tensor]) -> None:
        """Add to the unknowns."""
        with torch.no_grad():
            for unknown, change in zip(self.unknowns, moves, strict=True):
                unknown += change

    def project(self) -> None:
        """Move the unknowns to the nearest ones whose inputs lie in the value range."""
        with torch.no_grad():
            for unknown, nearest in zip(self.unknowns, self.space.project(self.unknowns), strict=True):
                unknown.copy_(nearest)

    def step_along(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Moves of the unknowns in one full step given `gradients`, taken by a copy of the optimizer."""
        copies = [free.detach().clone().requires_grad_() for free in self.free]
        twin = self.settings.make(copies)
        twin.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        for point, gradient in zip(copies, gradients, strict=False):
            point.grad = gradient.clone()
        twin.step()
        return [(new - old).detach() for new, old in zip(copies, self.unknowns, strict=False)]
