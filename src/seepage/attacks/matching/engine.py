"""Gradient matching: find inputs whose update is the observed one. One engine; `presets.py` holds the papers.

A method is a choice of parts: a distance between updates, priors on inputs, a rule for the labels, what the unknowns
are, which direction the optimiser follows, the optimiser and its schedule, whether candidates are projected into the
value range, and how many restarts run side by side.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Checkpoint, Inapplicable, Progress, ignore
from seepage.attacks.matching.directions import Direction, Plain
from seepage.attacks.matching.distances import Distance
from seepage.attacks.matching.labels import Auto, LabelInference
from seepage.attacks.matching.optimizers import OptimizerSettings, Schedule
from seepage.attacks.matching.parameters import Parameterization, Pixels
from seepage.attacks.matching.priors import Prior
from seepage.attacks.matching.problem import Problem
from seepage.attacks.matching.search import Search
from seepage.errors import SeepageError
from seepage.functional import generator, norm
from seepage.types import Knowledge, Reconstruction, Round, Status, Tensors, Transcript

RECORDS = 100
"""History entries, progress reports and checkpoints per run: every `steps / RECORDS` steps."""


@dataclass(frozen=True, kw_only=True)
class GradientMatching(Attack):
    """Optimise dummy inputs until their update matches the observed one.

    Args:
        distance: Between dummy and observed gradient.
        optimizer: Optimiser settings.
        steps: Optimiser steps per restart.
        priors: Penalties on the candidates.
        labels: Rule that names the labels, or `Joint()` to optimise them.
        parameters: What the unknowns are and where they start.
        direction: What a first-order optimiser is given in place of the gradient with respect to the inputs.
        schedule: Learning rate over the steps.
        project: Put candidates back into the value range after each step.
        restarts: Searches from different starts, in lock-step; the lowest objective wins.
        microbatch: Examples per chunk (exact for separable clients, memory of one chunk); None: all at once.
        tolerance: A restart ends, and the attack with it, once the distance is below this share of its value at a
            zero gradient.
    """

    distance: Distance
    optimizer: OptimizerSettings
    steps: int
    priors: tuple[Prior, ...] = ()
    labels: LabelInference = Auto()  # noqa: RUF009 - frozen and without state
    parameters: Parameterization = Pixels()  # noqa: RUF009
    direction: Direction = Plain()  # noqa: RUF009
    schedule: Schedule = "constant"
    project: bool = False
    restarts: int = 1
    microbatch: int | None = None
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        counts = {"steps": self.steps, "restarts": self.restarts, "microbatch": self.microbatch}
        wrong = {name: count for name, count in counts.items() if count is not None and count < 1}
        if wrong:
            got = ", ".join(f"{name}={count}" for name, count in wrong.items())
            raise SeepageError(f"gradient matching needs whole numbers from 1 up, got {got}; correct the recipe")

    def check(self, transcript: Transcript) -> None:
        knowledge, observed = transcript.knowledge, transcript[0]
        for prior in self.priors:
            prior.check(knowledge)
        if observed.batch_size is None:
            raise Inapplicable("the batch size is unknown", "name it with --batch-size")
        if not norm(observed.update.tensors) > 0:
            raise Inapplicable(
                "the update is zero everywhere, so it holds nothing to match",
                "check that the client trained, or look at its loss",
            )
        labels = self.labels(observed, knowledge)
        if labels is not None and len(labels) != observed.batch_size:
            raise Inapplicable(
                f"the transcript tells {len(labels)} labels for {observed.batch_size} examples",
                "record it again with the right labels",
            )

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float:
        observed = transcript[0]
        problem = Problem.of(observed, transcript.knowledge, self.distance, self.microbatch)
        penalty = sum(prior(inputs[None]).item() for prior in self.priors)
        return problem.distance_at(inputs, labels) + penalty

    def __call__(self, transcript: Transcript, *, seed: int, progress: Progress = ignore) -> Reconstruction:
        self.check(transcript)
        knowledge, observed = transcript.knowledge, transcript[0]
        problem = Problem.of(observed, knowledge, self.distance, self.microbatch)
        run = _Run(self, problem, knowledge, observed, self.labels(observed, knowledge), seed)
        step = _resume(run.searches, progress.load())
        status: Status | None = None
        every = max(1, self.steps // RECORDS)
        try:
            while step < self.steps and not run.ended:
                for search in run.searches:
                    run.advance(search, step)
                step += 1
                if step % every == 0 or step == self.steps or run.ended:
                    progress.report(step, self.steps, run.lowest())
                    progress.save(_checkpoint(run.searches, step))
        except KeyboardInterrupt:
            status = "interrupted"
        return run.reconstruction(step, status)


class _Run:
    """One call of the engine: the parts of the attack at work on one update."""

    def __init__(
        self,
        attack: GradientMatching,
        problem: Problem,
        knowledge: Knowledge,
        observed: Round,
        labels: Tensor | None,
        seed: int,
    ) -> None:
        self.attack, self.problem, self.knowledge, self.labels = attack, problem, knowledge, labels
        self.like = next(iter(observed.params.values()))
        self.every = max(1, attack.steps // RECORDS)
        zero = {name: torch.zeros_like(tensor) for name, tensor in problem.target.items()}
        self.scale = float(attack.distance(zero, problem.target))
        assert observed.batch_size is not None  # `check` refused it
        self.searches = [self._start(observed.batch_size, seed, r) for r in range(attack.restarts)]

    def _start(self, n: int, seed: int, restart: int) -> Search:
        draw = generator(seed, "start", restart)
        unknowns = self.attack.parameters.start(n, self.knowledge, draw).to(self.like)
        logits = None
        if self.labels is None:
            logits = torch.randn((n, self.knowledge.num_classes), generator=draw).to(self.like)
        return Search(unknowns, logits, self.attack.optimizer, self.attack.schedule, self.attack.steps)

    @property
    def ended(self) -> bool:
        """One restart that explains the update ends the search; else all must have ended."""
        ends = [search.ended for search in self.searches]
        return "explained" in ends or None not in ends

    def lowest(self) -> float:
        return min((s.best.objective for s in self.searches if s.best is not None), default=math.nan)

    def advance(self, search: Search, step: int) -> None:
        """One optimiser step of one restart."""
        if search.ended is not None:
            return
        first: list[float] = []

        def closure() -> float:
            value, distance = self._differentiate(search)
            first.append(value)
            if math.isfinite(value) and distance <= self.attack.tolerance * self.scale:
                raise _Explained
            return value

        try:
            # PyTorch types the closure's result as a float; L-BFGS accepts one.
            search.optimizer.step(closure)
        except _Explained:
            search.ended = "explained"
        self._project(search)
        search.schedule.step()
        value = first[0]
        if step % self.every == 0 and math.isfinite(value):
            search.history.append((step, value))
        if search.ended is None and not (math.isfinite(value) and search.unknowns.isfinite().all()):
            search.ended = "diverged"

    def _differentiate(self, search: Search) -> tuple[float, float]:
        """Objective and distance at the current point; leaves the gradients in the unknowns' `.grad`."""
        search.evaluations += 1
        inputs = self.attack.parameters.render(search.unknowns)
        labels = self.labels if search.logits is None else search.logits.softmax(-1)
        assert labels is not None
        evaluation = self.problem.evaluate(inputs, labels)
        value, slope = evaluation.value, evaluation.by_inputs
        if self.attack.priors:
            leaf = inputs.detach().requires_grad_()
            penalty = torch.stack([prior(leaf[None]).sum() for prior in self.attack.priors]).sum()
            slope = slope + torch.autograd.grad(penalty, leaf)[0]
            value += penalty.item()
        by_unknowns = torch.autograd.grad(inputs, search.unknowns, slope)[0]
        search.unknowns.grad = self.attack.direction(by_unknowns)
        if search.logits is not None:
            assert evaluation.by_labels is not None
            search.logits.grad = torch.autograd.grad(labels, search.logits, evaluation.by_labels)[0]
        if math.isfinite(value):
            search.offer(value, inputs, labels)
        return value, evaluation.value

    def _project(self, search: Search) -> None:
        if self.attack.project:
            with torch.no_grad():
                search.unknowns.copy_(self.attack.parameters.project(search.unknowns, self.knowledge))

    def reconstruction(self, step: int, status: Status | None) -> Reconstruction:
        found = [search for search in self.searches if search.best is not None]
        if not found:
            return self._nothing(step, status or "diverged")
        search = min(found, key=lambda s: s.best.objective if s.best else math.inf)
        best = search.best
        assert best is not None
        labels = best.labels if search.logits is None else best.labels.argmax(-1)
        return Reconstruction(
            inputs=best.inputs,
            labels=labels,
            objective=torch.full((len(best.inputs),), best.objective, device=best.inputs.device),
            status=status or self._status(search),
            history=tuple(search.history),
            cost=self._cost(step),
        )

    def _nothing(self, step: int, status: Status) -> Reconstruction:
        """Every restart's first objective was already not finite (or the run was stopped before it)."""
        middle = sum(self.knowledge.value_range) / 2
        inputs = torch.full_like(self.searches[0].unknowns, middle).detach()
        return Reconstruction(inputs=inputs, status=status, cost=self._cost(step))

    def _cost(self, step: int) -> dict[str, float]:
        return {"steps": step, "evaluations": sum(search.evaluations for search in self.searches)}

    def _status(self, search: Search) -> Status:
        if search.ended == "explained":
            return "ok"
        if search.ended == "diverged":
            return "diverged"
        return "ok" if has_settled(search.history) else "exhausted"


