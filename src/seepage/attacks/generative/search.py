"""Search a generator's inputs without derivatives, by covariance matrix adaptation (CMA-ES)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from seepage.attacks.base import Attack, Checkpoint, Progress, refuse, run_resumable
from seepage.attacks.generative.latent import Latent
from seepage.attacks.search.distances import Distance
from seepage.attacks.search.engine import GradientMatching, has_settled
from seepage.attacks.search.labels import Auto, LabelInference
from seepage.attacks.search.optimizers import Adam
from seepage.attacks.search.problem import Problem
from seepage.base.checkpoint import Resumable, record_interval
from seepage.base.nn import derived_seed, generator
from seepage.errors import SeepageError
from seepage.federation.types import Batch, ClientView, Defense, Reconstruction, Status, Transcript

LARGEST_FULL_COVARIANCE = 256
"""Up to this many unknowns the search adapts a whole covariance matrix, above it only its diagonal."""
Point = np.ndarray[Any, Any]
DISTANCE_IF_NOT_FINITE = 1e300
"""Stands for a distance that is not finite."""


@dataclass(frozen=True, kw_only=True)
class LatentSearch(Attack):
    """Find the generator's inputs whose images have the observed gradient, by ranking guesses alone.

    Nothing is differentiated, so that distances and defenses need not have derivatives.

    Args:
        distance: Between dummy and observed gradient; only which of two guesses is nearer counts.
        parameters: The generator and the reach of its inputs.
        labels: Rule that names the labels. They cannot be optimized along.
        steps: Generations.
        population: Guesses per generation.
        sigma: Standard deviation of the first generation.
    """

    distance: Distance
    parameters: Latent = Latent()  # noqa: RUF009 - frozen and without state
    labels: LabelInference = Auto()  # noqa: RUF009
    steps: int = 500
    population: int = 50
    sigma: float = 1.0

    certifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.population < 4 or not self.sigma > 0:
            raise SeepageError(
                f"a search needs 1 generation of 4 guesses or more and a sigma above 0, got {self.steps}, "
                f"{self.population} and {self.sigma}; correct the recipe"
            )

    def examine(self, transcript: Transcript) -> Transcript:
        if find_spec("cmaes") is None:
            raise refuse("not_installed")(
                "the package cmaes, which makes the guesses, is not installed",
                "run: pip install 'seepage[generative]'; or set search = 'adam'",
            )
        # What gradient matching needs of a transcript is needed here too.
        GradientMatching(
            distance=self.distance, optimizer=Adam(lr=1.0), steps=1, labels=self.labels, parameters=self.parameters
        ).check(transcript)
        if self.labels(transcript[0], transcript.knowledge) is None:
            raise refuse("no_derivatives")(
                "labels cannot be optimized without derivatives", "set search = 'adam', or another labels rule"
            )
        return transcript

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float:
        return _Target.of(self.distance, transcript).distance(inputs, labels)

    def run(self, transcript: Transcript, *, seed: int, progress: Progress) -> Reconstruction:
        target, observed = _Target.of(self.distance, transcript), transcript[0]
        labels = self.labels(observed, transcript.knowledge)
        like = next(iter(observed.params.values()))
        assert observed.batch_size is not None  # `check` refused it
        assert labels is not None
        space = self.parameters.start(observed.batch_size, transcript.knowledge, like, generator(seed, "start"))

        def images(point: Point) -> Tensor:
            with torch.no_grad():
                return space.decode([torch.from_numpy(point).to(like).view_as(space.unknowns[0])])

        def distance(point: Point) -> float:
            value = target.distance(images(point), labels)
            return value if math.isfinite(value) else DISTANCE_IF_NOT_FINITE

        search = _EvolutionSearch(self, space.unknowns[0].numel(), seed)
        status = search.run(distance, progress)
        return Reconstruction(
            images(search.best),
            labels,
            objective=torch.full((len(labels),), search.lowest, device=like.device),
            status=status,
            history=tuple(search.history),
            cost={"evaluations": self.population * search.step},
            notes=(f"CMA-ES over {search.best.size:,} latents, {'whole' if search.full else 'diagonal'} covariance",),
        )


@dataclass(frozen=True)
class _Target:
    """The observed update, and what becomes of a guess on the way to it.

    Attributes:
        problem: The client's rule and the distance.
        defense: What the client does next, where the attacker knows it and it leaves nothing to chance.
    """

    problem: Problem
    defense: Defense | None

    @classmethod
    def of(cls, distance: Distance, transcript: Transcript) -> "_Target":
        """A known deterministic defense is run on each guess; others are left to the distance (`DefenseAware`)."""
        observed, knowledge = transcript[0], transcript.knowledge
        defense = knowledge.defense
        if (
            defense is None
            or knowledge.client.per_client is not knowledge.client
            or not _repeatable(defense, transcript)
        ):
            return cls(Problem.of(observed, knowledge, distance.adapt_to(knowledge, observed), None), None)
        plain = replace(knowledge, defense=None)
        return cls(Problem.of(observed, plain, distance.adapt_to(plain, observed), None), defense)

    def distance(self, inputs: Tensor, labels: Tensor) -> float:
        """The distance of a guess, in float64 of gradients in the model's precision."""
        if self.defense is None:
            return self.problem.distance_at(inputs, labels)
        problem, batch = self.problem, Batch(inputs, labels)
        update = problem.client(problem.model, problem.params, batch, buffers=problem.buffers)
        view = ClientView(problem.model, problem.params, batch, problem.client, problem.buffers)
        sent = self.defense(update, view, generator=generator(0, "no chance"))
        dummy = problem.client.as_gradient(sent, len(inputs))
        return float(problem.distance(*({k: v.double() for k, v in part.items()} for part in (dummy, problem.target))))


