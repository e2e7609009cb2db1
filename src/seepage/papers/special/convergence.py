"""Distance of a search's gradient to the observed one over its steps (Fan et al. 2025, Figures 1 and 6)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.base import Checkpoint, Silent
from seepage.attacks.search.distances import L1, L2, Cosine, Distance
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.problem import Problem
from seepage.base.nn import dot, generator, norm
from seepage.base.progress import Doing, ProgressCallback
from seepage.federation.types import Batch, Reconstruction, Tensors, Transcript
from seepage.measure.metrics import psnr, score
from seepage.papers.run import Value
from seepage.papers.special.victims import first_case, victims_of

FIGURE_1_SHARES = (0.01, 0.25, 0.5, 0.75, 1.0)
"""Points of a search shown in Figure 1, as shares of its steps."""
FIGURE_6_SHARES = (0.01, 0.1, 0.2, 0.4, 1.0)
"""Where Figure 6 looks: after 100, 1,000, 2,000, 4,000 and 10,000 steps of the paper's size."""
NOISES = (1, 2, 4, 8, 16)
"""Strengths of the signs of noise that Figure 1b adds, divided by 255."""
BLEND, AHEAD = 0.7, 1e-3
"""FedLeak's lambda', and the length of phi."""


@dataclass
class BestGuesses(Silent):
    """Progress of a gradient-matching search that keeps its best guesses.

    Attributes:
        best: `(step, inputs, labels)` of the lowest objective so far, at each checkpoint of the first restart.
    """

    best: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    def save(self, checkpoint: Checkpoint) -> None:
        step, tensors = int(checkpoint.facts["step"]), checkpoint.tensors
        if "searches/0/best/inputs" in tensors:
            self.best.append((step, tensors["searches/0/best/inputs"], tensors["searches/0/best/labels"]))

    def at(self, share: float, steps: int) -> int:
        """Place in `best` of the last checkpoint up to a share of the steps; the first where there is none."""
        return max((i for i, (step, _, _) in enumerate(self.best) if step <= share * steps), default=0)


def problem_of(transcript: Transcript, distance: Distance) -> Problem:
    """The matching problem of the first round."""
    return Problem.of(transcript[0], transcript.knowledge, distance, None)


def similarity(problem: Problem, inputs: Tensor, labels: Tensor) -> float:
    """Cosine of the gradient at a guess with the observed one."""
    update = problem.client(problem.model, problem.params, Batch(inputs, labels), buffers=problem.buffers)
    found: Tensors = {name: t.double() for name, t in problem.client.as_gradient(update, len(inputs)).items()}
    target = {name: t.double() for name, t in problem.target.items()}
    return float(dot(found, target) / (norm(found) * norm(target)).clamp(min=1e-300))


def safe_step(slope: Tensor, inputs: Tensor, truth: Tensor) -> float | None:
    """2 mu / L of equation 6 at a guess: step sizes below it bring the guess nearer to the truth; None at a flat place.

    With mu = <x' - x, s> / |x' - x|^2 and L = |s|^2 / |x' - x|^2 this is 2 <x' - x, s> / |s|^2.

    >>> safe_step(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([0.0]))  # y = x^2: any step below 1
    1.0
    """
    s, way = slope.double().flatten(), (inputs - truth).double().flatten()
    square = float(s @ s)
    return 2 * float(way @ s) / square if square > 0 else None


Numbers = list[float | None]


