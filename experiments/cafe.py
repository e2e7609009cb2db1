"""CAFE's own loop beside rivals and while the server trains, and what its theorems need.

python experiments/cafe.py rivals --data ../shared/data/cifar10.npz --seeds 3

Each command adds records to results/cafe/. What a recipe asks is asked there: the closed form, few rounds, tables, fake
gradients, the loops term by term (`seepage list recipes`, `seepage reproduce cafe`).
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from cafe_bounds import bounds
from cafe_parties import images, prepare, quality, rounded, truth
from cafe_rivals import OBJECTIVES, RivalCafe
from common import Clock, Row, clocked, command, flat_square, keep
from torch import nn

from seepage.attacks.base import ignore
from seepage.attacks.cafe.published import PublishedCafe
from seepage.attacks.cafe.steps import mean_table, params_of, read_biases
from seepage.attacks.cafe.steps import step_one as first_step
from seepage.attacks.cafe.target_layers import find_target_layers
from seepage.attacks.exposure import indexed_rounds
from seepage.base.nn import in_mode, state_of
from seepage.federation.transcript.designs import RandomDraws
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch
from seepage.papers.special.lazy import transcript_of
from seepage.papers.special.loops import loss

DEFAULTS = {
    "conditions": (20, 5, 40, 0),
    "rivals": (8, 4, 40, 500),
    "moving": (8, 40, 0, 500),
    "switch": (20, 5, 0, 2500),
    "step-one": (800, 40, 820, 16_000),
}
"""Samples, batch, rounds and iterations of a command."""
WHO = {"rivals": ("cafe", *OBJECTIVES), "moving": ("cafe", "first", "dlg")}


def conditions(victim: IndexedVictim, rounds: int) -> list[Row]:
    """Theorem 2's conditions, and equation 43's bound beside the true error of H from equation 44, for each party."""
    transcript, design = victim.transcript(), victim.design
    found = indexed_rounds(transcript)
    assert found is not None
    batches = [design.indices(t) for t in range(rounds)]
    table, rows = mean_table(batches, design.samples), []
    layers = find_target_layers(transcript.knowledge, params_of(transcript, 0))
    biases = read_biases(transcript, range(rounds), layers)
    vs = [first_step(batches, bias, design.samples)[0] for bias in biases]
    bounded = bounds(transcript, table, batches, layers, vs, biases) if found.theorem_one else {}
    for m, (layer, (_, h)) in enumerate(zip(found.layers, truth(victim), strict=True)):
        seen = [transcript.select(t, (layer.weight, layer.bias)) for t in range(rounds)]
        # V by least squares, the gradient of all samples by the rounds' own combination, H by equation 44.
        v = torch.linalg.pinv(table) @ torch.stack([one[layer.bias] for one in seen]).double()
        whole = torch.einsum(
            "t,tij->ij", torch.linalg.pinv(table).sum(0), torch.stack([one[layer.weight] for one in seen]).double()
        )
        guess = torch.linalg.pinv(v).T @ whole
        row: Row = {"layer": layer.layer, "rank_s": found.rank, "rank_v": layer.rank}
        printed, bound = bounded.get(m, (None, None))
        row |= {"printed": printed, "theorem_two": found.theorem_two(layer), "bound": bound}
        rows.append(row | {"error_h": rounded(float((guess - h.double()).norm() / h.double().norm()))})
    return rows


def settled(victim: IndexedVictim, others: Batch) -> IndexedVictim:
    """The same parties, whose batch norms have the mean and variance of other images of the same file."""
    model = victim.knowledge.model
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.momentum = None  # a plain average over the batches that are seen
    with torch.no_grad(), in_mode(model, training=True):
        model(others.inputs)
    return replace(victim, buffers=state_of(model)[1])


def attacked(victim: IndexedVictim, who: str, constants: str, iterations: int, seed: int) -> Row:
    """CAFE's single loop or, in the same loop over the same rounds, a rival of the paper's table 2."""
    given: Row = {"loop": "single_loop", "constants": constants, "scaled": True, "thresholds": ()}
    given |= {"iterations": (iterations,), "samples": victim.design.samples}
    if who in ("cafe", "first"):
        attack = PublishedCafe(follow=who != "first", **given)
    else:
        attack = RivalCafe(**given, objective=who)  # type: ignore[arg-type]
    clock, data = Clock(), victim.data
    with clocked(clock):
        result = attack(victim.transcript(), seed=seed)
    assert result.indices is not None
    row = quality(result.inputs, data.inputs[result.indices]) | {"who": who, "attack": repr(attack)}
    row |= {"returned": len(result.indices), "iterations": iterations, "cpu_with_victim": rounded(clock.cpu)}
    row |= {"mean_color_psnr": quality(flat_square(data.inputs), data.inputs)["psnr"]}
    return row | {"objective": [rounded(result.history[place][1]) for place in (0, -1)]}


def step_one(victim: IndexedVictim, constants: str, iterations: int) -> Row:
    """What is left of the first party's V by step I alone, and when its objective is first below the paper's 1e-9."""
    loops = PublishedCafe(constants=constants)  # type: ignore[arg-type]
    seen = loops.examine(transcript_of(victim))
    run, true = loops.begun(seen, 0, ignore), truth(victim)[0][0] / len(seen.batches[0])
    reached, found = None, Row()
    for t in range(iterations):
        objective = run.step_one(t)
        reached = t + 1 if reached is None and objective < loops.thresholds[0] else reached
        if (t + 1) % 8000 == 0:
            left = float((run.v[0] - true).norm() / true.norm())
            found |= {f"error_{t + 1}": rounded(left), f"objective_{t + 1}": rounded(objective)}
    return found | {"reached": reached, "rank_v": int(torch.linalg.matrix_rank(true))}


SWITCHES: dict[str, Row] = {"together": {}, "in turn": {"together": False}, "from the start": {"thresholds": ()}}
"""What the single loop does with the thresholds: step I goes on beside step II, or ends; or it waits for none."""


def main(
    what: Literal["conditions", "rivals", "moving", "switch", "step-one"],
    *,
    data: str,
    samples: int | None = None,
    batch: int | None = None,
    parties: int = 4,
    seeds: int = 1,
    first_seed: int = 1,
    rounds: int | None = None,
    iterations: int | None = None,
    constants: str | None = None,
    objectives: Annotated[tuple[str, ...], WHO["rivals"]] = WHO["rivals"],
    who: Annotated[tuple[str, ...], WHO["moving"]] = WHO["moving"],
    batches: tuple[int, ...] = (4,),
    lr: Annotated[tuple[float, ...], "Adam's rates of the server; 0: none"] = (1e-5, 1e-4),
    size: Annotated[int | None, "side of the images in pixels"] = None,
    channels: int = 16,
    hidden: int = 64,
) -> None:
    usual = DEFAULTS[what]
    samples, batch, rounds, iterations = (
        given or other for given, other in zip((samples, batch, rounds, iterations), usual, strict=True)
    )
    size = size if size or what in ("conditions", "step-one") else 16
    for seed in range(first_seed, first_seed + seeds):
        row: Row = {"data": Path(data).stem, "seed": seed, "samples": samples, "batch": batch, "parties": parties}
        row |= {"rounds": rounds or iterations, "hidden": hidden, "channels": channels}
        private = images(data, samples, seed, size)
        options = {"channels": channels, "hidden": hidden}
        if what == "conditions":
            design = RandomDraws(samples=samples, batch_size=batch, seed=seed)
            shaped: Row = options | {"parties": parties, "activation": "leaky_relu"}
            victim = prepare(private, design, rounds, seed=seed, model_options=shaped, classes=10)
            for one in conditions(victim, rounds):
                keep("cafe/conditions", f"bound, {one['layer']}", "error_h", row | one)
        elif what == "rivals":
            design = RandomDraws(samples=samples, batch_size=batch, seed=seed)
            for name in objectives:
                shaped = options | {"batch_norm": name == "batch_norm"}
                victim = prepare(private, design, rounds, seed=seed, model_options=shaped, classes=10)
                victim = settled(victim, images(data, 200, 10_000, size)) if name == "batch_norm" else victim
                found = attacked(victim, name, constants or "cifar10", iterations, seed)
                keep("cafe/rivals", name, "psnr", row | shaped | found | {"size": size})
        elif what == "step-one":
            design = RandomDraws(samples=samples, batch_size=batch, seed=seed)
            for count in (
                iterations,
                rounds,
            ):  # as many different ones as iterations, or fewer that are gone through again
                victim = prepare(private, design, count, seed=seed, classes=10)  # figure 4's network
                found = step_one(victim, constants or "mnist", iterations)
                keep(
                    "cafe/step-one",
                    f"{count} rounds",
                    "error_8000",
                    row | found | {"rounds": count, "hidden": 256, "channels": 64},
                )
        elif what == "switch":
            design = RandomDraws(samples=samples, batch_size=batch, seed=seed)
            victim = prepare(private, design, iterations, seed=seed, model_options=options, classes=10)
            for name, change in SWITCHES.items():
                attack = PublishedCafe(
                    loop="single_loop",
                    constants="mnist",
                    scaled=True,
                    iterations=(iterations,),
                    samples=samples,
                    **change,
                )
                result = attack(victim.transcript(), seed=seed)
                found = quality(result.inputs, private.inputs[result.indices]) | {"notes": list(result.notes)}
                keep("cafe/switch", name, "psnr", row | found | {"size": size, "iterations": iterations})
        else:
            for n, rate, name in itertools.product(batches, lr, who):
                design = RandomDraws(samples=samples, batch_size=n, seed=seed)
                server = ServerStep(optimizer="adam", lr=rate) if rate else None
                victim = prepare(
                    private, design, iterations, seed=seed, server=server, model_options=options, classes=10
                )
                found = attacked(victim, name, constants or "mnist", iterations, seed) | {"lr": rate, "size": size}
                found |= {"batch": n, "losses": [rounded(loss(victim, t), 4) for t in (0, iterations - 1)]}
                keep("cafe/moving", f"{name}, K {n}, Adam {rate:g}", "psnr", row | found)


if __name__ == "__main__":
    command(main)
