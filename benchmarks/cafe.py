"""Fill the CAFE table: each command adds JSON lines to results/cafe/, with versions, seeds and the command itself.

python benchmarks/cafe.py exact --data ../shared/data/cifar10.npz --seeds 3
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.cafe import Cafe, Recovered
from seepage.attacks.cafe.link import link
from seepage.attacks.cafe.published import PublishedCafe
from seepage.attacks.cafe.sites import Site, find_sites, true_representations
from seepage.attacks.cafe.steps import groups
from seepage.clients import FedSGD
from seepage.defenses.fake_gradients import FakeGradients
from seepage.functional import frozen_randomness, generator, state_of
from seepage.models.vertical import vertical
from seepage.types import Batch, Defense, Knowledge, Tensors, Update
from seepage.vertical import (
    Design,
    IndexedTranscript,
    IndexedVictim,
    Partitions,
    RandomDraws,
    ServerStep,
    ShuffledEpochs,
)

OUT = Path("results/cafe")


def images(path: str, samples: int, seed: int) -> Batch:
    """The first N of a seeded order of a data file's images, as [N, C, H, W] in [0, 1]."""
    with np.load(path) as file:
        key = next(k for k in ("x_train", "x") if k in file.files)
        x, y = file[key], file[key.replace("x", "y")]
    order = torch.randperm(len(x), generator=generator(seed, "benchmark samples"))[:samples].numpy()
    inputs = torch.from_numpy(x[order]).permute(0, 3, 1, 2).float() / 255
    return Batch(inputs, torch.from_numpy(y[order]).long())


def prepare(
    data: Batch,
    design: Design,
    rounds: int,
    *,
    seed: int = 0,
    defense: Defense | None = None,
    server: ServerStep | None = None,
    model_options: dict[str, Any] | None = None,
    classes: int | None = None,
) -> IndexedVictim:
    """The parties with a fresh model."""
    shape, classes = tuple(data.inputs.shape[1:]), classes or int(data.labels.max()) + 1
    with frozen_randomness(seed):
        model = vertical(shape, classes, **(model_options or {}))
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), shape, classes, told=frozenset({"indices"}))
    return IndexedVictim(knowledge, params, data, design, rounds, buffers, defense, seed, server or ServerStep())


@dataclass(frozen=True)
class FrozenTranscript(IndexedTranscript):
    """Gradients of a frozen model from stored features: the victim's convolutions, done once instead of per round."""

    stored: list[Tensor] = field(default_factory=list, repr=False)
    sites: list[Site] = field(default_factory=list, repr=False)

    def select(self, t: int, names: Collection[str]) -> Tensors:
        victim = self._victim
        if any(".features." in name for name in names):
            return super().select(t, names)
        chosen = victim.design.indices(t)
        model: Any = victim.knowledge.model
        leaves = {n: p.detach().requires_grad_() for n, p in victim.params.items() if n in names}
        params = victim.params | leaves
        outputs = []
        for m, party in enumerate(model.parties):
            prefix = f"parties.{m}."
            own = {n[len(prefix) :]: p for n, p in params.items() if n.startswith(prefix)}
            u = F.linear(self.stored[m][chosen], own["first.weight"], own["first.bias"])
            rest = {n[5:]: p for n, p in own.items() if n.startswith("rest.")}
            outputs.append(torch.func.functional_call(party.rest, rest, (u,)))
        logits = F.linear(torch.cat(outputs, 1), params["head.weight"], params["head.bias"])
        if model.double_softmax:
            logits = logits.softmax(1)
        loss = F.cross_entropy(logits, victim.data.labels[chosen])
        found = torch.autograd.grad(loss, list(leaves.values()))
        update = Update(dict(zip(leaves, found, strict=True)))
        return victim._defended(update, victim.params, victim.batch(t), t).tensors


def frozen(victim: IndexedVictim) -> FrozenTranscript:
    """The server's view of a frozen victim, with its features stored."""
    sites = find_sites(victim.knowledge, victim.params)
    stored = []
    with torch.no_grad():
        for site in sites:
            blocks = victim.data.inputs[(slice(None), *site.block)]
            parts = [
                site.features(victim.knowledge.model, victim.params, victim.buffers, part) for part in blocks.split(50)
            ]
            stored.append(torch.cat(parts))
    return FrozenTranscript(victim.knowledge, victim, stored, sites)


