"""CAFE on images and tables: how near it comes, with how few rounds, while training, against defenses and rivals.

python experiments/cafe.py exact --data ../shared/data/cifar10.npz --seeds 3

Each command adds records to results/cafe/. The tables of the paper that a recipe answers are in the book (`seepage
reproduce cafe`); these studies have other sizes, and measure time and rounds.
"""

import argparse
import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cafe_parties import FrozenTranscript, errors, frozen, images, prepare, quality, rounded, truth, within_cases
from cafe_rivals import OBJECTIVES, RivalCafe
from common import Clock, Row, clocked, keep
from torch import Tensor

from seepage.attacks.cafe import Cafe, InversionSettings, Recovered
from seepage.attacks.cafe.invert import invert
from seepage.attacks.cafe.label_inference import infer_labels
from seepage.attacks.cafe.published import PublishedCafe
from seepage.attacks.cafe.steps import groups
from seepage.attacks.cafe.target_layers import assemble, block_shape, find_target_layers
from seepage.attacks.exposure import indexed_rounds
from seepage.attacks.search.presets import dlg, inverting_gradients, sapag
from seepage.base.nn import in_mode, state_of
from seepage.federation.defenses.fake_gradients import FakeGradients
from seepage.federation.transcript.designs import RandomDraws, make_design
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch, Reconstruction
from seepage.papers.special.loops import loss


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
            inferred = infer_labels(
                victim.knowledge.model, victim.params, find_target_layers(victim.knowledge, victim.params), found
            )
        row |= errors(found, truth(victim)) | {"cpu_link": rounded(linking.cpu)}
        if inferred is not None:
            row |= _labels(inferred[0], torch.isfinite(inferred[1]), found[0].group, data.labels)
        if args.invert:
            row |= _pictures(attack, transcript, data, found, seed)
        elif args.some:
            row |= _some_pictures(victim, found, args.some, tuple(args.steps), seed)
        metric = "psnr" if "psnr" in row else "error_h"
        keep(f"cafe/{args.out}", f"{args.rounds} rounds, {args.design}", metric, row)


def _labels(guess: Tensor, usable: Tensor, group: Tensor, true: Tensor) -> Row:
    """In how many cases the labels are right, as sets: inside a case the order is open."""
    cases = [(group == number) & usable for number in group[usable].unique()]
    right = sum(sorted(guess[mates].tolist()) == sorted(true[mates].tolist()) for mates in cases)
    return {"cases_with_right_labels": right, "cases": len(cases)}


def _pictures(attack: Cafe, transcript: FrozenTranscript, data: Batch, found: list[Recovered], seed: int) -> Row:
    """The whole attack, steps I to III, on all samples."""
    third, before = Clock(), transcript.spent.cpu
    with clocked(third):
        result = attack(transcript, seed=seed)
    assert result.indices is not None
    assert result.objective is not None
    rows = result.indices
    match = within_cases(result.inputs.flatten(1), data.inputs[rows].flatten(1), found[0].group[rows])
    row = quality(result.inputs, data.inputs[rows][match])
    row |= {"returned": len(rows), "seconds_all": rounded(third.wall), "cpu_all": rounded(third.cpu)}
    row["cpu_attack"] = rounded(third.cpu - (transcript.spent.cpu - before))
    return row | {"certain": int((result.objective <= attack.certain).sum())}


def _some_pictures(victim: IndexedVictim, found: list[Recovered], some: int, steps: tuple[int, ...], seed: int) -> Row:
    """Step III on the first few identifiable samples alone."""
    chosen = torch.stack([one.known | one.zero_gradient for one in found]).all(0).nonzero().squeeze(1)[:some]
    if not len(chosen):
        return {"inverted": 0}
    knowledge, clock = victim.knowledge, Clock()
    blocks = []
    layers = find_target_layers(knowledge, victim.params)
    with clocked(clock):
        for layer, one in zip(layers, found, strict=True):
            like = torch.zeros(1, *block_shape(layer, knowledge.input_shape))

            def features(x: Tensor, layer: Any = layer) -> Tensor:
                out: Tensor = layer.features(knowledge.model, victim.params, victim.buffers, x)
                return out

            targets = one.h[chosen].float()
            blocks.append(invert(features, targets, like, (0.0, 1.0), InversionSettings(steps=steps), seed=seed)[0])
            blocks[-1][one.zero_gradient[chosen]] = 0.0  # the darkest input, as `Cafe` takes it
    guess = assemble(layers, blocks, knowledge.input_shape, 0.5)
    true = victim.data.inputs
    match = within_cases(guess.flatten(1), true[chosen].flatten(1), found[0].group[chosen])
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
        keep(f"cafe/{args.out}", f"entries {args.entries}, {args.rounds} rounds, {args.order}", "psnr", row)


