"""FedLeak on ReLU networks with what late layers give away: what each part adds.

    python experiments/fedleak.py --data ../shared/data/cifar10.npz --width 16 --batch 4 --seeds 3

A victim is a ResNet-10 of some width, fresh or after some steps of SGD, the mode its update was taken in, and a batch
of images that development did not see (`common.draw`). Labels are known. Each variant is FedLeak with its own distance,
priors and direction, and so many steps of two evaluations (1: the start itself):

- `published`: from uniform noise, without anything new; a rate of 1 over the number of steps, so that a value can move
  as far in all as in 10,000 steps at 1e-4.
- `features, start`: from images that a decoder makes of the head's features; `features`: held to them as well.
- `activations, start`: from images that a decoder makes of what the last block reads; `activations`: held to it.
- `inversion`: from these after a few steps of Gauss-Newton on the activations, and held to them.

A variant that cannot start as it says is kept as a row with the reason, and without a number. One record per victim,
variant and seed goes to results/matching/fedleak.jsonl; what is there already is not made again. With `--probe` it is
the landscape probe (`seepage.attacks.exposure.landscape`) of the variant's whole objective, and the same cosine at its
start.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from common import Clock, Row, clocked, draw, flat_square, keep, kept, measure, parts
from convolutions import trained
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks import Attack
from seepage.attacks.exposure import landscape
from seepage.attacks.guided import GuidedMatching, fedleak_guided
from seepage.attacks.guided.matching import FeatureAgreement
from seepage.attacks.search import fedleak
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.layers import LayerPrior
from seepage.attacks.search.objective import MatchingObjective
from seepage.attacks.search.priors import Prior
from seepage.attacks.search.problem import Evaluation, Problem
from seepage.base.nn import calls_in_pass, generator
from seepage.measure.metrics import align_guess
from seepage.measure.metrics.image import psnr, ssim
from seepage.measure.metrics.interval import bootstrap_interval
from seepage.papers.records import keep_measured

STUDY = "matching/fedleak"
NOISES = (0.003, 0.03)
DRAWS = 4
"""Of the landscape probe: standard deviations of the noise, and how often it is drawn."""
RATE = 4e-3
"""Of the variants that start near an image; chosen on development images."""
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "features, start": {"known": "features", "start": "decoder", "hold": 0.0},
    "features": {"known": "features", "start": "decoder"},
    "activations, start": {"known": "activations", "start": "decoder", "hold": 0.0},
    "activations": {"known": "activations", "start": "decoder"},
    "inversion": {"known": "activations", "start": "inversion"},
}
UNKNOWN = "The search had no "
"""How a note begins where what a variant starts from cannot be had."""


def variant(name: str, steps: int) -> Attack:
    if name == "published":
        return fedleak(steps=steps, lr=1 / steps, labels="auto")
    return fedleak_guided(steps=steps, lr=RATE, **VARIANTS[name])


def baselines(batch: Batch) -> Row:
    """Scores of the mean color, and PSNR of grey."""
    flat, grey = flat_square(batch.inputs), torch.full_like(batch.inputs, 0.5)
    return {
        "flat_psnr": float(psnr(flat, batch.inputs).mean()),
        "flat_ssim": float(ssim(flat, batch.inputs).mean()),
        "grey_psnr": float(psnr(grey, batch.inputs).mean()),
    }


def scored(attack: Attack, model: nn.Module, batch: Batch, mode: Literal["eval", "train"]) -> Row:
    """PSNR with its 95 % interval over the examples, SSIM and time; the reason alone where the start is refused."""
    seen, clock = record(model, batch, client=FedSGD(mode=mode), known=["labels"]), Clock()
    with clocked(clock):
        found = attack(seen, seed=0)
    row: Row = {"cpu_s": clock.cpu, "wall_s": clock.wall, "notes": list(found.notes)}
    if found.notes and found.notes[0].startswith(UNKNOWN):
        return {**row, "refused": found.notes[0]}
    each = psnr(align_guess(found, batch, (0.0, 1.0)).guesses, batch.inputs)
    ends = bootstrap_interval(each, torch.zeros(len(each), dtype=torch.long)) if len(each) > 1 else None
    return {**row, **measure(found, batch), "each": each.tolist(), "interval": ends}


@dataclass(frozen=True)
class Objective:
    """A search's whole objective, in the place of a problem."""

    whole: MatchingObjective

    def evaluate(self, inputs: Tensor, labels: Tensor, extra: Callable[[], Tensor] | None = None) -> Evaluation:
        return self.whole.at(inputs, labels)[0]

    def distance_at(self, inputs: Tensor, labels: Tensor) -> float:
        return self.whole.value_at(inputs, labels)


