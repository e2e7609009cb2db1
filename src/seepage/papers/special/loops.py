"""CAFE's own loops, and the training beside them, followed from outside (Jin et al. 2021, Tables 5 and 8 to 11).

The attack does not know its distance from the truth: these functions read its checkpoints and at the truth.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seepage.attacks.base import Checkpoint, Silent
from seepage.attacks.cafe.published import PublishedCafe
from seepage.attacks.cafe.table_9 import TABLE_9
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.base.nn import forward, generator, in_mode
from seepage.base.progress import Doing, ProgressCallback
from seepage.errors import SeepageError
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.federation.types import Tensors
from seepage.measure.metrics import psnr
from seepage.papers.run import Value
from seepage.papers.special.lazy import transcript_of
from seepage.papers.special.victims import parties_of

CHECKPOINT_EVERY = 100
"""Iterations between two checkpoints of the loops."""

TABLE_8_SHARES = (0.0, 0.1, 0.3, 0.5, 0.75, 1.0)
"""Where Table 8 looks, as shares of all iterations: 0, 2,000, 6,000, 10,000, 15,000 and 20,000."""

TABLE_10_EPOCHS = (100, 150, 200, 250, 300, 350)
"""The rows of Table 10."""

TABLE_11_SHARES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Where Table 11 looks, as shares of all rounds: 0, 1,000, 2,000, 3,000, 4,000, 6,000 and 8,000."""


class _TargetReached(Exception):
    """Raised when the images reach the requested PSNR."""


@dataclass
class LoopProgress(Silent):
    """Progress of a running attack, with the PSNR of its images at every checkpoint.

    Attributes:
        victim: The parties, whose images are the truth.
        look: Called with (iteration, PSNR); an exception that it raises ends the attack.
    """

    victim: IndexedVictim
    look: Callable[[int, "Quality"], None]

    def save(self, checkpoint: Checkpoint) -> None:
        tiles = [checkpoint.tensors[f"three/{m}/table"] for m in range(len(_blocks(self.victim)))]
        self.look(int(checkpoint.facts["step"]), quality(self.victim, tiles))


def _blocks(victim: IndexedVictim) -> tuple[tuple[slice, ...], ...]:
    blocks: tuple[tuple[slice, ...], ...] = victim.knowledge.model.blocks  # type: ignore[assignment]
    return blocks


class Quality(NamedTuple):
    """Mean PSNR of all images, in dB.

    Attributes:
        tiles: The paper's: of each party's tile by itself, and the mean over parties.
        whole: Of whole images, which is never above it.
    """

    tiles: float
    whole: float


def quality(victim: IndexedVictim, tiles: list[Tensor]) -> Quality:
    """How close images are whose `[N, *tile]` of each party are these, clamped."""
    truth, (low, high) = victim.data.inputs, victim.knowledge.value_range
    whole, parts = torch.zeros_like(truth), []
    for block, tile in zip(_blocks(victim), tiles, strict=True):
        place = (slice(None), *block)
        whole[place] = tile.detach().clamp(low, high)
        parts.append(psnr(whole[place], truth[place]).mean())
    return Quality(float(torch.stack(parts).mean()), float(psnr(whole, truth).mean()))


def _facts(found: Quality) -> dict[str, float]:
    return {"psnr_quadrants": round(found.tiles, 2), "psnr": round(found.whole, 2)}


def _loops(recipe: Recipe, number: int = 0) -> PublishedCafe:
    attack = recipe.make_attack(recipe.attack[number])
    if not isinstance(attack, PublishedCafe):
        raise SeepageError(
            f"this item follows cafe_published and the recipe names {recipe.attack[number].use}; name it"
        )
    return attack


def _follow(victim: IndexedVictim, attack: PublishedCafe, seed: int, look: Callable[[int, Quality], None]) -> None:
    attack(transcript_of(victim), seed=seed, progress=LoopProgress(victim, look))