def _forged(victim: IndexedVictim, defense: FakeGradients) -> Row:
    """What the defense did to the first round: distances, draws and how much passed, over all parties and layers."""
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
        match = within_cases(result.inputs.flatten(1), data.inputs[result.indices].flatten(1), group)
        row |= quality(result.inputs, data.inputs[result.indices][match]) | {"returned": len(result)}
        row |= {"cpu_with_victim": rounded(clock.cpu)}
        name = f"{args.optimizer} {args.lr:g}, {args.rounds} rounds, {args.design}"
        keep(f"cafe/{args.out}", name, "psnr", row)


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
            keep(f"cafe/{args.out}", repr(defense), "loss_at_end", row | {"loss_at_end": row["loss"][-1]})


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
        options = {"parties": args.parties, "hidden": 64, "activation": args.activation, "body": args.body}
        victim = prepare(data, design, rounds, seed=seed, model_options=options)
        clock = Clock()
        with clocked(clock):
            result = Cafe(samples=n)(victim.transcript(), seed=0)
        assert result.indices is not None
        apart = (result.inputs - inputs[result.indices]).abs().amax(1)
        row: Row = {"table": args.table, "seed": seed, "activation": args.activation, "samples": n, "body": args.body}
        row |= {"batch": args.batch, "parties": args.parties, "rounds": rounds, "design": args.design}
        row |= {"returned": len(result), "cpu_all_with_victim": rounded(clock.cpu)}
        row |= {"rows_to_1e-3": int((apart < 1e-3).sum()), "median_error": rounded(float(apart.median()))}
        right = None if result.labels is None else int((result.labels == data.labels[result.indices]).sum())
        row |= {"labels_right": right, "notes": list(result.notes)}
        name = args.table + (f", {args.body}" if args.body == "logistic" else "")
        keep("cafe/tables", name, "median_error", row)


def run_conditions(args: argparse.Namespace) -> None:
    """Theorem 2's conditions, and equation 43's bound beside the true error of H from equation 44."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed, args.size)
        design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=seed)
        options = {
            "parties": args.parties,
            "channels": args.channels,
            "hidden": args.hidden,
            "activation": "leaky_relu",
        }
        victim = prepare(data, design, args.rounds, seed=seed, model_options=options, classes=10)
        transcript = frozen(victim)
        found = indexed_rounds(transcript)
        assert found is not None
        table = torch.zeros(args.rounds, args.samples, dtype=torch.float64)
        for t in range(args.rounds):
            table[t, design.indices(t)] = 1 / args.batch
        for layer, (_, h) in zip(found.layers, truth(victim), strict=True):
            seen = [transcript.select(t, (layer.weight, layer.bias)) for t in range(args.rounds)]
            # V by least squares, the gradient of all samples by the rounds' own combination, H by equation 44.
            v = torch.linalg.pinv(table) @ torch.stack([one[layer.bias] for one in seen]).double()
            whole = torch.einsum(
                "t,tij->ij", torch.linalg.pinv(table).sum(0), torch.stack([one[layer.weight] for one in seen]).double()
            )
            guess = torch.linalg.pinv(v).T @ whole
            error = float((guess - h.double()).norm() / h.double().norm())
            row = setting(args, seed) | {"rounds": args.rounds, "hidden": args.hidden, "channels": args.channels}
            row |= {
                "layer": layer.layer,
                "rank_s": found.rank,
                "rank_v": layer.rank,
                "theorem_two": found.theorem_two(layer),
            }
            row |= {"printed": layer.printed, "bound": layer.bound, "error_h": rounded(error)}
            keep("cafe/conditions", f"bound, {layer.layer}", "error_h", row)


def run_published(args: argparse.Namespace) -> None:
    """The paper's stochastic loops; each --only leaves one term of equation 9 out."""
    changes = {"": {}, "alpha": {"alpha": 0.0}, "beta": {"beta": 0.0}, "gamma": {"gamma": 0.0}, "xi": {"xi": 0.0}}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for without in args.without or [""]:
            data = images(args.data, args.samples, seed, args.size)
            design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=seed)
            iterations = tuple(args.iterations)
            victim = prepare(
                data,
                design,
                args.rounds or sum(iterations),
                seed=seed,
                model_options={"channels": args.channels, "hidden": args.hidden},
                classes=10,
            )
            options = {"alpha": args.alpha} | changes[without]
            attack = PublishedCafe(
                loop=args.loop,
                constants=args.constants,
                iterations=iterations,
                thresholds=tuple(args.thresholds),
                legacy_bias_correction=args.legacy,
                scaled=args.scaled,
                samples=args.samples,
                **options,
            )
            transcript, clock = frozen(victim), Clock()
            with clocked(clock):
                result = attack(transcript, seed=seed)
            row = setting(args, seed) | {"who": "published", "without": without, "attack": repr(attack)}
            row |= {"loop": args.loop, "alpha": attack.alpha, "channels": args.channels, "hidden": args.hidden}
            row |= _cost(result, clock, transcript.spent, args.rounds or sum(iterations))
            row |= _psnr(result, data.inputs) | {"notes": list(result.notes)}
            name = f"{args.loop.replace('_', ' ')}, {row['rounds']} rounds" + (
                f", without {without}" if without else ""
            )
            keep(f"cafe/{args.out}", name, "psnr", row)


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
        row |= _psnr(result, data.inputs, group)
        keep(f"cafe/{args.out}", f"closed form, {args.rounds} rounds", "psnr", row)


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
        match = within_cases(result.inputs.flatten(1), true[rows].flatten(1), group[rows])
    return quality(result.inputs, true[rows][match]) | {"returned": len(rows)}