class _Explained(Exception):
    """The observed update is explained to rounding; ends an optimiser's inner loop early."""


def has_settled(history: list[tuple[int, float]], share: float = 0.1, slope: float = 0.01) -> bool:
    """Whether the objective fell by less than `slope` of itself over the last `share` of the recorded steps.

    >>> has_settled([(step, 1.0) for step in range(20)]), has_settled([(s, 20.0 - s) for s in range(20)])
    (True, False)
    """
    if len(history) < 10:
        return False
    tail = [value for _, value in history[-max(2, round(share * len(history))) :]]
    return tail[0] - min(tail) <= slope * abs(tail[0])


def _checkpoint(searches: list[Search], step: int) -> Checkpoint:
    tensors: Tensors = {}
    facts = []
    for r, search in enumerate(searches):
        own, fact = search.save()
        tensors |= {f"{r}/{name}": tensor for name, tensor in own.items()}
        facts.append(fact)
    return Checkpoint(tensors, {"step": step, "searches": facts})


def _resume(searches: list[Search], checkpoint: Checkpoint | None) -> int:
    if checkpoint is None:
        return 0
    for r, (search, facts) in enumerate(zip(searches, checkpoint.facts["searches"], strict=True)):
        prefix = f"{r}/"
        own = {name.removeprefix(prefix): t for name, t in checkpoint.tensors.items() if name.startswith(prefix)}
        search.load(own, facts)
    return int(checkpoint.facts["step"])