def figure_1(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """Distances of iDLG's guesses and of noisy truths, and the safe step along two searches: means over batches.

    The recipe's first attack is iDLG, its second FedLeak. The safe step of the first is that of squared L2, the second
    one's that of FedLeak's distance with its blended gradient. Where a search ended early, its last checkpoint stands
    for what follows.
    """
    recipe = first_case(tables, seed)
    found: dict[str, list[Numbers]] = {}
    victims = victims_of(recipe)
    for number, (transcript, batch) in enumerate(victims):
        found.setdefault("noisy truth, gradient distance", []).append(_noisy(transcript, batch, seed, number))
        for name, part, slope in zip(("iDLG", "FedLeak"), recipe.attack, (_plain, _blended), strict=True):
            path = BestGuesses()
            recipe.make_attack(part)(transcript, seed=seed, progress=path)
            places = [path.at(share, part.options["steps"]) for share in FIGURE_1_SHARES]
            for row, numbers in _watched(transcript, batch, path, places, slope).items():
                found.setdefault(f"{name}, {row}", []).append(numbers)
        show(number + 1, len(victims), Doing("images"))
    return [value for row, numbers in found.items() for value in _means(row, numbers)]


def _noisy(transcript: Transcript, batch: Batch, seed: int, number: int) -> Numbers:
    """L2 distance of the gradients of the truth and of the truth plus signs of noise."""
    problem = problem_of(transcript, L2(root=True))
    sign = torch.randn(batch.inputs.shape, generator=generator(seed, "noise", number)).sign().to(batch.inputs)
    return [problem.distance_at(batch.inputs + strength / 255 * sign, batch.labels) for strength in NOISES]


def _watched(
    transcript: Transcript, batch: Batch, path: BestGuesses, places: Sequence[int], slope: Callable[..., Tensor]
) -> dict[str, Numbers]:
    """What can be said of a search at chosen checkpoints: distance and PSNR of its best guess, its safe step."""
    rows: dict[str, Numbers] = {"gradient distance": [], "PSNR": [], "safe step": []}
    problem = problem_of(transcript, L2(root=True))
    for place in places:
        _, best, labels = path.best[place]
        rows["gradient distance"].append(problem.distance_at(best, labels))
        rows["PSNR"].append(float(psnr(best.clamp(0, 1), batch.inputs).mean()))
        rows["safe step"].append(safe_step(slope(transcript, best, labels), best, batch.inputs))
    return rows


def _plain(transcript: Transcript, inputs: Tensor, labels: Tensor) -> Tensor:
    return problem_of(transcript, L2()).evaluate(inputs, labels).by_inputs


def _blended(transcript: Transcript, inputs: Tensor, labels: Tensor) -> Tensor:
    """FedLeak's direction, equation 13, of its distance over the larger half."""
    problem = problem_of(transcript, TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5))
    here = problem.evaluate(inputs, labels).by_inputs
    there = problem.evaluate(inputs + AHEAD * here / here.norm().clamp(min=1e-30), labels).by_inputs
    return torch.lerp(here, there, BLEND)


def figure_6(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """Cosine of the best guess's gradient with the observed one, and the guess's PSNR, as the search goes on."""
    recipe = first_case(tables, seed)
    part, victims = recipe.attack[0], victims_of(recipe)
    cosines: list[Numbers] = []
    scores: list[Numbers] = []
    for number, (transcript, batch) in enumerate(victims):
        path = BestGuesses()
        recipe.make_attack(part)(transcript, seed=seed, progress=path)
        looked = [path.best[path.at(share, part.options["steps"])] for share in FIGURE_6_SHARES]
        problem = problem_of(transcript, L2())
        cosines.append([similarity(problem, inputs, labels) for _, inputs, labels in looked])
        found = (score(Reconstruction(inputs.clamp(0, 1)), batch).psnr for _, inputs, labels in looked)
        scores.append([psnr or float("nan") for psnr in found])
        show(number + 1, len(victims), Doing("batches"))
    return [*_means("gradient similarity", cosines), *_means("PSNR", scores)]


def _means(row: str, numbers: Sequence[Numbers]) -> list[Value]:
    """One value per column: the mean over batches, from the least to the most."""
    values = []
    for column, entries in enumerate(zip(*numbers, strict=True)):
        known = [entry for entry in entries if entry is not None]
        mean = sum(known) / len(known) if known else None
        low, high = (min(known), max(known)) if known else (None, None)
        values.append(Value(row=row, column=column, ours=mean, low=low, high=high, facts={"batches": len(known)}))
    return values