def probe(model: nn.Module, batch: Batch, name: str) -> Row:
    """Cosines of the descent direction with the way to the truth, beside the truth and at the variant's start.

    The truth is put in the order of what the variant knows, so that each candidate is held to its own example.
    """
    seen = record(model, batch, client=FedSGD(mode="eval"), known=["labels"])
    knowledge, observed = seen.knowledge, seen[0]
    guide = variant(name, 1)
    search = guide.started(knowledge, observed) if isinstance(guide, GuidedMatching) else guide
    assert isinstance(search, GradientMatching)
    layers = tuple(prior for prior in search.priors if isinstance(prior, LayerPrior))
    truth, labels = batch.inputs, batch.labels
    for held in (prior for prior in layers if isinstance(prior, FeatureAgreement)):
        calls = calls_in_pass(model, [held.layer], observed.params, truth, buffers=observed.buffers)
        order = torch.cdist(held.features, calls[held.layer][0].input.flatten(1)).argmin(1)
        truth, labels = truth[order], labels[order]
    problem = Problem.of(observed, knowledge, search.distance, None)
    inputs = tuple(prior for prior in search.priors if isinstance(prior, Prior))
    objective = Objective(MatchingObjective(problem, knowledge, observed, inputs, layers))
    near = landscape(objective, truth, labels, noises=NOISES, draws=DRAWS)
    like = next(iter(observed.params.values()))
    space = search.parameters.start(len(batch), knowledge, like, generator(0, "start", 0))
    start = space.decode(space.unknowns)
    way, descent = (truth - start).flatten().double(), -objective.evaluate(start, labels).by_inputs.flatten().double()
    cosines = {f"cosine at {noise}": mean for noise, mean in zip(NOISES, near.means, strict=True)}
    return {**cosines, "cosine at start": float(way @ descent / way.norm() / descent.norm())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--width", type=int, nargs="+", default=[16])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--mode", nargs="+", choices=["eval", "train"], default=["eval"])
    parser.add_argument("--trained", type=int, default=0, help="SGD steps before the round")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--probe", action="store_true", help="the landscape probe in place of the attacks")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    train, test = parts(args.data)
    classes, data = int(train.labels.max()) + 1, Path(args.data).stem
    done = kept(f"{STUDY}-probe" if args.probe else STUDY)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for width, seed, mode in itertools.product(args.width, seeds, args.mode):
        model = build(Architecture("resnet", {"width": width}), tuple(train.inputs.shape[1:]), classes, seed=seed)
        model = trained(model, train, args.trained, seed)
        for n, name in itertools.product(args.batch, args.variants):
            weights = f"after {args.trained} steps" if args.trained else "fresh"
            words = f"{name}: {data}, width {width}, {weights}, {mode} mode, batch {n}, {args.steps} steps"
            if (words, str(seed)) in done:
                continue
            batch = draw(test, n, seed)
            row: Row = {"data": data, "seed": seed, "width": width, "mode": mode, "trained": args.trained, "batch": n}
            row |= {"classes": classes, "variant": name, "steps": args.steps, **baselines(batch)}
            if args.probe:
                row |= probe(model, batch, name)
                keep(f"{STUDY}-probe", words, "cosine at start", row)
                continue
            row |= scored(variant(name, args.steps), model, batch, mode)
            shown = ("width", "batch", "mode", "variant", "seed", "psnr", "ssim", "flat_psnr", "cpu_s", "refused")
            print({key: row[key] for key in shown if key in row}, flush=True)
            interval = row.pop("interval", None)
            value, data_name, number = row.pop("psnr", None), row.pop("data"), row.pop("seed")
            keep_measured(STUDY, words, "psnr", value, seed=number, interval=interval, data=data_name, **row)


if __name__ == "__main__":
    main()
