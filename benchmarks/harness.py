"""What the benchmarks share: A and B take turns in one process, the peak of memory, the networks, and the plain loops.

Programs beside it slow all that take turns alike: what counts is the ratio. Both clocks are kept; processor time is
the one that other programs disturb less.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from kept import keep_measured
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, Transcript, build, record
from seepage.attacks.search.distances import L1, Cosine
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.priors import TotalVariation
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator

Step = Callable[[], object]
OBJECTIVES = {"ig": Cosine(), "fedleak": TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5)}
TV, AHEAD, WEIGHT = 1e-4, 1e-3, 0.5
"""Weight of total variation; how far FedLeak looks ahead, and the weight of the slope there."""


class Spent(NamedTuple):
    """Seconds of the clock on the wall, and of the processor."""

    wall: float
    processor: float


def spent(work: Step) -> Spent:
    """What a call takes."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - wall, time.process_time() - processor)


def turns(steps: Mapping[str, Step], rounds: int) -> dict[str, list[Spent]]:
    """What each takes, turn by turn; a turn before the first is not counted."""
    found: dict[str, list[Spent]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            taken = spent(step)
            if turn:
                found[name].append(taken)
    return found


def medians(found: Mapping[str, Sequence[Spent]]) -> dict[str, Spent]:
    """The median of each clock."""
    return {name: Spent(*map(statistics.median, zip(*them, strict=True))) for name, them in found.items()}


# --- memory ------------------------------------------------------------------------------------------------------


def memory(what: Literal["VmRSS", "VmHWM"] = "VmHWM") -> float:
    """Resident memory now, or at its peak since that was set back, in MiB. Elsewhere than on Linux the whole peak."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(what))) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak() -> None:
    """Make the kernel forget this process's peak so far, where it can."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def rise(work: Step) -> float:
    """How far the peak rises above what the process has before the work, in MiB."""
    reset_peak()
    before = memory()
    work()
    return round(memory() - before, 1)


def apart(script: str, *arguments: object) -> str:
    """Run a script in a process of its own that gives freed memory back at once: the peak is what is in use."""
    given = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # of glibc
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=600, env={**os.environ, **given}
    ).stdout


# --- what is searched --------------------------------------------------------------------------------------------


def network(name: str, size: int = 32) -> nn.Module:
    """A network by its name, for 10 classes; a VGG-16 at 32 px ends in one linear layer of 512 inputs."""
    shape = (3, size, size)
    if name == "vgg16":
        model = build(Architecture("torchvision:vgg16"), shape, 10)
        return nn.Sequential(model.features, nn.Flatten(), nn.Linear(512, 10))
    options = {"depth": int(name.removeprefix("resnet"))} if name.startswith("resnet") else {}
    return build(Architecture("resnet" if options else name, options), shape, 10)


def victim(name: str, batch: int, size: int = 32, known: Sequence[str] = ()) -> tuple[Transcript, Batch, Tensor]:
    """An update of random images in eval mode, and a candidate: what they show does not change what a step costs."""
    draw = generator(0, "benchmark")
    truth = Batch(torch.rand((batch, 3, size, size), generator=draw), torch.randint(10, (batch,), generator=draw))
    seen = record(network(name, size), truth, client=FedSGD(mode="eval"), known=list(known))
    return seen, truth, torch.rand(truth.inputs.shape, generator=draw)


def problem(
    name: str, batch: int, objective: str = "ig", size: int = 32, microbatch: int | None = None
) -> tuple[Problem, Tensor, Tensor]:
    """A matching problem, a candidate and the labels."""
    seen, truth, candidate = victim(name, batch, size)
    return Problem.of(seen[0], seen.knowledge, OBJECTIVES[objective], microbatch), candidate, truth.labels


