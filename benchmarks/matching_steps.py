"""Seconds per gradient-matching step: exact, first-order, a plain double-backward loop, and breaching.

    python benchmarks/matching_steps.py [--nets convnet resnet10 resnet18 vgg16] [--batches 1 16 64] [--rounds 3]

Two objectives. `ig`: one minus the cosine, and total variation (Inverting Gradients). `fedleak`: mean L1 plus cosine
over the largest half of the dummy gradient's entries, total variation, and a blended direction, which takes a second
evaluation at a point 1e-3 further along the gradient (FedLeak).

All take turns in one process on the same network, batch and loss, so that a busy machine slows all alike: what counts
is the ratio. `--peak` runs one step of each in a process of its own instead and reports how far the peak of memory
rises. breaching is timed where it is installed; it has no FedLeak. One record of
results/matching/steps.jsonl per network, batch and objective.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from matching import breaching_step, emit, engine_step, peak, plain_step, reset_peak, time_once
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.search.distances import L1, Cosine
from seepage.attacks.search.first_order import FirstOrderProblem
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.priors import TotalVariation
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator

SHAPE = (3, 32, 32)
AHEAD, WEIGHT = 1e-3, 0.5
OBJECTIVES = {"ig": Cosine(), "fedleak": TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5)}
SAMPLED = TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5, sample=100_000)
Step = Callable[[], object]


def network(name: str) -> nn.Module:
    """Networks for 32 px: a VGG-16 then ends in one linear layer of 512 inputs."""
    if name == "vgg16":
        model = build(Architecture("torchvision:vgg16"), SHAPE, 10)
        return nn.Sequential(model.features, nn.Flatten(), nn.Linear(512, 10))
    options = {"depth": int(name.removeprefix("resnet"))} if name.startswith("resnet") else {}
    return build(Architecture("resnet" if options else name, options), SHAPE, 10)


def problem(name: str, batch: int, objective: str) -> tuple[Problem, Tensor, Tensor]:
    """A matching problem on random images; what they show does not change a step's cost."""
    draw = generator(0, "benchmark")
    truth = Batch(torch.rand((batch, *SHAPE), generator=draw), torch.randint(10, (batch,), generator=draw))
    transcript = record(network(name), truth, client=FedSGD(mode="eval"))
    found = Problem.of(transcript[0], transcript.knowledge, OBJECTIVES[objective], None)
    return found, torch.rand((batch, *SHAPE), generator=draw), truth.labels


def own_fedleak(found: Problem | FirstOrderProblem, inputs: Tensor, labels: Tensor) -> Tensor:
    """A FedLeak step of the engine's parts."""

    def slope(at: Tensor) -> Tensor:
        leaf = at.detach().requires_grad_()
        by_variation = torch.autograd.grad(TotalVariation(1e-4)(leaf[None]).sum(), leaf)[0]
        return found.evaluate(at, labels).by_inputs + by_variation

    here = slope(inputs)
    return torch.lerp(here, slope(inputs + here * (AHEAD / here.norm())), WEIGHT)


