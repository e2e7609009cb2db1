"""CAFE's items on rounds that nobody writes (Jin et al. 2021, Tables 2 and 4, Figure 6): 8,000 of them, 96 GB on disk.

An audit writes its rounds so that the attack's process holds nothing else. Seed and recipe in their place would be the
private data themselves, since they draw them; so these items are no audits. The attack gets a transcript, as from
`seepage.api.record`, whose way back to the data is private, and its guesses are scored as an audit scores them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from seepage.attacks.cafe.target_layers import find_target_layers, true_representations
from seepage.audit.attack import attack_names
from seepage.audit.attempt import Attempt, tried
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.score import make_row, metrics_for, scores_of
from seepage.base.nn import generator
from seepage.base.progress import Doing, ProgressCallback
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.transcript.vertical import IndexedTranscript, IndexedVictim
from seepage.federation.types import Tensors
from seepage.measure.metrics import Yardstick
from seepage.papers.run import Value, facts_of
from seepage.papers.special.victims import parties_of

UNIT = "psnr_quadrants"
"""The paper's PSNR: each party's tile by itself, then the mean."""


@dataclass(frozen=True)
class TabledTranscript(IndexedTranscript):
    """Rounds at frozen weights, whose gradients of the parties' first layers are products of two tables' rows.

    A sample's `v_n` and `h_n` are the same in all rounds: `grad b = mean of v_n` and `grad W = mean of v_n h_n^T` over
    the batch, to rounding what the round itself has. A whole round is made as ever.
    """

    _tables: Mapping[str, tuple[Tensor, Tensor]] = field(repr=False)

    def select(self, t: int, names: Collection[str]) -> Tensors:
        layers = {name: name.rpartition(".") for name in names}
        if any(layer not in self._tables for layer, _, _ in layers.values()):
            return super().select(t, names)
        rows = self._victim.design.indices(t)
        found = {}
        for name, (layer, _, part) in layers.items():
            v, h = (table[rows] for table in self._tables[layer])
            found[name] = v.mean(0) if part == "bias" else v.T @ h / len(rows)
        return found


def transcript_of(victim: IndexedVictim) -> IndexedTranscript:
    """The victim's rounds as they are read, by tables where the weights are frozen and nothing is done to gradients."""
    knowledge, data = victim.knowledge, victim.data
    rule = knowledge.client
    plain = victim.defense is None and rule.single_gradient and rule.separable(knowledge.model)
    if victim.server.optimizer != "none" or not plain:
        return victim.transcript()
    layers = find_target_layers(knowledge, victim.params)
    found = true_representations(knowledge, victim.params, victim.buffers, data.inputs, data.labels)
    tables = {layer.name: pair for layer, pair in zip(layers, found, strict=True)}
    return TabledTranscript(knowledge, victim, tables)


def columns(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> Iterator[Value]:
    """Tables 2 and 4: a row's columns, one for each of the recipe's attacks, by `UNIT`.

    Attacks on one round get the first. Seeds are an audit's, so that the two make the same numbers, to rounding.
    """
    (recipe,) = resolve_cases(tables)
    yield from _cells([(recipe, number) for number in range(len(recipe.attack))], show)


def true_and_fake(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> Iterator[Value]:
    """Figure 6: images from the rounds of the case `true`, then from the recipe's own by each of its attacks."""
    own, true = resolve_cases(tables)
    yield from _cells([(true, 0), *((own, number) for number in range(len(own.attack)))], show)


def _cells(places: Sequence[tuple[Recipe, int]], show: ProgressCallback) -> Iterator[Value]:
    """`UNIT` of what an attack of a recipe, by its number, makes of the recipe's rounds; a result row stands beside."""
    victims = {recipe.name: parties_of(recipe)[0] for recipe, _ in places}
    transcripts = {name: transcript_of(victim) for name, victim in victims.items()}
    for column, (recipe, number) in enumerate(places):
        transcript, victim = transcripts[recipe.name], victims[recipe.name]
        name, part = attack_names(recipe.attack)[number], recipe.attack[number]
        by = Yardstick(
            metrics=(*metrics_for(recipe.score, transcript.knowledge.input_shape), UNIT),
            limits=recipe.score.limits,
            value_range=transcript.knowledge.value_range,
            target=transcript.knowledge.target,
            seed=recipe.seed,
        )
        attack = recipe.make_attack(part)
        every = attack.rounds == "all"
        view, truth = (transcript, victim.data) if every else (OneRound(transcript, 0), victim.batch(0))
        drawn = generator(recipe.seed, f"attack/cell/{name}", 0).initial_seed() % 2**31
        found, status, reason, refusal, spent = tried(partial(attack, view, seed=drawn))
        attempt = Attempt(status if found is None else found.status, repr(attack), found, reason, *spent, refusal)
        scored = scores_of([attempt], [truth], by)
        row = make_row(recipe.name, name, [attempt], [view], [truth], scored, attack)
        score = row.scores.get(UNIT)
        low, high = (None, None) if score is None else (score.low, score.high)
        ours = None if score is None else score.mean
        yield Value(row="", column=column, ours=ours, low=low, high=high, facts=facts_of(row))
        show(column + 1, len(places), Doing(name))