def run_rivals(args: argparse.Namespace) -> None:
    """CAFE's single loop and, in the same loop over the same rounds, the paper's five rivals (table 2)."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed, args.size)
        design = RandomDraws(samples=args.samples, batch_size=args.batch, seed=seed)
        for objective in args.objectives:
            options = {"channels": args.channels, "hidden": args.hidden, "batch_norm": objective == "batch_norm"}
            victim = prepare(data, design, args.rounds, seed=seed, model_options=options, classes=10)
            if objective == "batch_norm":
                victim = settled(victim, args.data, args.size)
            kind = PublishedCafe if objective == "cafe" else partial(RivalCafe, objective=objective)
            attack = kind(
                loop="single_loop",
                constants=args.constants,
                scaled=True,
                thresholds=(),
                iterations=(args.iterations,),
                samples=args.samples,
            )
            clock = Clock()
            with clocked(clock):
                result = attack(victim.transcript(), seed=seed)
            row = setting(args, seed) | {"who": objective, "attack": repr(attack), "rounds": args.rounds} | options
            row |= {"iterations": args.iterations, "cpu_with_victim": rounded(clock.cpu), "size": args.size}
            row |= _psnr(result, data.inputs)
            flat = data.inputs.mean((-2, -1), keepdim=True).expand_as(data.inputs)
            row |= {"mean_color_psnr": quality(flat, data.inputs)["psnr"]}
            first, last = result.history[0][1], result.history[-1][1]
            keep(f"cafe/{args.out}", objective, "psnr", row | {"objective": [rounded(first), rounded(last)]})


def run_moving(args: argparse.Namespace) -> None:
    """The paper's single loop while the server trains: batch sizes, rates, features at which weights; DLG beside."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = images(args.data, args.samples, seed, args.size)
        for batch, lr, who in itertools.product(args.batches, args.lr, args.who):
            design = RandomDraws(samples=args.samples, batch_size=batch, seed=seed)
            options = {"channels": args.channels, "hidden": args.hidden}
            server = ServerStep(optimizer="adam", lr=lr) if lr else None
            victim = prepare(data, design, args.iterations, seed=seed, server=server, model_options=options, classes=10)
            attack = (RivalCafe if who == "dlg" else PublishedCafe)(
                follow=who != "first",
                loop="single_loop",
                constants=args.constants,
                scaled=True,
                thresholds=(),
                iterations=(args.iterations,),
                samples=args.samples,
            )
            clock = Clock()
            with clocked(clock):
                result = attack(victim.transcript(), seed=seed)
            row = setting(args, seed) | {"batch": batch, "lr": lr, "who": who, "attack": repr(attack)} | options
            row |= {"iterations": args.iterations, "cpu_with_victim": rounded(clock.cpu), "size": args.size}
            row |= _psnr(result, data.inputs) | {"losses": losses(victim, [0, args.iterations - 1])}
            flat = data.inputs.mean((-2, -1), keepdim=True).expand_as(data.inputs)
            row |= {"mean_color_psnr": quality(flat, data.inputs)["psnr"]}
            keep(f"cafe/{args.out}", f"{who}, K {batch}, Adam {lr:g}", "psnr", row)