def truth(victim: IndexedVictim) -> list[tuple[Tensor, Tensor]]:
    """The true V and H of each party."""
    parts = [
        true_representations(victim.knowledge, victim.params, victim.buffers, x, y)
        for x, y in zip(victim.data.inputs.split(100), victim.data.labels.split(100), strict=True)
    ]
    return [tuple(torch.cat(rows) for rows in zip(*one, strict=True)) for one in zip(*parts, strict=True)]  # type: ignore[misc]


def relative(guess: Tensor, true: Tensor) -> float:
    """Relative Frobenius error."""
    return float((guess.double() - true.double()).norm() / true.double().norm())


@dataclass
class Clock:
    """Wall and processor seconds of a block."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    clock.wall += time.perf_counter() - wall
    clock.cpu += time.process_time() - cpu


def write(name: str, row: dict[str, Any]) -> None:
    """Add a line to results/cafe/NAME.jsonl and show it."""
    OUT.mkdir(parents=True, exist_ok=True)
    row = {
        **row,
        "command": "python " + " ".join(sys.argv),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    with (OUT / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def rounded(value: float, digits: int = 3) -> float:
    """A number short enough to read."""
    return float(f"{value:.{digits}g}")


def within_cells(guess: Tensor, true: Tensor, group: Tensor) -> Tensor:
    """For each guess the number of the true row it stands for, matched inside its cell only."""
    from scipy.optimize import linear_sum_assignment

    match = torch.arange(len(guess))
    for number in group.unique():
        members = (group == number).nonzero().squeeze(1)
        if len(members) > 1:
            distance = torch.cdist(guess[members].double(), true[members].double())
            rows, columns = linear_sum_assignment(distance.numpy())
            match[members[rows]] = members[columns]
    return match


def errors(found: list[Recovered], true: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Relative errors of V and H over all parties and known samples; cells are matched as one for all parties."""
    known = torch.stack([one.known for one in found]).all(0)
    rows = known.nonzero().squeeze(1)
    match = rows[
        within_cells(
            torch.cat([one.h[rows] for one in found], 1),
            torch.cat([h[rows].double() for _, h in true], 1),
            found[0].group[rows],
        )
    ]
    guess_v = torch.cat([one.v[rows] for one in found], 1)
    guess_h = torch.cat([one.h[rows] for one in found], 1)
    true_v = torch.cat([v[match].double() for v, _ in true], 1)
    true_h = torch.cat([h[match].double() for _, h in true], 1)
    worst = (guess_h - true_h).norm(dim=1) / true_h.norm(dim=1)
    return {
        "identifiable": int(known.sum()),
        "identifiable_or_silent": int(torch.stack([one.known | one.silent for one in found]).all(0).sum()),
        "silent_parts": int(sum(one.silent.sum() for one in found)),
        "error_v": rounded(relative(guess_v, true_v)),
        "error_h": rounded(relative(guess_h, true_h)),
        "error_h_worst": rounded(float(worst.max())),
        "wrong": int((worst > 1e-2).sum()),
        "swapped_in_cells": int((match != rows).sum()),
    }


def quality(guess: Tensor, true: Tensor) -> dict[str, Any]:
    """Mean over images of their PSNR on [0, 1], clamped, and who is exact."""
    guess = guess.clamp(0, 1)
    psnr = -10 * (guess - true).pow(2).flatten(1).mean(1).clamp(min=1e-15).log10()
    same = ((guess * 255).round() == (true * 255).round()).flatten(1).all(1)
    return {
        "psnr": rounded(float(psnr.mean()), 4),
        "psnr_median": rounded(float(psnr.median()), 4),
        "psnr_min": rounded(float(psnr.min()), 4),
        "exact": rounded(float((psnr > 40).float().mean()), 4),
        "pixel_exact": rounded(float(same.float().mean()), 4),
    }


def design_of(name: str, samples: int, batch: int, seed: int) -> Design:
    """A design by name."""
    if name == "partitions":
        return Partitions(samples=samples, batch_size=batch)
    kind = RandomDraws if name == "random" else ShuffledEpochs
    return kind(samples=samples, batch_size=batch, seed=seed)


