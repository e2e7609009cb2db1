"""The CAFE benchmarks' runs of our own attack: frozen models, fake gradients, training, tables of numbers."""

import argparse
from pathlib import Path
from typing import Any

import torch
from cafe_scores import PAPER, Row, errors, quality, rounded, within_cells, write
from cafe_victims import Clock, FrozenTranscript, clocked, frozen, images, prepare, truth
from torch import Tensor

from seepage.attacks.cafe import Cafe, Recovered, Search
from seepage.attacks.cafe.invert import invert
from seepage.attacks.cafe.label_inference import link
from seepage.attacks.cafe.steps import groups
from seepage.attacks.cafe.target_layers import assemble, block_shape, find_sites
from seepage.defenses.fake_gradients import FakeGradients
from seepage.papers.special.parties import loss
from seepage.transcript.designs import RandomDraws, make_design
from seepage.transcript.vertical import IndexedVictim, ServerStep
from seepage.types import Batch


def setting(args: argparse.Namespace, seed: int) -> Row:
    """What all rows begin with."""
    return {
        "data": Path(args.data).stem,
        "seed": seed,
        "samples": args.samples,
        "batch": args.batch,
        "parties": args.parties,
    }


def run_exact(args: argparse.Namespace) -> None:
    """Steps I and II on a frozen model, and III with --invert or --some."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed)
        options = {"parties": args.parties, "double_softmax": args.double_softmax, "activation": args.activation}
        design = make_design(args.design, args.samples, args.batch, seed)
        classes = max(10, int(data.labels.max()) + 1)
        victim = prepare(data, design, args.rounds, seed=seed, model_options=options, classes=classes)
        transcript = frozen(victim)
        attack = Cafe(mode=args.mode, samples=args.samples, steps=tuple(args.steps))
        clock, linking = Clock(), Clock()
        with clocked(clock):
            found = attack.recover(transcript)
        row = setting(args, seed) | {"design": args.design, "rounds": args.rounds, "mode": args.mode}
        row |= {"activation": args.activation, "double_softmax": args.double_softmax}
        row |= {"seconds_1_2": rounded(clock.wall - transcript.spent.wall)}
        row |= {"cpu_1_2": rounded(clock.cpu - transcript.spent.cpu), "cpu_victim": rounded(transcript.spent.cpu)}
        with clocked(linking):
            linked = link(victim.knowledge.model, victim.params, find_sites(victim.knowledge, victim.params), found)
        row |= errors(found, truth(victim)) | {"cpu_link": rounded(linking.cpu)}
        if linked is not None:
            row |= _labels(linked.labels, torch.isfinite(linked.misfit), found[0].group, data.labels)
        if args.invert:
            row |= _pictures(attack, transcript, data, found, seed)
        elif args.some:
            row |= _some_pictures(victim, found, args.some, tuple(args.steps), seed)
        if args.paper:
            row["paper"] = PAPER[args.paper](row)
        write(args.out, row)


def _labels(guess: Tensor, usable: Tensor, group: Tensor, true: Tensor) -> Row:
    """In how many cells the labels are right, as sets: inside a cell the order is open."""
    cells = [(group == number) & usable for number in group[usable].unique()]
    right = sum(sorted(guess[mates].tolist()) == sorted(true[mates].tolist()) for mates in cells)
    return {"cells_with_right_labels": right, "cells": len(cells)}


def _pictures(attack: Cafe, transcript: FrozenTranscript, data: Batch, found: list[Recovered], seed: int) -> Row:
    """The whole attack, steps I to III, on all samples."""
    third, before = Clock(), transcript.spent.cpu
    with clocked(third):
        result = attack(transcript, seed=seed)
    assert result.indices is not None
    assert result.objective is not None
    rows = result.indices
    match = within_cells(result.inputs.flatten(1), data.inputs[rows].flatten(1), found[0].group[rows])
    row = quality(result.inputs, data.inputs[rows][match])
    row |= {"returned": len(rows), "seconds_all": rounded(third.wall), "cpu_all": rounded(third.cpu)}
    row["cpu_attack"] = rounded(third.cpu - (transcript.spent.cpu - before))
    return row | {"certain": int((result.objective <= attack.certain).sum())}


def _some_pictures(victim: IndexedVictim, found: list[Recovered], some: int, steps: tuple[int, ...], seed: int) -> Row:
    """Step III on the first few identifiable samples alone."""
    chosen = torch.stack([one.known | one.silent for one in found]).all(0).nonzero().squeeze(1)[:some]
    if not len(chosen):
        return {"inverted": 0}
    knowledge, clock = victim.knowledge, Clock()
    blocks = []
    sites = find_sites(knowledge, victim.params)
    with clocked(clock):
        for site, one in zip(sites, found, strict=True):
            like = torch.zeros(1, *block_shape(site, knowledge.input_shape))

            def features(x: Tensor, site: Any = site) -> Tensor:
                out: Tensor = site.features(knowledge.model, victim.params, victim.buffers, x)
                return out

            targets = one.h[chosen].float()
            blocks.append(invert(features, targets, like, (0.0, 1.0), Search(steps=steps), seed=seed)[0])
            blocks[-1][one.silent[chosen]] = 0.0  # the darkest input, as `Cafe` takes it
    guess = assemble(sites, blocks, knowledge.input_shape, 0.5)
    true = victim.data.inputs
    match = within_cells(guess.flatten(1), true[chosen].flatten(1), found[0].group[chosen])
    return quality(guess, true[chosen][match]) | {"inverted": len(chosen), "cpu_3": rounded(clock.cpu)}


def run_fake(args: argparse.Namespace) -> None:
    """Fake gradients: the attacker who does not know (--entries all), and the one who does (unforged)."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed)
        design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=seed)
        defense = FakeGradients(candidates=args.candidates, order=args.order, tau=args.tau)
        victim = prepare(data, design, args.rounds, seed=seed, defense=defense, classes=10)
        transcript = frozen(victim)
        attack = Cafe(samples=args.samples, steps=tuple(args.steps), entries=args.entries)
        row = setting(args, seed) | {"rounds": args.rounds, "entries": args.entries, "defense": repr(defense)}
        row |= _forged(victim, defense)
        clock = Clock()
        if args.some:
            with clocked(clock):
                found = attack.recover(transcript)
            row |= errors(found, truth(victim))
            row |= _some_pictures(victim, found, args.some, tuple(args.steps), seed)
        else:
            with clocked(clock):
                result = attack(transcript, seed=seed)
            assert result.indices is not None
            row |= quality(result.inputs, data.inputs[result.indices]) | {"returned": len(result)}
        row |= {"cpu_attack": rounded(clock.cpu - transcript.spent.cpu), "cpu_victim": rounded(transcript.spent.cpu)}
        write(args.out, row | {"paper": {"figure": 6, "data": "cifar10", "psnr": 7.67, "psnr_undefended": 28.68}})


