"""How well the first-order step agrees with the exact one, whether it ends as high, and what a threshold costs.

    python benchmarks/matching_slopes.py agreement [--nets convnet resnet10 resnet18 vgg16] [--batches 1 16]
    python benchmarks/matching_slopes.py psnr      [--steps 400] [--seeds 0 1]
    python benchmarks/matching_slopes.py threshold

`agreement` compares the slopes of an Inverting Gradients step by the inputs, in single precision, at random images.
`psnr` runs Inverting Gradients with either step on a batch of two packaged photographs. `threshold` times the median
of as many magnitudes as a ResNet-10 has weights, by `Tensor.kthvalue` and by `numpy.partition`. JSON lines.
"""

import argparse
import json
import statistics
import sys
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

VICTIMS = {
    "convnet, ReLU, no norm": ({"width": 16}, "eval"),
    "convnet, sigmoid, batch norm in train mode": ({"width": 16, "activation": "sigmoid", "batch_norm": True}, "train"),
}


def emit(kind: str, result: dict[str, Any]) -> None:
    command = f"python benchmarks/matching_slopes.py {' '.join(sys.argv[1:])}"
    print(json.dumps({"benchmark": f"slopes-{kind}", **result, "torch": torch.__version__, "command": command}))
    sys.stdout.flush()


def agreement(options: argparse.Namespace) -> None:
    for name in options.nets:
        for batch in options.batches:
            exact, inputs, labels = problem(name, batch, "ig")
            theirs = exact.evaluate(inputs, labels).by_inputs.double().flatten()
            own = FirstOrderProblem(exact).fitted(inputs, labels).evaluate(inputs, labels).by_inputs.double().flatten()
            error = float((own - theirs).norm() / theirs.norm())
            cosine = float(own @ theirs / own.norm() / theirs.norm())
            emit("agreement", {"model": name, "batch": batch, "relative_error": error, "cosine": round(cosine, 8)})


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
                emit("psnr", {"victim": name, "steps": options.steps, "seed": seed, "slopes": slopes, **rounded})


def threshold(options: argparse.Namespace) -> None:
    size = 4_902_090
    numbers = torch.randn(size, generator=generator(0, "threshold")).abs()
    ways = {
        "kthvalue": lambda: numbers.kthvalue(size // 2 + 1),
        "partition": lambda: np.partition(numbers.numpy(), size // 2),
    }
    times = {name: statistics.median(time_once(way)[1] for _ in range(5)) for name, way in ways.items()}
    emit("threshold", {"entries": size, "cpu_ms": {name: round(seconds * 1e3, 1) for name, seconds in times.items()}})


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