def engine_step(found: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """What the engine does per step, less the optimizer's own arithmetic."""
    leaf = inputs.detach().requires_grad_()
    by_variation = torch.autograd.grad(TotalVariation(TV)(leaf[None]).sum(), leaf)[0]
    return found.evaluate(inputs, labels).by_inputs + by_variation


def plain_step(found: Problem, inputs: Tensor, labels: Tensor, tv: float = TV, objective: str = "ig") -> Tensor:
    """The usual double-backward loop, written out: the stand-in for other packages."""
    model, target, candidate = found.model.eval(), list(found.target.values()), inputs.detach().requires_grad_()
    loss = F.cross_entropy(model(candidate), labels)
    gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    distance = {"ig": _cosine, "fedleak": _largest_half}[objective](gradient, target)
    down = (candidate[..., 1:, :] - candidate[..., :-1, :]).abs().mean()
    across = (candidate[..., :, 1:] - candidate[..., :, :-1]).abs().mean()
    return torch.autograd.grad(distance + tv * (down + across), candidate)[0]


def _cosine(gradient: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    product = sum((a * b).sum() for a, b in zip(gradient, target, strict=True))
    own, theirs = (sum(a.pow(2).sum() for a in side) for side in (gradient, target))
    return 1 - product / (own.sqrt() * theirs.sqrt())  # type: ignore[union-attr, return-value]


def _largest_half(gradient: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """FedLeak: mean L1 plus cosine over the largest half of the dummy gradient's entries."""
    dummy, wanted = (torch.cat([g.flatten() for g in side]) for side in (gradient, target))
    size = dummy.detach().abs()
    mask = size >= size.kthvalue(size.numel() - size.numel() // 2 + 1).values
    dummy, wanted = dummy * mask, wanted * mask
    return (dummy - wanted).abs().sum() / mask.sum() + 1 - F.cosine_similarity(dummy, wanted, dim=0)


def blended(slope: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """FedLeak's direction: the slope here, and the one a little further along it."""
    here = slope(inputs)
    return torch.lerp(here, slope(inputs + here * (AHEAD / here.norm())), WEIGHT)


def plain_fedleak(found: Problem, inputs: Tensor, labels: Tensor) -> Tensor:
    """FedLeak's two evaluations per step as they are usually written."""
    return blended(lambda at: plain_step(found, at, labels, objective="fedleak"), inputs)


def breaching_step(found: Problem, inputs: Tensor, labels: Tensor) -> dict[str, Step]:
    """One objective and gradient of breaching's Inverting Gradients attacker; empty where it is not installed."""
    try:
        from breaching.attacks.auxiliaries.objectives import CosineSimilarity
        from breaching.attacks.auxiliaries.regularizers import TotalVariation as TheirVariation
    except ImportError:
        return {}
    objective = CosineSimilarity()
    # What it reads from its configuration, at its defaults.
    defaults = SimpleNamespace(JIT=None, mixed_precision=False, grad_scaling=False)
    objective.initialize(torch.nn.CrossEntropyLoss(), defaults, None)
    variation = TheirVariation(
        {"device": torch.device("cpu"), "dtype": torch.float}, scale=TV, inner_exp=1, outer_exp=1
    )
    model, target = found.model.eval(), list(found.target.values())

    def step() -> None:
        candidate = inputs.detach().requires_grad_()
        value, _ = objective(model, target, candidate, labels)
        (value + variation(candidate)).backward(inputs=[candidate])

    return {"breaching": step}


# --- records -----------------------------------------------------------------------------------------------------


def emit(study: str, name: str, metric: str, result: Mapping[str, Any], **facts: Any) -> None:
    """Keep one record of results/matching, with what was timed and where."""
    facts |= {"seepage": version("seepage"), "machine": platform.machine()}
    rest = {key: value for key, value in result.items() if key != metric}
    keep_measured(f"matching/{study}", name, metric, result[metric], **facts, **rest)


def parsed(description: str | None, **options: Any) -> argparse.Namespace:
    """The options of a benchmark: each by its default, of which a list takes several. Sets PyTorch's threads."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = options.pop("kind", None)
    if kind is not None:
        parser.add_argument("kind", choices=kind)
    for name, default in {**options, "threads": 1}.items():
        flag = f"--{name}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(flag, type=str if default is None else type(default), default=default)
    found = parser.parse_args()
    torch.set_num_threads(found.threads)
    return found