def _forged(victim: IndexedVictim, defense: FakeGradients) -> Row:
    """What the defence did to the first round: distances, draws and how much passed, over all parties and layers."""
    bare = victim.knowledge.client(victim.knowledge.model, victim.params, victim.batch(0))
    made = defense.forge_all(bare.tensors, torch.Generator().manual_seed(0)).values()
    entries = sum(one.tensor.numel() for one in made)
    return {
        "kept": rounded(sum(one.kept * one.tensor.numel() for one in made) / entries),
        "distance": rounded(sum(one.distance**2 for one in made) ** 0.5),
        "gradient_norm": rounded(float(torch.cat([g.flatten() for g in bare.tensors.values()]).norm())),
        "draws": sum(one.draws for one in made),
        "tensors": len(made),
        "within_tau": sum(one.within for one in made),
    }


def run_training(args: argparse.Namespace) -> None:
    """Attack while the server trains: a short window of rounds, with the weights of its first."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed)
        design = make_design(args.design, args.samples, args.batch, seed)
        server = ServerStep(optimizer=args.optimizer, lr=args.lr)
        victim = prepare(data, design, args.rounds, seed=seed, server=server, classes=10)
        row = setting(args, seed) | {"rounds": args.rounds, "optimizer": args.optimizer, "lr": args.lr}
        row |= {"mode": args.mode, "design": args.design, "losses": losses(victim, [0, args.rounds])}
        attack = Cafe(samples=args.samples, steps=tuple(args.steps), mode=args.mode)
        clock = Clock()
        with clocked(clock):
            result = attack(victim.transcript(), seed=seed)
        assert result.indices is not None
        group = groups([design.indices(t) for t in range(args.rounds)], args.samples)[result.indices]
        match = within_cells(result.inputs.flatten(1), data.inputs[result.indices].flatten(1), group)
        row |= quality(result.inputs, data.inputs[result.indices][match]) | {"returned": len(result)}
        row |= {"cpu_with_victim": rounded(clock.cpu), "paper": PAPER["7"](row)}
        write(args.out, row)


def losses(victim: IndexedVictim, at: list[int]) -> list[float]:
    """The mean loss over all samples after so many rounds; NaN where training diverged."""
    return [rounded(loss(victim, t), 4) for t in at]


def run_losses(args: argparse.Namespace) -> None:
    """Training with SGD on true and on fake gradients (figure 7)."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed)
        design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=seed)
        for order in args.orders:
            defense = None if order == "none" else FakeGradients(candidates=args.candidates, order=order)
            server = ServerStep(optimizer="sgd", lr=args.lr)
            options = {"channels": args.channels}
            victim = prepare(
                data, design, args.rounds, seed=seed, server=server, defense=defense, model_options=options, classes=10
            )
            at = list(range(0, args.rounds + 1, args.every))
            row = setting(args, seed) | {"defense": repr(defense), "lr": args.lr, "channels": args.channels}
            row |= {"rounds": at, "loss": losses(victim, at)}
            write(args.out, row | {"paper": PAPER["11"](row)})


def run_table(args: argparse.Namespace) -> None:
    """Columns of a scikit-learn table shared by parties: steps I and II alone give the rows back."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{args.table}")(return_X_y=True)
    inputs = torch.from_numpy((x - x.min(0)) / (x.max(0) - x.min(0)).clip(1e-9)).float()
    data = Batch(inputs, torch.from_numpy(y).long())
    n = len(inputs)
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        design = make_design(args.design, n, args.batch, seed)
        rounds = args.rounds or n + n // 20
        options = {"parties": args.parties, "hidden": 64, "activation": args.activation}
        victim = prepare(data, design, rounds, seed=seed, model_options=options)
        clock = Clock()
        with clocked(clock):
            result = Cafe(samples=n)(victim.transcript(), seed=0)
        assert result.indices is not None
        apart = (result.inputs - inputs[result.indices]).abs().amax(1)
        row: Row = {"table": args.table, "seed": seed, "activation": args.activation, "samples": n}
        row |= {"batch": args.batch, "parties": args.parties, "rounds": rounds, "design": args.design}
        row |= {"returned": len(result), "cpu_all_with_victim": rounded(clock.cpu)}
        row |= {"rows_to_1e-3": int((apart < 1e-3).sum()), "median_error": rounded(float(apart.median()))}
        right = None if result.labels is None else int((result.labels == data.labels[result.indices]).sum())
        write("tables", row | {"labels_right": right, "notes": result.notes})
