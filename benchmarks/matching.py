"""Time and memory of one gradient-matching step.

    python benchmarks/matching.py speed  [--rounds 7] [--model torchvision:resnet18] [--size 32] [--batch 8]
    python benchmarks/matching.py memory [--sizes 8 64 256] [--microbatch 8]

`speed` compares one step of the engine (cosine distance and total variation, as in Inverting Gradients) with a plain
double-backward loop written out here, and with breaching's own step where that package is installed. All
take turns in one process, so that a busy machine slows all alike; what counts is the ratio. Both clocks are printed:
wall time, and processor time, which other programs disturb less.

`memory` runs one step per batch size, each in a process of its own, whole and in micro-batches, and prints how far the
peak rises above what the process needs before the step.

Each result is a record in results/matching/.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.first_order import FirstOrderProblem
from seepage.attacks.search.priors import TotalVariation
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator
from seepage.papers.records import keep_measured


def problem(model_name: str, size: int, batch: int, microbatch: int | None, mode: str) -> tuple[Problem, Batch]:
    """A matching problem on random images; what they show does not change a step's cost."""
    model = build(Architecture(model_name), (3, size, size), 10)
    draw = generator(0, "benchmark")
    truth = Batch(torch.rand((batch, 3, size, size), generator=draw), torch.randint(10, (batch,), generator=draw))
    client = FedSGD(mode="eval" if mode == "eval" else "train")
    transcript = record(model, truth, client=client)
    return Problem.of(transcript[0], transcript.knowledge, Cosine(), microbatch), truth


def engine_step(found: Problem, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """What the engine does per step, less the optimizer's own arithmetic."""
    evaluation = found.evaluate(inputs, labels)
    leaf = inputs.detach().requires_grad_()
    penalty = TotalVariation(1e-4)(leaf[None]).sum()
    evaluation.by_inputs + torch.autograd.grad(penalty, leaf)[0]


def plain_step(found: Problem, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """The usual double-backward loop, written out: the stand-in for other packages."""
    model, target = found.model.eval(), list(found.target.values())
    candidate = inputs.detach().requires_grad_()
    loss = F.cross_entropy(model(candidate), labels)
    gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    product = sum((a * b).sum() for a, b in zip(gradient, target, strict=True))
    own = sum(a.pow(2).sum() for a in gradient)
    theirs = sum(b.pow(2).sum() for b in target)
    distance = 1 - product / (own.sqrt() * theirs.sqrt())
    down = (candidate[..., 1:, :] - candidate[..., :-1, :]).abs().mean()
    across = (candidate[..., :, 1:] - candidate[..., :, :-1]).abs().mean()
    (distance + 1e-4 * (down + across)).backward(inputs=[candidate])


def breaching_step(found: Problem, inputs: torch.Tensor, labels: torch.Tensor) -> Callable[[], None] | None:
    """One objective and gradient of breaching's Inverting Gradients attacker, or None where it is not installed."""
    try:
        from breaching.attacks.auxiliaries.objectives import CosineSimilarity
        from breaching.attacks.auxiliaries.regularizers import TotalVariation as TheirVariation
    except ImportError:
        return None
    objective = CosineSimilarity()
    objective.initialize(torch.nn.CrossEntropyLoss(), _implementation(), None)
    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    variation = TheirVariation(setup, scale=1e-4, inner_exp=1, outer_exp=1)
    model, target = found.model.eval(), list(found.target.values())

    def step() -> None:
        candidate = inputs.detach().requires_grad_()
        value, _ = objective(model, target, candidate, labels)
        (value + variation(candidate)).backward(inputs=[candidate])

    return step


def _implementation() -> object:
    """The settings breaching reads from its configuration, at its defaults."""
    from types import SimpleNamespace

    return SimpleNamespace(JIT=None, mixed_precision=False, grad_scaling=False)


def time_once(step: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - processor


def speed(options: argparse.Namespace) -> None:
    found, truth = problem(options.model, options.size, options.batch, None, "eval")
    inputs = torch.rand(truth.inputs.shape, generator=generator(0, "candidate"))
    steps: dict[str, Callable[[], None]] = {
        "engine": lambda: engine_step(found, inputs, truth.labels),
        "plain loop": lambda: plain_step(found, inputs, truth.labels),
    }
    theirs = breaching_step(found, inputs, truth.labels)
    if theirs is not None:
        steps["breaching"] = theirs
    clocks: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(options.rounds):
        for name, step in steps.items():
            clocks[name].append(time_once(step))
    medians = {name: [statistics.median(column) for column in zip(*c, strict=True)] for name, c in clocks.items()}
    row: dict[str, Any] = {
        name: {
            "ms": round(wall * 1e3, 1),
            "cpu_ms": round(processor * 1e3, 1),
            "cpu_ratio_to_plain": round(processor / medians["plain loop"][1], 3),
        }
        for name, (wall, processor) in medians.items()
    }
    row["times_faster"] = round(medians["plain loop"][1] / medians["engine"][1], 3)
    emit("speed", options.model, "times_faster", options, row)


def memory(options: argparse.Namespace) -> None:
    for size in options.sizes:
        for microbatch in (0, options.microbatch):
            arguments = ["one-step", "--model", options.model, "--size", str(options.size), "--batch", str(size)]
            arguments += ["--microbatch", str(microbatch), "--step", options.step]
            child = subprocess.run(
                [sys.executable, __file__, *arguments],
                capture_output=True,
                text=True,
                check=True,
                timeout=600,
                # glibc keeps freed memory for later; with this it gives tensors back, and the peak is what is in use.
                env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
            )
            print(child.stdout, end="", flush=True)


def one_step(options: argparse.Namespace) -> None:
    exact, truth = problem(options.model, options.size, options.batch, options.microbatch or None, "eval")
    found = FirstOrderProblem(exact) if options.step == "first_order" else exact
    inputs = torch.rand(truth.inputs.shape, generator=generator(0, "candidate"))
    small, few = inputs[:1], truth.labels[:1]
    found.evaluate(small, few)  # library buffers are there before the first look
    reset_peak()
    before = peak()
    found.evaluate(inputs, truth.labels)
    rise = round((peak() - before) / 1024, 1)
    result = {"microbatch": options.microbatch or None, "step": options.step, "peak_mib": round(peak() / 1024, 1)}
    name = f"{options.model}, batch {options.batch}, micro-batch {options.microbatch or None}"
    emit("memory", name, "peak_rise_mib", options, {**result, "peak_rise_mib": rise})


def reset_peak() -> None:
    """Make the kernel forget this process's peak so far (Linux; elsewhere the whole peak is compared)."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def peak() -> float:
    """Peak resident memory in KiB."""
    try:
        with open("/proc/self/status") as file:
            return float(next(line for line in file if line.startswith("VmHWM")).split()[1])
    except (OSError, StopIteration):
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def emit(study: str, name: str, metric: str, options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Keep one record, with what was timed and where."""
    facts = {"model": options.model, "image": options.size, "batch": options.batch}
    facts |= {"seepage": version("seepage"), "machine": platform.machine()}
    rest = {key: value for key, value in result.items() if key != metric}
    keep_measured(f"matching/{study}", name, metric, result[metric], **facts, **rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["speed", "memory", "one-step"])
    parser.add_argument("--model", default="torchvision:resnet18")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--step", choices=["exact", "first_order"], default="exact")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    {"speed": speed, "memory": memory, "one-step": one_step}[options.kind](options)


if __name__ == "__main__":
    main()
