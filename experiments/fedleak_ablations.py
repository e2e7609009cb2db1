"""What FedLeak's Algorithm 1 leaves open, read another way than `fedleak` does: entries kept, the exact penalty.

    fedleak_read(entries="kept", blend_labels=True)    # Algorithm 1 to the letter
    fedleak_read(penalty="exact")                      # eq. 9 without the blend

`fedleak_parts.py` measures what each reading is worth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from seepage.attacks.search import GradientMatching, fedleak
from seepage.attacks.search.adaptive import Composed
from seepage.attacks.search.directions import Blended, Direction, Gradients, _length
from seepage.attacks.search.distances import Distance, PerTensor, Scaled, Sum
from seepage.attacks.search.engine import _SearchPoint
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.problem import Problem
from seepage.base.second_derivatives import twice_differentiable
from seepage.errors import SeepageError
from seepage.federation.types import Tensors


@dataclass(frozen=True)
class OfEach(Distance):
    """A distance of its own for each tensor, summed."""

    inner: dict[str, Distance]

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensor:
        each = [self.inner[name]({name: dummy[name]}, {name: target[name]}) for name in target]
        return torch.stack(each).sum()


@dataclass(frozen=True, kw_only=True)
class ChosenEntries(Distance):
    """A distance over entries that are named once: Lambda of FedLeak's eq. 7, held fixed.

    Args:
        inner: Distance over the chosen entries; it sees each tensor's as one row, and no tensor without a chosen entry.
        places: Of the chosen entries in each flattened tensor, int64.
    """

    inner: Distance
    places: dict[str, Tensor]

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensor:
        kept = {name: self.places[name] for name in target if len(self.places[name])}
        own, theirs = ({name: one[name].reshape(-1)[kept[name]] for name in kept} for one in (dummy, target))
        return self.inner(own, theirs)


def held(distance: Distance, dummy: Tensors, target: Tensors) -> Distance:
    """The distance whose entries stay those that it chooses at this dummy gradient (line 8 of Algorithm 1)."""
    if isinstance(distance, Sum):
        return Sum(held(distance.first, dummy, target), held(distance.second, dummy, target))
    if isinstance(distance, Scaled):
        return Scaled(distance.weight, held(distance.inner, dummy, target))
    if isinstance(distance, PerTensor):
        return OfEach({n: held(distance.inner, {n: dummy[n]}, {n: target[n]}) for n in target})
    if isinstance(distance, Composed):
        for model in distance.models:
            target = model.credible(target)
            dummy = model(dummy, target)
        return replace(distance, inner=held(distance.inner, dummy, target))
    if isinstance(distance, TopMagnitude):
        return ChosenEntries(inner=distance.inner, places=distance.chosen(dummy, target))
    return distance


def held_problem(problem: Problem, inputs: Tensor, labels: Tensor) -> Problem:
    """The same problem, whose distance holds to the entries that it chooses at this candidate."""
    dummy = problem._gradient(inputs.detach(), labels.detach(), create_graph=False)
    return replace(problem, distance=held(problem.distance, dummy, problem.target))


def bent(place: _SearchPoint, along: Sequence[Tensor]) -> Gradients:
    """The objective's Hessian by the inputs' unknowns, times `along`: one exact third derivative pass."""
    place.search.evaluations += 1
    unknowns, inputs = place.search.decode()
    objective, labels = place.objective, place.run.labels_of(place.search).detach()
    problem: Any = objective.problem
    with twice_differentiable(problem.model), objective._watched_layers() as calls:
        value = problem.distance(problem._gradient(inputs, labels, create_graph=True), problem.target)
        if objective.layer_priors:
            value = value + objective._seen_penalty(calls, labels)
        now = tuple(prior.at(place.share) for prior in objective.priors)
        if now:
            value = value + objective._penalty(inputs, place.others, now)
        slopes = torch.autograd.grad(value, unknowns, create_graph=True)
        # H v = d<dD/dx, v>/dx with v held fixed.
        product = torch.stack([(slope * v).sum() for slope, v in zip(slopes, along, strict=True)]).sum()
        return list(torch.autograd.grad(product, unknowns, materialize_grads=True))


@dataclass(frozen=True, kw_only=True)
class EntriesKept(Blended):
    """`Blended`, which matches at x + phi the entries that were chosen at x, for one first-order pass more."""

    def __call__(self, gradients: Gradients, place: Any) -> Gradients:
        inputs, labels = place.search.decode()[1].detach(), place.run.labels_of(place.search)
        chosen = held_problem(place.objective.problem, inputs, labels)
        return super().__call__(gradients, replace(place, objective=replace(place.objective, problem=chosen)))


@dataclass(frozen=True, kw_only=True)
class PixelsMasked(Blended):
    """`Blended`, of which only the pixels move whose gradient at x is largest: line 5 of Algorithm 1 to the letter.

    Args:
        ratio: Share of the pixels that move, over the whole batch.
    """

    ratio: float = 0.5

    def __call__(self, gradients: Gradients, place: Any) -> Gradients:
        sizes = torch.cat([gradient.abs().flatten() for gradient in gradients[: place.moved]])
        least = sizes.kthvalue(len(sizes) - max(1, round(self.ratio * len(sizes))) + 1).values
        turned = super().__call__(gradients, place)
        masked = [turn * (own.abs() >= least) for turn, own in zip(turned, gradients[: place.moved], strict=False)]
        return [*masked, *turned[place.moved :]]


@dataclass(frozen=True, kw_only=True)
class Regularized(Direction):
    """The gradient of FedLeak's eq. 9 without an approximation: `g + strength H g / |g|`, where H is the Hessian.

    That is the gradient of `D(x) + strength |dD/dx|`. `Blended` with the same `k` and a weight of `strength / k` is its
    finite difference (eq. 12). H times a vector is exact, by differentiating a third time (Pearlmutter 1994), so that
    no Hessian is ever made; the entries that are matched stay those of x. Labels take the gradient at x.

    Args:
        strength: lambda of eq. 9, from 0; the paper's lambda' is lambda / k.
    """

    strength: float

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise SeepageError(f"a penalty on the gradient needs a finite strength from 0, got {self.strength}")

    def __call__(self, gradients: Gradients, place: Any) -> Gradients:
        length = _length(gradients)
        if not length > 0:
            return gradients
        # d/dx (D + lambda |g|) = g + lambda H g / |g|.
        products = bent(place, [gradient / length for gradient in gradients])
        return [gradient + self.strength * product for gradient, product in zip(gradients, products, strict=True)]


def fedleak_read(
    *,
    penalty: Literal["blend", "exact"] = "blend",
    entries: Literal["anew", "kept", "pixels"] = "anew",
    blend_labels: bool = False,
    weight: float = 0.7,
    k: float = 1e-3,
    **options: Any,
) -> GradientMatching:
    """`fedleak` with its direction read another way.

    Args:
        penalty: Whether the penalty on the gradient (eq. 9) is approximated by the blend (eq. 13), or differentiated
            exactly with lambda = `weight` times `k`, which takes a third derivative.
        entries: Whether the entries to match are chosen anew further ahead, or kept as line 8 has it; `pixels`: all are
            matched, and half of the pixels move, those of the largest gradient, as line 5 has it.
        blend_labels: Whether the gradient by labels that are searched for is blended as well.
        weight: As for `fedleak`.
        k: As for `fedleak`.
        options: Others of `fedleak`.
    """
    options = {"l1": "mean", "variation": "mean", **options}
    plain = fedleak(weight=weight, k=k, **({"ratio": 1.0} if entries == "pixels" else {}), **options)
    if not weight > 0:
        return plain
    if entries == "pixels":
        return replace(plain, direction=PixelsMasked(weight=weight, k=k, turns_labels=blend_labels))
    if penalty == "exact":
        return replace(plain, direction=Regularized(strength=weight * k))
    kind = EntriesKept if entries == "kept" else Blended
    return replace(plain, direction=kind(weight=weight, k=k, turns_labels=blend_labels))
