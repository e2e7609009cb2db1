"""How well the first-order step agrees with the exact one, whether it ends as high, and what a threshold costs.

    python benchmarks/matching_slopes.py agreement [--nets convnet resnet10 resnet18 vgg16] [--batches 1 16]
    python benchmarks/matching_slopes.py psnr      [--steps 400] [--seeds 0 1]
    python benchmarks/matching_slopes.py threshold

`agreement` compares the slopes of an Inverting Gradients step by the inputs, in single precision, at random images.
`psnr` runs Inverting Gradients with either step on a batch of two packaged photographs. `threshold` times the median
of as many magnitudes as a ResNet-10 has weights, by `Tensor.kthvalue` and by `numpy.partition`.
Records go to results/matching/slopes.jsonl.
"""

import argparse
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matching import time_once
from matching_steps import problem

from seepage import Architecture, Batch, FedSGD, build, record, score
from seepage.attacks.matching import inverting_gradients
from seepage.attacks.matching.first_order import FirstOrderProblem
from seepage.core.nn import generator
from seepage.data import load
from seepage.papers.records import keep_measured

VICTIMS = {
    "convnet, ReLU, no norm": ({"width": 16}, "eval"),
    "convnet, sigmoid, batch norm in train mode": ({"width": 16, "activation": "sigmoid", "batch_norm": True}, "train"),
}


def emit(kind: str, name: str, metric: str, result: dict[str, Any]) -> None:
    rest = {key: value for key, value in result.items() if key not in (metric, "seed")}
    seed = result.get("seed")
    keep_measured("matching/slopes", name, metric, result[metric], seed=seed, benchmark=f"slopes-{kind}", **rest)


def agreement(options: argparse.Namespace) -> None:
    for name in options.nets:
        for batch in options.batches:
            exact, inputs, labels = problem(name, batch, "ig")
            theirs = exact.evaluate(inputs, labels).by_inputs.double().flatten()
            own = FirstOrderProblem(exact).fitted(inputs, labels).evaluate(inputs, labels).by_inputs.double().flatten()
            error = float((own - theirs).norm() / theirs.norm())
            cosine = float(own @ theirs / own.norm() / theirs.norm())
            row = {"model": name, "batch": batch, "relative_error": error, "one_minus_cosine": 1 - cosine}
            emit("agreement", f"{name}, batch {batch}", "relative_error", row)


def quality(options: argparse.Namespace) -> None:
    data = load("photos", size=32)
    private = data.batch(data.private)
    contrast = private.inputs.std((1, 2, 3)) >= 0.2  # on a nearly even tile the mean color is a good reconstruction
    batch = Batch(private.inputs[contrast][:2], private.labels[contrast][:2])
    for name, (arguments, mode) in VICTIMS.items():
        model = build(Architecture("convnet", arguments), (3, 32, 32), len(data.classes))
        seen = record(model, batch, client=FedSGD(mode=mode), told={"labels"})
        attack = inverting_gradients(steps=options.steps, tv=1e-3, labels="given")
        for seed in options.seeds:
            for slopes in ("exact", "first_order"):
                found = score(replace(attack, gradients=slopes)(seen, seed=seed), batch)
                numbers = {"psnr": found.psnr, "ssim": found.ssim, "mean_color_psnr": found.mean_color_psnr}
                rounded = {key: round(float(value), 3) for key, value in numbers.items()}
                row = {"victim": name, "steps": options.steps, "seed": seed, "slopes": slopes, **rounded}
                emit("psnr", f"{slopes}, {name}", "psnr", row)


def threshold(options: argparse.Namespace) -> None:
    size = 4_902_090
    numbers = torch.randn(size, generator=generator(0, "threshold")).abs()
    ways = {
        "kthvalue": lambda: numbers.kthvalue(size // 2 + 1),
        "partition": lambda: np.partition(numbers.numpy(), size // 2),
    }
    times = {name: statistics.median(time_once(way)[1] for _ in range(5)) for name, way in ways.items()}
    row = {"entries": size, "cpu_ms": {name: round(seconds * 1e3, 1) for name, seconds in times.items()}}
    ratio = round(times["kthvalue"] / times["partition"], 2)
    emit("threshold", "threshold", "kthvalue_over_partition", {**row, "kthvalue_over_partition": ratio})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["agreement", "psnr", "threshold"])
    parser.add_argument("--nets", nargs="+", default=["convnet", "resnet10", "resnet18", "vgg16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"agreement": agreement, "psnr": quality, "threshold": threshold}[options.kind](options)


if __name__ == "__main__":
    main()