def run_exact(args: argparse.Namespace) -> None:
    """Steps I and II, and III with --invert, on a frozen model."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed)
        options = {"parties": args.parties, "double_softmax": args.double_softmax, "activation": args.activation}
        design = design_of(args.design, args.samples, args.batch, seed)
        classes = max(10, int(data.labels.max()) + 1)
        victim = prepare(data, design, args.rounds, seed=seed, model_options=options, classes=classes)
        transcript = frozen(victim)
        attack = Cafe(mode=args.mode, samples=args.samples, steps=tuple(args.steps))
        clock, linking = Clock(), Clock()
        with clocked(clock):
            found = attack.recover(transcript)
        row = {"data": Path(args.data).stem, "seed": seed, "samples": args.samples, "batch": args.batch}
        row |= {"parties": args.parties, "design": args.design, "rounds": args.rounds, "mode": args.mode}
        row |= {"activation": args.activation, "double_softmax": args.double_softmax}
        with clocked(linking):
            linked = link(victim.knowledge.model, victim.params, find_sites(victim.knowledge, victim.params), found)
        row |= errors(found, truth(victim))
        row |= {"seconds_1_2": rounded(clock.wall), "cpu_1_2": rounded(clock.cpu), "cpu_link": rounded(linking.cpu)}
        if linked is not None:
            usable = torch.isfinite(linked.misfit)
            right = sum(
                sorted(linked.labels[mates & usable].tolist()) == sorted(data.labels[mates & usable].tolist())
                for mates in (found[0].group == number for number in found[0].group[usable].unique())
            )
            row |= {"cells_with_right_labels": right, "cells": len(found[0].group[usable].unique())}
        if args.invert:
            third = Clock()
            with clocked(third):
                result = attack(transcript, seed=seed)
            assert result.indices is not None
            rows = result.indices
            match = within_cells(result.inputs.flatten(1), data.inputs[rows].flatten(1), found[0].group[rows])
            row |= quality(result.inputs, data.inputs[rows][match])
            row |= {"returned": len(rows), "seconds_all": rounded(third.wall), "cpu_all": rounded(third.cpu)}
            row |= {"certain": int((result.objective <= 1e-4).sum()) if result.objective is not None else 0}
        write(args.out, row)


def run_fake(args: argparse.Namespace) -> None:
    """Fake gradients: the attacker who does not know, and the one who does."""
    data = images(args.data, args.samples, args.first_seed)
    design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=args.first_seed)
    defense = FakeGradients(candidates=args.candidates, order=args.order)
    victim = prepare(data, design, args.rounds, seed=args.first_seed, defense=defense, classes=10)
    transcript = frozen(victim)
    attack = Cafe(samples=args.samples, steps=tuple(args.steps), entries=args.entries)
    row = {"data": Path(args.data).stem, "seed": args.first_seed, "samples": args.samples, "batch": args.batch}
    row |= {"rounds": args.rounds, "order": args.order, "entries": args.entries, "candidates": args.candidates}
    clock = Clock()
    with clocked(clock):
        result = attack(transcript, seed=args.first_seed)
    assert result.indices is not None
    row |= quality(result.inputs, data.inputs[result.indices])
    row |= {"returned": len(result), "cpu_all_with_victim": rounded(clock.cpu)}
    write(args.out, row)


def run_published(args: argparse.Namespace) -> None:
    """The paper's stochastic loops on the same rounds."""
    data = images(args.data, args.samples, args.first_seed)
    design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=args.first_seed)
    iterations = tuple(args.iterations)
    victim = prepare(data, design, sum(iterations), seed=args.first_seed, classes=10)
    attack = PublishedCafe(
        loop=args.loop, constants=args.constants, iterations=iterations, alpha=args.alpha, samples=args.samples
    )
    clock = Clock()
    with clocked(clock):
        result = attack(frozen(victim), seed=args.first_seed)
    assert result.indices is not None
    row = {"data": Path(args.data).stem, "seed": args.first_seed, "samples": args.samples, "batch": args.batch}
    row |= {"attack": repr(attack), "rounds": result.cost["rounds"], "cpu_all_with_victim": rounded(clock.cpu)}
    write(args.out, row | quality(result.inputs, data.inputs[result.indices]))


def run_training(args: argparse.Namespace) -> None:
    """Attack while the server trains: a short window of rounds, with the weights of its first."""
    data = images(args.data, args.samples, args.first_seed)
    design = design_of(args.design, args.samples, args.batch, args.first_seed)
    server = ServerStep(optimizer=args.optimizer, lr=args.lr)
    victim = prepare(data, design, args.rounds, seed=args.first_seed, server=server, classes=10)
    row = {"data": Path(args.data).stem, "seed": args.first_seed, "samples": args.samples, "batch": args.batch}
    row |= {"rounds": args.rounds, "optimizer": args.optimizer, "lr": args.lr, "mode": args.mode, "design": args.design}
    attack = Cafe(samples=args.samples, steps=tuple(args.steps), mode=args.mode)
    result = attack(victim.transcript(), seed=args.first_seed)
    assert result.indices is not None
    group = groups([design.indices(t) for t in range(args.rounds)], args.samples)[result.indices]
    match = within_cells(result.inputs.flatten(1), data.inputs[result.indices].flatten(1), group)
    write(args.out, row | quality(result.inputs, data.inputs[result.indices][match]) | {"returned": len(result)})