def _repeatable(defense: Defense, transcript: Transcript) -> bool:
    """Whether a defense does the same to the same update whatever its generator draws, and an attacker can run it."""
    if any(stage.secrets for stage in defense.stages()):
        return False
    observed, knowledge = transcript[0], transcript.knowledge
    if knowledge.target != "class":
        return False  # there is no label to try it with
    like = next(iter(observed.params.values()))
    count = observed.batch_size or 1
    labels = torch.arange(count, device=like.device) % knowledge.num_classes
    batch = Batch(torch.rand((count, *knowledge.input_shape), generator=generator(0, "probe")).to(like), labels)
    view = ClientView(knowledge.model, observed.params, batch, knowledge.client, observed.buffers)
    update = knowledge.client(knowledge.model, observed.params, batch, buffers=observed.buffers)
    one, other = (defense(update, view, generator=generator(seed, "probe")).tensors for seed in (1, 2))
    return all(torch.equal(one[name], other[name]) for name in one)


class _EvolutionSearch(Resumable):
    """A running search. It is repeated from the values seen so far, which are all that a checkpoint holds."""

    def __init__(self, attack: LatentSearch, size: int, seed: int) -> None:
        from cmaes import CMA, SepCMA

        self.attack, self.full = attack, size <= LARGEST_FULL_COVARIANCE
        kind = CMA if self.full else SepCMA
        own = derived_seed(seed, "cmaes") % 2**32
        self.strategy = kind(np.zeros(size), attack.sigma, seed=own, population_size=attack.population)
        self.values: list[list[float]] = []
        self.best, self.lowest = np.zeros(size), math.inf
        self.history: list[tuple[int, float]] = []
        self.every = record_interval(attack.steps)

    @property
    def step(self) -> int:
        return len(self.values)

    def run(self, distance: Callable[[Point], float], progress: Progress) -> Status:
        """Search to the end, from the last checkpoint if there is one."""

        def advance(step: int) -> float:
            points = self._guesses()
            self._tell(points, [distance(point) for point in points])
            return self.lowest

        if run_resumable(self, self.attack.steps, advance, progress, ended=self.strategy.should_stop)[1]:
            return "interrupted"
        return "ok" if self.strategy.should_stop() or has_settled(self.history) else "exhausted"

    def checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint({"values": torch.tensor(self.values, dtype=torch.float64)}, {"step": step})

    def resume(self, checkpoint: Checkpoint | None) -> int:
        for values in [] if checkpoint is None else checkpoint.tensors["values"].tolist():
            self._tell(self._guesses(), values)
        return self.step

    def _guesses(self) -> list[Point]:
        return [self.strategy.ask() for _ in range(self.attack.population)]

    def _tell(self, points: list[Point], values: list[float]) -> None:
        self.strategy.tell(list(zip(points, values, strict=True)))
        nearest = int(np.argmin(values))
        if values[nearest] < self.lowest:
            self.best, self.lowest = points[nearest], values[nearest]
        if self.step % self.every == 0:
            self.history.append((self.step, values[nearest]))
        self.values.append(values)