def iterations_used(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """Table 5: iterations until the mean PSNR is reached, of the single loop and of the nested loops' three steps.

    The recipe's first attack is the single loop, its second the nested loops; `score.exact_db` is the PSNR in dB.
    Looked at every 100 iterations; none where it was not reached. The nested loops do all iterations of steps I and
    II, whose own stopping rule the paper does not state: these two are settings and have no number.
    """
    (recipe,) = resolve_cases(tables)
    victim, _ = parties_of(recipe)
    target, values = recipe.score.exact_db, []
    for number in (0, 1):
        attack, seen = _loops(recipe, number), list[tuple[int, Quality]]()

        def look(step: int, found: Quality, seen: list[tuple[int, Quality]] = seen) -> None:
            seen.append((step, found))
            if found.tiles >= target:
                raise _TargetReached

        reached = False
        try:
            _follow(victim, attack, seed, look)
        except _TargetReached:
            reached = True
        facts = {**_facts(seen[-1][1]), "target_psnr": target, "iterations": list(attack.iterations)}
        spent = [float(seen[-1][0])] if number == 0 else _nested(attack, seen[-1][0])
        short = None if reached else f"{target:g} dB were not reached in {seen[-1][0]:,}"
        for place, count in enumerate(spent):
            # Steps I and II end when their iterations are done, whatever came of them.
            reason = f"set to {count:,.0f}" if number and place < 2 else short
            values.append(
                Value(
                    row="iterations",
                    column=number + place,
                    ours=None if reason else count,
                    facts={**facts, "reason": reason},
                )
            )
        show(number + 1, 2, Doing("loops"))
    return values


def _nested(attack: PublishedCafe, step: int) -> list[float]:
    """Iterations of steps I, II and III of so many in all, and all of them.

    >>> _nested(PublishedCafe(iterations=(10, 10, 50)), 60)
    [10.0, 10.0, 40.0, 60.0]
    """
    one, two, _ = attack.iterations
    found = [min(one, step), min(two, max(0, step - one)), max(0, step - one - two), step]
    return [float(count) for count in found]


def psnr_by_epoch(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """Table 10: mean PSNR after 100 to 350 epochs for each batch size of the recipe's grid.

    An epoch is N / K iterations of the single loop. The batch sizes must divide N into epochs whose fiftieth ends on
    one of the loops' checkpoints (every 100 iterations).
    """
    recipes, values = resolve_cases(tables), []
    for column, recipe in enumerate(recipes):
        victim, _ = parties_of(recipe)
        per_epoch = victim.design.per_epoch
        wanted = {epochs * per_epoch: epochs for epochs in TABLE_10_EPOCHS}
        if any(step % CHECKPOINT_EVERY for step in wanted):
            raise SeepageError(f"fifty epochs of {per_epoch} batches end between two looks; choose another batch size")

        def look(step: int, found: Quality, column: int = column, wanted: dict[int, int] = wanted) -> None:
            if step in wanted:
                facts, ours = {"iterations": step, **_facts(found)}, round(found.tiles, 4)
                values.append(Value(row=f"{wanted[step]} epochs", column=column, ours=ours, facts=facts))

        attack = replace(_loops(recipe), iterations=(TABLE_10_EPOCHS[-1] * per_epoch,))
        _follow(victim, attack, seed, look)
        show(column + 1, len(recipes), Doing(f"batches of {recipe.batch.size}"))
    return values


def while_training(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> Iterator[Value]:
    """Table 8: mean PSNR, training loss and accuracy on unseen data while the server trains, at `TABLE_8_SHARES`.

    The training does not depend on the attack and costs a tenth of it: its two rows come first.
    """
    (recipe,) = resolve_cases(tables)
    victim, unseen = parties_of(recipe)
    attack = _loops(recipe)
    last = attack.iterations[-1]
    places = {round(share * last): column for column, share in enumerate(TABLE_8_SHARES)}

    def at(step: int) -> int:
        return min(step, victim.rounds - 1)

    for step, column in places.items():
        params = victim.params_at(at(step))
        right = outputs(victim, params, unseen.inputs).argmax(1) == unseen.labels
        facts = {"round": at(step), "examples": len(unseen)}
        numbers = {"training loss": loss(victim, at(step)), "testing accuracy": float(right.float().mean())}
        for row, number in numbers.items():
            yield Value(row=row, column=column, ours=finite(round(number, 4)), facts=facts)
        show(step, last, Doing("training"))

    read: list[Value] = []

    def look(step: int, found: Quality) -> None:
        if step in places:
            facts = {"round": at(step), **_facts(found)}
            read.append(Value(row="PSNR", column=places[step], ours=finite(round(found.tiles, 4)), facts=facts))
            show(step, last, Doing("rounds"))

    truth = victim.data.inputs
    start = torch.rand(truth.shape, generator=generator(seed, "table 8")).to(truth)  # as the loops start, drawn anew
    look(0, quality(victim, [start[(slice(None), *block)] for block in _blocks(victim)]))
    _follow(victim, attack, seed, look)
    yield from read


def constants(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """Table 9: the constants that `cafe_published` takes for each data set, in the paper's columns."""
    rows = {"CIFAR-10": "cifar10", "MNIST": "mnist", "Linnaeus 5": "linnaeus5", "Yale 32x32": "yale32"}
    values = []
    for row, name in rows.items():
        own, attack = TABLE_9[name], PublishedCafe(constants=name)  # type: ignore[arg-type]
        numbers = [own["lr_one"], own["lr_two"], own["lr_three"], attack.alpha, attack.beta, attack.gamma, own["xi"]]
        values += [Value(row=row, column=column, ours=number) for column, number in enumerate(numbers)]
    show(1, 1, Doing())
    return values


def training_losses(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> Iterator[Value]:
    """The mean loss over all samples after so many rounds, a row for each case of the recipe.

    A row is called as its `[[case]]`, or `true gradients` without a defense. None from where the loss is no longer
    finite on: no later round makes it so again.
    """
    recipes = resolve_cases(tables)
    for number, recipe in enumerate(recipes):
        victim, _ = parties_of(recipe)
        row = "true gradients" if victim.defense is None else recipe.name
        found: float | None = 0.0
        for column, share in enumerate(TABLE_11_SHARES):
            t = round(share * victim.rounds)
            found = None if found is None else finite(float(f"{loss(victim, t):.5g}"))
            facts = {"round": t, "defense": repr(victim.defense), "reason": None if found is not None else "diverged"}
            yield Value(row=row, column=column, ours=found, facts=facts)
            show(number + (column + 1) / len(TABLE_11_SHARES), len(recipes), Doing(recipe.name))


def outputs(victim: IndexedVictim, params: Tensors, inputs: Tensor) -> Tensor:
    """`[n, classes]` outputs of the model for `[n, *shape]` inputs at these weights."""
    with torch.no_grad(), in_mode(victim.knowledge.model, training=False):
        parts = [forward(victim.knowledge.model, params, x, buffers=victim.buffers) for x in inputs.split(100)]
    return torch.cat(parts)


def loss(victim: IndexedVictim, t: int) -> float:
    """The mean loss over all samples after `t` rounds; not finite where training diverged."""
    found = outputs(victim, victim.params_at(t), victim.data.inputs)
    return float(victim.knowledge.client.loss_of(found, victim.data.labels))


def finite(value: float) -> float | None:
    """The value, or None where it is NaN or infinite.

    >>> finite(0.5), finite(float("inf"))
    (0.5, None)
    """
    return value if torch.isfinite(torch.tensor(value)) else None
