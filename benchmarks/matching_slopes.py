"""How well the first-order step agrees with the exact one, whether it ends as high, and what a threshold costs.

    python benchmarks/matching_slopes.py agreement [--nets convnet resnet10 resnet18 vgg16] [--batches 1 16]
    python benchmarks/matching_slopes.py psnr      [--steps 400] [--seeds 0 1]
    python benchmarks/matching_slopes.py pairs     --data cifar10.npz [--images 16] [--tv 0.02]
    python benchmarks/matching_slopes.py threshold

`agreement` compares the slopes of an Inverting Gradients step by the inputs, in single precision, at random images.
`psnr` runs Inverting Gradients with either step on a batch of two packaged photographs. `pairs` runs it on test images
of a file from number 300 on, one by one, each on a ConvNet of its own seed: with the exact step, with the first-order
one, and with a first-order one that forgets what it learns of a good move's length. `threshold` times the median of as
many magnitudes as a ResNet-18 has weights, by `Tensor.kthvalue`, `numpy.partition` and by way of a sampled bracket.
Records go to results/matching/slopes.jsonl.
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from harness import medians, parsed, problem, turns
from kept import keep_measured
from scipy import stats

from seepage import Architecture, Batch, FedSGD, build, record, score
from seepage.attacks.search import inverting_gradients
from seepage.attacks.search.first_order import FirstOrderProblem, Move
from seepage.attacks.search.problem import Evaluation
from seepage.attacks.search.selection import kth_smallest
from seepage.base.nn import generator
from seepage.federation.data import load

VICTIMS = {
    "convnet, ReLU, no norm": ({"width": 16}, "eval"),
    "convnet, sigmoid, batch norm in train mode": ({"width": 16, "activation": "sigmoid", "batch_norm": True}, "train"),
}


def keep(kind: str, name: str, metric: str, result: dict[str, Any]) -> None:
    rest = {key: value for key, value in result.items() if key not in (metric, "seed")}
    facts = {"benchmark": f"slopes-{kind}", **rest}
    keep_measured("matching/slopes", name, metric, result[metric], seed=result.get("seed"), **facts)


def agreement(options: argparse.Namespace) -> None:
    for name in options.nets:
        for batch in options.batches:
            exact, inputs, labels = problem(name, batch)
            theirs = exact.evaluate(inputs, labels).by_inputs.double().flatten()
            step = FirstOrderProblem(**vars(exact))
            step.evaluate(inputs, labels)  # learns how far to move
            own = step.evaluate(inputs, labels).by_inputs.double().flatten()
            error = float((own - theirs).norm() / theirs.norm())
            cosine = float(own @ theirs / own.norm() / theirs.norm())
            row = {"model": name, "batch": batch, "relative_error": error, "one_minus_cosine": 1 - cosine}
            keep("agreement", f"{name}, batch {batch}", "relative_error", row)


def quality(options: argparse.Namespace) -> None:
    data = load("photos", size=32)
    private = data.batch(data.private)
    contrast = private.inputs.std((1, 2, 3)) >= 0.2  # on a nearly even tile the mean color is a good reconstruction
    batch = Batch(private.inputs[contrast][:2], private.labels[contrast][:2])
    for name, (arguments, mode) in VICTIMS.items():
        model = build(Architecture("convnet", arguments), (3, 32, 32), len(data.classes))
        seen = record(model, batch, client=FedSGD(mode=mode), known={"labels"})
        attack = inverting_gradients(steps=options.steps, tv=1e-3, labels="given")
        for seed in options.seeds:
            for slopes in ("exact", "first_order"):
                found = score(replace(attack, gradients=slopes)(seen, seed=seed), batch)
                numbers = {"psnr": found.psnr, "ssim": found.ssim, "mean_color_psnr": found.mean_color_psnr}
                rounded = {key: round(float(value), 3) for key, value in numbers.items()}
                row = {"victim": name, "steps": options.steps, "seed": seed, "slopes": slopes, **rounded}
                keep("psnr", f"{slopes}, {name}", "psnr", row)


remembers = FirstOrderProblem.evaluate


def forgets(it: FirstOrderProblem, *given: Any) -> Evaluation:
    """`FirstOrderProblem.evaluate` that learns at its first point alone."""
    found = remembers(it, *given)
    it.reach = vars(it).setdefault("first_reach", it.reach)
    return found


def pairs(options: argparse.Namespace) -> None:
    data, found, moves = load(options.data), defaultdict(list), defaultdict(list)
    move, made = FirstOrderProblem._moved, [0]

    def counted(it: FirstOrderProblem, *given: Any) -> Move:
        made[0] += 1
        return move(it, *given)

    FirstOrderProblem._moved = counted  # type: ignore[method-assign, assignment]
    it = inverting_gradients(steps=options.steps, tv=options.tv, schedule="cosine", labels="given")
    for image in range(options.images):
        batch = data.batch(data.private[300 + image : 301 + image])
        model = build(Architecture("convnet"), data.input_shape, len(data.classes), seed=image)
        seen = record(model, batch, client=FedSGD(mode="eval"), known={"labels"})
        for name in ("exact", "first_order", "forgets"):
            FirstOrderProblem.evaluate = forgets if name == "forgets" else remembers  # type: ignore[method-assign]
            chosen = replace(it, gradients="exact" if name == "exact" else "first_order")
            made[0] = 0
            found[name].append(float(score(chosen(seen, seed=image), batch).psnr))
            moves[name].append(made[0] / options.steps)
    for name, other in (("first_order", "exact"), ("forgets", "exact"), ("first_order", "forgets")):
        gaps = torch.tensor([a - b for a, b in zip(found[name], found[other], strict=True)]).double()
        half = float(gaps.std()) / len(gaps) ** 0.5 * float(stats.t.ppf(0.975, len(gaps) - 1))
        row = {"images": len(gaps), "steps": options.steps, "tv": options.tv, "psnr": statistics.mean(found[name])}
        row |= {"mean_gap_db": float(gaps.mean()), "half_width_95": half, "moves": statistics.mean(moves[name])}
        keep("pairs", f"{name} less {other}, tv {options.tv}", "mean_gap_db", row)


def threshold(options: argparse.Namespace) -> None:
    size = 11_173_962
    numbers = torch.randn(size, generator=generator(0, "threshold")).abs()
    ways = {
        "kthvalue": lambda: numbers.kthvalue(size // 2 + 1),
        "partition": lambda: np.partition(numbers.numpy(), size // 2),
        "bracket": lambda: kth_smallest([numbers], size // 2),
    }
    times = {name: taken.processor for name, taken in medians(turns(ways, 5)).items()}
    row = {"entries": size, "cpu_ms": {name: round(seconds * 1e3, 1) for name, seconds in times.items()}}
    ratio = round(times["partition"] / times["bracket"], 2)
    keep("threshold", "threshold, ResNet-18", "partition_over_bracket", {**row, "partition_over_bracket": ratio})


if __name__ == "__main__":
    options = parsed(
        __doc__, kind=["agreement", "psnr", "pairs", "threshold"], nets=["convnet", "resnet10", "resnet18", "vgg16"],
        batches=[1, 16], steps=400, data=None, images=16, tv=0.02, seeds=[0, 1],
    )  # fmt: skip
    {"agreement": agreement, "psnr": quality, "pairs": pairs, "threshold": threshold}[options.kind](options)