def plain_fedleak(found: Problem, inputs: Tensor, labels: Tensor) -> Tensor:
    """The same step as it is usually written."""

    def slope(at: Tensor) -> Tensor:
        model, candidate = found.model.eval(), at.detach().requires_grad_()
        loss = F.cross_entropy(model(candidate), labels)
        gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        dummy = torch.cat([g.flatten() for g in gradient])
        target = torch.cat([g.flatten() for g in found.target.values()])
        size = dummy.detach().abs()
        mask = size >= size.kthvalue(size.numel() - size.numel() // 2 + 1).values
        dummy, target = dummy * mask, target * mask
        distance = (dummy - target).abs().sum() / mask.sum() + 1 - F.cosine_similarity(dummy, target, dim=0)
        down = (candidate[..., 1:, :] - candidate[..., :-1, :]).abs().mean()
        across = (candidate[..., :, 1:] - candidate[..., :, :-1]).abs().mean()
        return torch.autograd.grad(distance + 1e-4 * (down + across), candidate)[0]

    here = slope(inputs)
    return torch.lerp(here, slope(inputs + here * (AHEAD / here.norm())), WEIGHT)


def steps(name: str, batch: int, objective: str) -> dict[str, Step]:
    """What is compared; the first-order problem is fitted once beforehand, as the attack does."""
    exact, inputs, labels = problem(name, batch, objective)
    first = FirstOrderProblem(exact).fitted(inputs[:1], labels[:1])
    if objective == "ig":
        found: dict[str, Step] = {
            "plain loop": lambda: plain_step(exact, inputs, labels),
            "exact": lambda: engine_step(exact, inputs, labels),
            "first order": lambda: engine_step(first, inputs, labels),  # type: ignore[arg-type]
        }
        theirs = breaching_step(exact, inputs, labels)
        return found if theirs is None else {**found, "breaching": theirs}
    sampled = FirstOrderProblem(Problem(**{**vars(exact), "distance": SAMPLED}), first.reach)
    return {
        "plain loop": lambda: plain_fedleak(exact, inputs, labels),
        "exact": lambda: own_fedleak(exact, inputs, labels),
        "first order": lambda: own_fedleak(first, inputs, labels),
        "first order, sampled": lambda: own_fedleak(sampled, inputs, labels),
    }


def compare(options: argparse.Namespace, name: str, batch: int, objective: str) -> None:
    options.model, options.size, options.batch = name, SHAPE[-1], batch
    found = steps(name, batch, objective)
    clocks: dict[str, list[tuple[float, float]]] = {key: [] for key in found}
    for step in found.values():
        step()
    for _ in range(options.rounds):
        for key, step in found.items():
            clocks[key].append(time_once(step))
    medians = {key: [statistics.median(column) for column in zip(*rows, strict=True)] for key, rows in clocks.items()}
    plain = medians["plain loop"][1]
    rows = {
        key: {
            "ms": round(wall * 1e3, 1),
            "cpu_ms": round(cpu * 1e3, 1),
            "images_per_cpu_s": round(batch / cpu, 1),
            "times_faster": round(plain / cpu, 2),
        }
        for key, (wall, cpu) in medians.items()
    }
    best = max(row["times_faster"] for key, row in rows.items() if key not in ("plain loop", "breaching"))
    row = {"objective": objective, "rounds": options.rounds, "steps": rows, "times_faster": best}
    emit("steps", f"{name}, batch {batch}, {objective}", "times_faster", options, row)


def peaks(options: argparse.Namespace, name: str, batch: int, objective: str) -> None:
    options.model, options.size, options.batch = name, SHAPE[-1], batch
    rises = {}
    for key in steps(name, 1, objective):
        arguments = [name, str(batch), objective, key]
        child = subprocess.run(
            [sys.executable, __file__, "--one", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
            # glibc keeps freed memory for later; with this it gives tensors back, and the peak is what is in use.
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
        )
        rises[key] = float(child.stdout)
    row = {"objective": objective, "peak_rise_mib": rises, "peak_rise_first_order_mib": rises.get("first order")}
    emit("steps", f"{name}, batch {batch}, {objective}", "peak_rise_first_order_mib", options, row)


def one(name: str, batch: str, objective: str, key: str) -> None:
    steps(name, 1, objective)[key]()  # library buffers are there before the first look
    step = steps(name, int(batch), objective)[key]
    reset_peak()
    before = peak()
    step()
    print(round((peak() - before) / 1024, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=["convnet", "resnet10", "resnet18", "vgg16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES), choices=list(OBJECTIVES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        return one(*options.one)
    for name in options.nets:
        for batch in options.batches:
            for objective in options.objectives:
                (peaks if options.peak else compare)(options, name, batch, objective)
    return None


if __name__ == "__main__":
    main()
