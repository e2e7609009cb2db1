"""Time and memory of one gradient-matching step.

    python benchmarks/matching.py speed  [--rounds 7] [--model torchvision:resnet18] [--size 32] [--batch 8]
    python benchmarks/matching.py memory [--sizes 8 64 256] [--microbatch 8]

`speed` compares one step of the engine (cosine distance and total variation, as in Inverting Gradients) with a plain
double-backward loop, and with breaching's own step where that package is installed.

`memory` runs one step per batch size, each in a process of its own, whole and in micro-batches, and prints how far the
peak rises above what the process needs before the step.

Each result is a record in results/matching/.
"""

import argparse
from typing import Any

from harness import apart, breaching_step, emit, engine_step, medians, memory, parsed, plain_step, problem, rise, turns

from seepage.attacks.search.first_order import FirstOrderProblem


def speed(options: argparse.Namespace) -> None:
    found, inputs, labels = problem(options.model, options.batch, size=options.size)
    steps = {
        "engine": lambda: engine_step(found, inputs, labels),
        "plain loop": lambda: plain_step(found, inputs, labels),
        **breaching_step(found, inputs, labels),
    }
    taken = medians(turns(steps, options.rounds))
    plain = taken["plain loop"].processor
    row: dict[str, Any] = {
        name: {
            "ms": round(wall * 1e3, 1),
            "cpu_ms": round(processor * 1e3, 1),
            "cpu_ratio_to_plain": round(processor / plain, 3),
        }
        for name, (wall, processor) in taken.items()
    }
    keep("speed", options.model, "times_faster", options, row | {"times_faster": round(plain / taken["engine"][1], 3)})


def sizes(options: argparse.Namespace) -> None:
    for batch in options.sizes:
        for microbatch in (0, options.microbatch):
            given = {"model": options.model, "size": options.size, "batch": batch, "microbatch": microbatch}
            words = [word for key, value in given.items() for word in (f"--{key}", value)]
            print(apart(__file__, "one-step", *words, "--step", options.step), end="", flush=True)


def one_step(options: argparse.Namespace) -> None:
    microbatch = options.microbatch or None
    exact, inputs, labels = problem(options.model, options.batch, size=options.size, microbatch=microbatch)
    found = FirstOrderProblem(**vars(exact)) if options.step == "first_order" else exact
    found.evaluate(inputs[:1], labels[:1])  # library buffers are there before the first look
    rose = rise(lambda: found.evaluate(inputs, labels))
    result = {"microbatch": microbatch, "step": options.step, "peak_mib": round(memory(), 1), "peak_rise_mib": rose}
    name = f"{options.model}, batch {options.batch}, micro-batch {microbatch}"
    keep("memory", name, "peak_rise_mib", options, result)


def keep(study: str, name: str, metric: str, options: argparse.Namespace, result: dict[str, Any]) -> None:
    emit(study, name, metric, result, model=options.model, image=options.size, batch=options.batch)


if __name__ == "__main__":
    options = parsed(
        __doc__, kind=["speed", "memory", "one-step"], model="torchvision:resnet18", size=32, batch=8, rounds=7,
        microbatch=8, step="exact", sizes=[8, 64, 256],
    )  # fmt: skip
    {"speed": speed, "memory": sizes, "one-step": one_step}[options.kind](options)
