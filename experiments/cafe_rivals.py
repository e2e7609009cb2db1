"""The CAFE benchmarks' runs of other attacks: CAFE as published, and gradient matching on one round."""

import argparse

import torch
from cafe_runs import setting
from cafe_scores import PAPER, Row, quality, rounded, within_cells, write
from cafe_victims import Clock, clocked, frozen, images, prepare
from torch import Tensor

from seepage.attacks.cafe import Cafe
from seepage.attacks.cafe.published import PublishedCafe
from seepage.attacks.cafe.steps import groups
from seepage.attacks.matching.presets import dlg, inverting_gradients, sapag
from seepage.transcript.designs import RandomDraws, make_design
from seepage.transcript.simulated import OneRound
from seepage.types import Reconstruction


def run_published(args: argparse.Namespace) -> None:
    """The paper's stochastic loops; each --only leaves one term of equation 9 out."""
    changes = {"": {}, "alpha": {"alpha": 0.0}, "beta": {"beta": 0.0}, "gamma": {"gamma": 0.0}, "xi": {"xi": 0.0}}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for without in args.without or [""]:
            data = images(args.data, args.samples, seed)
            design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=seed)
            iterations = tuple(args.iterations)
            victim = prepare(data, design, args.rounds or sum(iterations), seed=seed, classes=10)
            options = {"alpha": args.alpha} | changes[without]
            attack = PublishedCafe(
                loop=args.loop,
                constants=args.constants,
                iterations=iterations,
                thresholds=tuple(args.thresholds),
                legacy_bias_correction=args.legacy,
                samples=args.samples,
                **options,
            )
            transcript, clock = frozen(victim), Clock()
            with clocked(clock):
                result = attack(transcript, seed=seed)
            row = setting(args, seed) | {"who": "published", "without": without, "attack": repr(attack)}
            row |= _cost(result, clock, transcript.spent, args.rounds or sum(iterations))
            row |= _psnr(result, data.inputs) | {"notes": result.notes}
            write(args.out, row | {"paper": PAPER["4" if args.without else "5"](row)})


def run_against(args: argparse.Namespace) -> None:
    """Our attack on the same parties, with few steps of step III: beside the published one's rows."""
    data = images(args.data, args.samples, args.first_seed)
    design = make_design(args.design, args.samples, args.batch, args.first_seed)
    victim = prepare(data, design, args.rounds, seed=args.first_seed, classes=10)
    for steps in args.steps:
        transcript, clock = frozen(victim), Clock()
        attack = Cafe(samples=args.samples, steps=(steps,), polish=args.polish)
        with clocked(clock):
            result = attack(transcript, seed=args.first_seed)
        row = setting(args, args.first_seed) | {"who": "cafe", "design": args.design, "attack": repr(attack)}
        row |= _cost(result, clock, transcript.spent, args.rounds)
        group = groups([design.indices(t) for t in range(args.rounds)], args.samples)
        write(args.out, row | _psnr(result, data.inputs, group))


def _cost(result: Reconstruction, clock: Clock, victim: Clock, rounds: int) -> Row:
    return {
        "rounds": rounds,
        "reads": result.cost["rounds"],
        "cpu_attack": rounded(clock.cpu - victim.cpu),
        "cpu_victim": rounded(victim.cpu),
    }


def _psnr(result: Reconstruction, true: Tensor, group: Tensor | None = None) -> Row:
    assert result.indices is not None
    rows = result.indices
    match = torch.arange(len(rows))
    if group is not None:
        match = within_cells(result.inputs.flatten(1), true[rows].flatten(1), group[rows])
    return quality(result.inputs, true[rows][match]) | {"returned": len(rows)}


def run_baselines(args: argparse.Namespace) -> None:
    """Gradient matching (table 2) on one round of the same parties, guesses matched to the batch one to one."""
    presets = {
        "dlg": dlg(steps=max(1, args.steps // 20)),  # a step of L-BFGS has 20 inner iterations
        "cosine": inverting_gradients(steps=args.steps),
        "sapag": sapag(steps=args.steps),
    }
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed)
        design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=seed)
        victim = prepare(data, design, 1, seed=seed, classes=10)
        true = data.inputs[design.indices(0)]
        for name in args.attacks:
            clock = Clock()
            with clocked(clock):
                result = presets[name](OneRound(victim.transcript(), 0), seed=seed)
            one_cell = torch.zeros(len(true), dtype=torch.int64)
            match = within_cells(result.inputs.flatten(1), true.flatten(1), one_cell)
            row = setting(args, seed) | {"who": name, "attack": repr(presets[name]), "status": result.status}
            row |= {"matching": "one to one by distance", "cpu": rounded(clock.cpu)}
            first, last = result.history[0][1], result.history[-1][1]
            row |= {"objective": [rounded(first), rounded(last)]}
            row |= quality(result.inputs, true[match])
            write(args.out, row | {"paper": PAPER["2"](row)})
