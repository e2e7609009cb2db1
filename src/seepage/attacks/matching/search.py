"""One restart of a search: its unknowns, its optimizer, the best point seen; and how it travels to disk."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.matching.optimizers import OptimizerSettings, Schedule, make_schedule
from seepage.attacks.matching.parameters import SearchSpace
from seepage.core.checkpoint import history_in, pack, unpack
from seepage.types import Tensors


@dataclass
class Best:
    """The point of lowest objective so far. Selected by the objective, never by a score."""

    objective: float
    inputs: Tensor
    labels: Tensor


class Restart:
    """One restart.

    Args:
        space: First unknowns, and how inputs are decoded from them.
        logits: `[n, classes]` first label logits, or None when labels are fixed.
        optimizer: Settings.
        schedule: Learning-rate schedule.
        steps: Steps the schedule spans.
    """

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
        self.best: Best | None = None
        self.history: list[tuple[int, float]] = []
        self.evaluations = 0
        self.ended: str | None = None

    def update_best(self, objective: float, inputs: Tensor, labels: Tensor) -> None:
        """Keep a point if it is the best so far."""
        if self.best is None or objective < self.best.objective:
            self.best = Best(objective, inputs.detach().clone(), labels.detach().clone())

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

    def is_finite(self) -> bool:
        return all(bool(unknown.isfinite().all()) for unknown in self.unknowns)

    def step_along(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Moves of the unknowns in one full step given `gradients`, taken by a copy of the optimizer."""
        copies = [free.detach().clone().requires_grad_() for free in self.free]
        twin = self.settings.make(copies)
        twin.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        for point, gradient in zip(copies, gradients, strict=False):
            point.grad = gradient.clone()
        twin.step()
        return [(new - old).detach() for new, old in zip(copies, self.unknowns, strict=False)]

    def save(self) -> tuple[Tensors, dict[str, Any]]:
        """Everything needed to go on with the same bits; copies, so that going on leaves them alone."""
        tensors: Tensors = {f"free/{i}": free.detach().clone() for i, free in enumerate(self.free)}
        facts: dict[str, Any] = {
            "history": list(self.history),
            "evaluations": self.evaluations,
            "ended": self.ended,
            "optimizer": pack(self.optimizer.state_dict(), "optimizer", tensors),
            "schedule": {"last_epoch": self.schedule.last_epoch, "last_lr": self.schedule.get_last_lr()},
        }
        if self.best is not None:
            tensors |= {"best/inputs": self.best.inputs, "best/labels": self.best.labels}
            facts["best"] = self.best.objective
        return tensors, facts

    def load(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        with torch.no_grad():
            for i, free in enumerate(self.free):
                free.copy_(tensors[f"free/{i}"])
        self.optimizer.load_state_dict(unpack(facts["optimizer"], tensors))
        self.schedule.last_epoch = facts["schedule"]["last_epoch"]
        self.schedule._last_lr = facts["schedule"]["last_lr"]
        self.history = history_in(facts)
        self.evaluations, self.ended = facts["evaluations"], facts["ended"]
        if "best" in facts:
            self.best = Best(facts["best"], tensors["best/inputs"], tensors["best/labels"])
