"""Average the updates of rounds that hold the same examples, and attack the average: noise that stops one may not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, SingleRound, refuse
from seepage.attacks.search.adaptive import known_noise
from seepage.base.nn import norm
from seepage.base.registry import Spec, attacks
from seepage.errors import SeepageError, unknown
from seepage.federation.types import Reconstruction, Round, Tensors, Transcript, Update

MIN_NOISE_RATIO = 1e-9
"""Least deviation of a round's noise, over that of the first round, that rounds are weighed by."""


@dataclass(frozen=True, kw_only=True)
class Averaged(Attack):
    """Average the updates of all rounds, which hold the same examples, and attack the average as one round.

    Where a client's data fit one batch, each of T rounds sends the same gradient with noise of its own, and the mean
    has 1 / sqrt(T) of it: at frozen weights the mean is all there is to know (for Gaussian noise it is sufficient).
    Where the weights move meanwhile, the mean gradient is taken for the gradient at the mean weights, which holds as
    far as the gradient is linear over the way they went; a note says how far that was. Where the attacker knows of
    noise whose size changes from round to round, rounds are weighed by one over its variance. What the inner attack
    knows of the noise is what is left of it.

    This is no paper's attack: the CAFE paper reads many rounds too, of changing batches, and DP counts them all.

    Args:
        inner: An attack that reads one round.

    Example:
        >>> from seepage.attacks import LinearLeak
        >>> Averaged(inner=LinearLeak()).rounds
        'all'
    """

    needs: ClassVar[Needs] = Needs(text="rounds of the same examples, known to be that (design = 'whole')")
    rounds: ClassVar[Literal["one", "all"]] = "all"

    inner: Attack

    def __post_init__(self) -> None:
        if self.inner.rounds != "one":
            raise SeepageError(
                f"averaging makes one round of many, and {type(self.inner).__name__} reads many; use it by itself"
            )

    def examine(self, transcript: Transcript) -> "tuple[_OneOfMany, int, Any]":
        """The average, of how many rounds it is, and what the inner attack makes of it."""
        averaged = _average(transcript)
        return averaged, len(transcript), self.inner.prepare(averaged)

    def run(self, seen: "tuple[_OneOfMany, int, Any]", *, seed: int, progress: Progress) -> Reconstruction:
        averaged, rounds, prepared = seen
        found = self.inner.run(prepared, seed=seed, progress=progress)
        return replace(found, cost={**found.cost, "rounds": rounds}, notes=(*averaged.notes, *found.notes))

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float | None:
        return self.inner.objective_at(_average(transcript), inputs, labels)

    def inner_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> Tensors:
        return self.inner.inner_at(_average(transcript), inputs, labels)


@attacks.register(
    "averaged",
    needs="rounds of the same examples, known to be that (design = 'whole')",
    paper="folklore; the noise's own law",
    cost="that of the inner attack, linear unless another is named",
    family="averaging of rounds",
)
def averaged(*, attack: str = "linear", options: Mapping[str, Any] | None = None) -> Averaged:
    """Average rounds of the same examples, then attack the average by an attack of this registry.

    Args:
        attack: Its name.
        options: Its options.

    Raises:
        SeepageError: For an unknown name, wrong options, and attacks that read all rounds themselves.

    >>> averaged(attack="linear", options={"tolerance": 0.1}).inner
    LinearLeak(floor=0.0001, tolerance=0.1, same=0.01)
    """
    if attack not in attacks:
        raise unknown("attack to run on the average", attack, attacks)
    return Averaged(inner=attacks.build(Spec(attack, options or {})))


@dataclass(frozen=True)
class _OneOfMany(SingleRound):
    """A transcript of one round that many were averaged into.

    Attributes:
        knowledge: What the attacker knows, with what is left of the noise.
        observed: The average.
        notes: What a reader should know about it.
    """

    notes: tuple[str, ...] = field(default=())


def _average(transcript: Transcript) -> _OneOfMany:
    """One round for many.

    Raises:
        Inapplicable: Where there is one round only, or rounds are not known to hold the same examples.
    """
    knowledge, count = transcript.knowledge, len(transcript)
    if count < 2:
        raise refuse("too_few_rounds")(
            "there is one round only, so there is nothing to average", "use the inner attack by itself"
        )
    if "indices" not in knowledge.known:
        raise refuse("no_indices")(
            "whether the rounds hold the same examples is not known",
            "use a recipe with [rounds] design = 'whole', and tell the indices",
        )
    first, mean = transcript[0], _Mean()
    loudest = known_noise(knowledge, first)
    for t in range(count):
        seen = transcript[t]
        _check_same(first, seen)
        noise = known_noise(knowledge, seen)
        # Noise that decays to nothing would give its rounds endless weight.
        quiet = 0.0 if noise is None else noise.deviation
        mean.add(seen, 1.0 if loudest is None else max(quiet, MIN_NOISE_RATIO * loudest.deviation))
    observed = replace(first, params=mean.of("params"), update=Update(mean.of("update"), first.update.kind))
    moved = {name: tensor - first.params[name] for name, tensor in observed.params.items()}
    gone = float(norm(moved)) / max(float(norm(first.params)), 1e-30)
    left = mean.noise_left
    quieter = None if knowledge.defense is None else knowledge.defense.with_less_noise(left, first.t)
    stated = replace(knowledge, defense=quieter)
    return _OneOfMany(stated, observed, (_note(count, gone, left),))


class _Mean:
    """A running mean of rounds, each weighed by one over the variance of its noise."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensors] = {"update": {}, "params": {}}
        self.like: Tensors = {}
        self.deviations: list[float] = []

    def add(self, seen: Round, deviation: float) -> None:
        self.deviations.append(deviation)
        self.like = seen.params
        for part, tensors in (("update", seen.update.tensors), ("params", seen.params)):
            own = self.sums[part]
            for name, tensor in tensors.items():
                own[name] = own.get(name, 0.0) + tensor.double() / deviation**2

    @property
    def _whole(self) -> float:
        return math.fsum(deviation**-2 for deviation in self.deviations)

    @property
    def noise_left(self) -> float:
        """Deviation of the noise in the mean, over that in the first round."""
        return 1 / math.sqrt(self._whole) / self.deviations[0]

    def of(self, part: str) -> Tensors:
        return {name: (total / self._whole).to(self.like[name]) for name, total in self.sums[part].items()}


def _check_same(first: Round, seen: Round) -> None:
    assert first.indices is not None
    assert seen.indices is not None
    if not torch.equal(first.indices.sort().values, seen.indices.sort().values):
        raise refuse("rounds_differ")(
            f"rounds 0 and {seen.t} hold different examples, whose mean is no round of either",
            "use cafe, which takes batches apart, or [rounds] design = 'whole'",
        )
    if seen.update.tensors.keys() != first.update.tensors.keys():
        raise refuse("rounds_differ")(
            f"rounds 0 and {seen.t} sent different tensors, whose mean is no update of either",
            "attack the rounds one by one",
        )


def _note(count: int, gone: float, share: float) -> str:
    where = (
        "at frozen weights"
        if gone < 1e-12  # rounding
        else f"while the weights moved (their mean is {gone:.2g} of their length off the first)"
    )
    return (
        f"{count} rounds of the same examples were averaged, {where}: noise of their own falls to {share:.2g} of the "
        "first one's"
    )