def settled(victim: IndexedVictim, path: str, size: int | None) -> IndexedVictim:
    """The same parties, whose batch norms have the mean and variance of 200 other images of the same file."""
    model = victim.knowledge.model
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # a plain average over the batches that are seen
    with torch.no_grad(), in_mode(model, training=True):
        model(images(path, 200, 10_000, size).inputs)
    return replace(victim, buffers=state_of(model)[1])


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
            one_case = torch.zeros(len(true), dtype=torch.int64)
            match = within_cases(result.inputs.flatten(1), true.flatten(1), one_case)
            row = setting(args, seed) | {"who": name, "attack": repr(presets[name]), "status": result.status}
            row |= {"matching": "one to one by distance", "cpu": rounded(clock.cpu)}
            first, last = result.history[0][1], result.history[-1][1]
            row |= {"objective": [rounded(first), rounded(last)]}
            keep(f"cafe/{args.out}", name, "psnr", row | quality(result.inputs, true[match]))


def _images(parser: argparse.ArgumentParser, out: str, *, samples: int = 800, batch: int = 40) -> None:
    """Options of all commands on images."""
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--out", default=out)
    parser.add_argument("--parties", type=int, default=4)


def _rounds(parser: argparse.ArgumentParser, rounds: int, design: str = "random") -> None:
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--design", choices=["random", "epochs", "partitions"], default=design)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)

    exact = commands.add_parser("exact", help=run_exact.__doc__)
    _images(exact, "exact")
    _rounds(exact, 820)
    exact.add_argument("--mode", default="auto")
    exact.add_argument("--activation", default="relu")
    exact.add_argument("--double-softmax", action="store_true")
    exact.add_argument("--steps", type=int, nargs="+", default=[30, 250, 350])
    exact.add_argument("--invert", action="store_true")
    exact.add_argument("--some", type=int, default=0, help="step III on so many samples alone")
    exact.set_defaults(go=run_exact)

    fake = commands.add_parser("fake", help=run_fake.__doc__)
    _images(fake, "fake", samples=200, batch=20)
    fake.add_argument("--rounds", type=int, default=1600)
    fake.add_argument("--steps", type=int, nargs="+", default=[30, 250])
    fake.add_argument("--order", default="value")
    fake.add_argument("--entries", default="all")
    fake.add_argument("--candidates", type=int, default=1000)
    fake.add_argument("--tau", type=float)
    fake.add_argument("--some", type=int, default=0, help="step III on so many samples alone")
    fake.set_defaults(go=run_fake)

    training = commands.add_parser("training", help=run_training.__doc__)
    _images(training, "training", samples=100, batch=20)
    _rounds(training, 15, "partitions")
    training.add_argument("--steps", type=int, nargs="+", default=[30, 250])
    training.add_argument("--optimizer", default="sgd")
    training.add_argument("--lr", type=float, default=1e-3)
    training.add_argument("--mode", default="auto")
    training.set_defaults(go=run_training)

    losses = commands.add_parser("losses", help=run_losses.__doc__)
    _images(losses, "losses")
    losses.add_argument("--rounds", type=int, default=300)
    losses.add_argument("--every", type=int, default=20)
    losses.add_argument("--lr", type=float, default=0.1)
    losses.add_argument("--channels", type=int, default=8)
    losses.add_argument("--candidates", type=int, default=1000)
    losses.add_argument("--orders", nargs="+", default=["none", "value", "magnitude"])
    losses.set_defaults(go=run_losses)

    table = commands.add_parser("table", help=run_table.__doc__)
    table.add_argument("--table", choices=["breast_cancer", "wine", "iris"], default="breast_cancer")
    table.add_argument("--batch", type=int, default=32)
    _rounds(table, 0)
    table.add_argument("--parties", type=int, default=3)
    table.add_argument("--activation", default="leaky_relu")
    table.add_argument("--body", choices=["flat", "logistic"], default="flat")
    table.add_argument("--seeds", type=int, default=1)
    table.add_argument("--first-seed", type=int, default=1)
    table.set_defaults(go=run_table)

    conditions = commands.add_parser("conditions", help=run_conditions.__doc__)
    _images(conditions, "conditions", samples=20, batch=5)
    conditions.add_argument("--rounds", type=int, default=40)
    conditions.add_argument("--hidden", type=int, default=64)
    conditions.add_argument("--channels", type=int, default=16)
    conditions.add_argument("--size", type=int, help="side of the images in pixels; as they are if left out")
    conditions.set_defaults(go=run_conditions)

    published = commands.add_parser("published", help=run_published.__doc__)
    _images(published, "published", samples=200, batch=20)
    published.add_argument("--rounds", type=int, default=0, help="different rounds; 0: one for each iteration")
    published.add_argument("--loop", default="nested")
    published.add_argument("--constants", default="mnist")
    published.add_argument("--iterations", type=int, nargs="+", default=[8000, 8000, 8000])
    published.add_argument("--thresholds", type=float, nargs="*", default=[1e-9, 5e-9])
    published.add_argument("--alpha", type=float, default=0.0)
    published.add_argument("--legacy", action="store_true")
    published.add_argument("--scaled", action="store_true", help="bring table 9's constants to K and the tile")
    published.add_argument("--channels", type=int, default=64)
    published.add_argument("--hidden", type=int, default=256)
    published.add_argument("--size", type=int, help="side of the images in pixels; as they are if left out")
    published.add_argument("--without", nargs="+", choices=["", "alpha", "beta", "gamma", "xi"])
    published.set_defaults(go=run_published)

    against = commands.add_parser("against", help=run_against.__doc__)
    _images(against, "published", samples=200, batch=20)
    _rounds(against, 210)
    against.add_argument("--steps", type=int, nargs="+", default=[15])
    against.add_argument("--polish", type=int, default=6)
    against.set_defaults(go=run_against)

    rivals = commands.add_parser("rivals", help=run_rivals.__doc__)
    _images(rivals, "rivals", samples=8, batch=4)
    rivals.add_argument("--rounds", type=int, default=40)
    rivals.add_argument("--constants", default="cifar10")
    rivals.add_argument("--iterations", type=int, default=500)
    rivals.add_argument("--size", type=int, default=16, help="side of the images in pixels")
    rivals.add_argument("--channels", type=int, default=16)
    rivals.add_argument("--hidden", type=int, default=64)
    objectives = ["cafe", *OBJECTIVES]
    rivals.add_argument("--objectives", nargs="+", choices=objectives, default=objectives)
    rivals.set_defaults(go=run_rivals)

    moving = commands.add_parser("moving", help=run_moving.__doc__)
    _images(moving, "moving", samples=8)
    moving.add_argument("--constants", default="mnist")
    moving.add_argument("--iterations", type=int, default=500)
    moving.add_argument("--batches", type=int, nargs="+", default=[4])
    moving.add_argument("--lr", type=float, nargs="+", default=[1e-5, 1e-4], help="Adam's rates of the server; 0: none")
    moving.add_argument("--who", nargs="+", choices=["cafe", "first", "dlg"], default=["cafe", "first", "dlg"])
    moving.add_argument("--size", type=int, default=16, help="side of the images in pixels")
    moving.add_argument("--channels", type=int, default=16)
    moving.add_argument("--hidden", type=int, default=64)
    moving.set_defaults(go=run_moving)

    baselines = commands.add_parser("baselines", help=run_baselines.__doc__)
    _images(baselines, "baselines")
    baselines.add_argument("--steps", type=int, default=200)
    baselines.add_argument("--attacks", nargs="+", default=["dlg", "cosine", "sapag"])
    baselines.set_defaults(go=run_baselines)

    args = parser.parse_args()
    args.go(args)


if __name__ == "__main__":
    main()