def run_table(args: argparse.Namespace) -> None:
    """Columns of a scikit-learn table shared by parties: steps I and II alone give the rows back."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{args.table}")(return_X_y=True)
    inputs = torch.from_numpy((x - x.min(0)) / (x.max(0) - x.min(0)).clip(1e-9)).float()
    data = Batch(inputs, torch.from_numpy(y).long())
    n = len(inputs)
    design = design_of(args.design, n, args.batch, args.first_seed)
    rounds = args.rounds or n + n // 20
    options = {"parties": args.parties, "hidden": 64, "activation": args.activation}
    victim = prepare(data, design, rounds, seed=args.first_seed, model_options=options)
    clock = Clock()
    with clocked(clock):
        result = Cafe(samples=n)(victim.transcript(), seed=0)
    assert result.indices is not None
    apart = (result.inputs - inputs[result.indices]).abs().amax(1)
    row: dict[str, Any] = {
        "table": args.table,
        "activation": args.activation,
        "samples": n,
        "batch": args.batch,
        "parties": args.parties,
        "rounds": rounds,
    }
    row |= {"design": args.design, "returned": len(result), "cpu_all_with_victim": rounded(clock.cpu)}
    row |= {"rows_to_1e-3": int((apart < 1e-3).sum()), "median_error": rounded(float(apart.median()))}
    right = None if result.labels is None else int((result.labels == data.labels[result.indices]).sum())
    write("tables", row | {"labels_right": right, "notes": result.notes})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    exact = commands.add_parser("exact", help="frozen model, N samples from T rounds")
    exact.add_argument("--data", required=True)
    exact.add_argument("--design", choices=["random", "epochs", "partitions"], default="random")
    exact.add_argument("--rounds", type=int, default=820)
    exact.add_argument("--mode", default="auto")
    exact.add_argument("--samples", type=int, default=800)
    exact.add_argument("--batch", type=int, default=40)
    exact.add_argument("--parties", type=int, default=4)
    exact.add_argument("--activation", default="relu")
    exact.add_argument("--double-softmax", action="store_true")
    exact.add_argument("--seeds", type=int, default=1)
    exact.add_argument("--first-seed", type=int, default=1)
    exact.add_argument("--steps", type=int, nargs="+", default=[30, 250, 350])
    exact.add_argument("--invert", action="store_true")
    exact.add_argument("--out", default="exact")
    exact.set_defaults(go=run_exact)
    for name, go in (("fake", run_fake), ("published", run_published), ("training", run_training)):
        more = commands.add_parser(name, help=go.__doc__)
        more.add_argument("--data", required=True)
        more.add_argument("--samples", type=int, default=200)
        more.add_argument("--batch", type=int, default=20)
        more.add_argument("--rounds", type=int, default=1600 if name == "fake" else 30)
        more.add_argument("--first-seed", type=int, default=1)
        more.add_argument("--steps", type=int, nargs="+", default=[30, 250])
        more.add_argument("--order", default="value")
        more.add_argument("--design", default="partitions")
        more.add_argument("--entries", default="all")
        more.add_argument("--candidates", type=int, default=20)
        more.add_argument("--loop", default="nested")
        more.add_argument("--constants", default="mnist")
        more.add_argument("--iterations", type=int, nargs="+", default=[8000, 3000, 1700])
        more.add_argument("--alpha", type=float, default=0.0)
        more.add_argument("--optimizer", default="sgd")
        more.add_argument("--lr", type=float, default=1e-3)
        more.add_argument("--mode", default="auto")
        more.add_argument("--out", default=name)
        more.set_defaults(go=go)
    table = commands.add_parser("table", help=run_table.__doc__)
    table.add_argument("--table", choices=["breast_cancer", "wine", "iris"], default="breast_cancer")
    table.add_argument("--design", default="random")
    table.add_argument("--batch", type=int, default=32)
    table.add_argument("--rounds", type=int, default=0)
    table.add_argument("--parties", type=int, default=3)
    table.add_argument("--activation", default="leaky_relu")
    table.add_argument("--first-seed", type=int, default=1)
    table.set_defaults(go=run_table)
    args = parser.parse_args()
    args.go(args)


if __name__ == "__main__":
    main()
