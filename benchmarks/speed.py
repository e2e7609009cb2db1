"""Whole attacks side by side: Inverting Gradients by this package, by breaching, and as a plain loop; FedLeak likewise.

    python benchmarks/speed.py [--nets resnet18] [--batches 1 8] [--steps 60] [--rounds 5] [--objectives ig]

A step timed by itself is not what an attack gets: the candidate moves, and what was fitted to it wears off. So an
attack is run here from its start to its end, through the interface its users have: trial, steps, optimizer, total
variation, best point and history included. All take turns in one process on the same weights, images and number of
steps, and each turn gives one ratio; the median of the ratios is reported, with the smallest and the largest. Processor
time is compared, which other programs disturb less than the clock on the wall; a turn before the first is not counted.

`ig`: cosine, total variation, signs, Adam at 0.1 in a step schedule, labels known. breaching is timed where it is
installed (`attacks.prepare_attack`, `reconstruct`, its preset invertinggradients). `fedleak`: the preset as it stands,
labels known, against a plain double-backward loop with `Tensor.kthvalue`. One record of
`results/matching/attacks.jsonl` per network, batch size and objective.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from matching import emit
from matching_steps import SHAPE, network, plain_fedleak
from torch import Tensor, nn

from seepage import Batch, FedSGD, GradientMatching, Transcript, attack, record
from seepage.attacks import fedleak, inverting_gradients
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.problem import Problem
from seepage.base.nn import frozen_randomness, generator

Run = Callable[[], object]
OF = ("plain loop", "breaching", "exact", "first order")


def victim(name: str, batch: int) -> tuple[Transcript, Batch]:
    """An update of random images, in eval mode; what they show does not change what a step costs."""
    draw = generator(0, "benchmark")
    truth = Batch(torch.rand((batch, *SHAPE), generator=draw), torch.randint(10, (batch,), generator=draw))
    return record(network(name), truth, client=FedSGD(mode="eval"), known=["labels"]), truth


def own(seen: Transcript, it: GradientMatching, gradients: Any) -> Run:
    chosen = replace(it, gradients=gradients)
    return lambda: attack(seen, chosen, seed=0)


def breaching(seen: Transcript, truth: Batch, steps: int) -> Run | None:
    """Breaching's Inverting Gradients, or None where it is not installed."""
    try:
        import breaching as package
    except ImportError:
        return None
    body = deepcopy(seen.knowledge.model).eval()
    known = SimpleNamespace(shape=SHAPE, mean=[0.0] * 3, std=[1.0] * 3, modality="vision")
    payload = {"parameters": list(body.parameters()), "buffers": list(body.buffers()), "metadata": known}
    facts = {"num_data_points": len(truth), "labels": truth.labels.clone(), "local_hyperparams": None}
    update = {"gradients": list(seen[0].gradient(FedSGD()).values()), "buffers": None, "metadata": facts}

    def run() -> None:
        settings = package.get_attack_config("invertinggradients", overrides=[f"optim.max_iterations={steps}"])
        attacker = package.attacks.prepare_attack(body, nn.CrossEntropyLoss(), settings)
        with frozen_randomness(0):
            attacker.reconstruct([payload], [update], {})

    return run


def plain_ig(seen: Transcript, truth: Batch, steps: int) -> Run:
    """The loop as it is usually written: double backward, total variation, signs, Adam, clamp."""
    model, target = seen.knowledge.model.eval(), list(seen[0].gradient(FedSGD()).values())

    def run() -> None:
        candidate = torch.randn(truth.inputs.shape, generator=generator(0, "start")).requires_grad_()
        optimizer = torch.optim.Adam([candidate], 0.1)
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(candidate), truth.labels)
            gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            product = sum((a * b).sum() for a, b in zip(gradient, target, strict=True))
            own, theirs = (sum(a.pow(2).sum() for a in side) for side in (gradient, target))
            across = (candidate[..., 1:] - candidate[..., :-1]).abs().mean()
            down = (candidate[..., 1:, :] - candidate[..., :-1, :]).abs().mean()
            value = 1 - product / (own.sqrt() * theirs.sqrt()) + 0.1 * (across + down)
            candidate.grad = torch.autograd.grad(value, candidate)[0].sign()
            optimizer.step()
            with torch.no_grad():
                candidate.clamp_(0, 1)

    return run


def plain_partial(seen: Transcript, truth: Batch, steps: int) -> Run:
    """FedLeak's two evaluations per step as they are usually written."""
    problem = Problem.of(seen[0], seen.knowledge, Cosine(), None)

    def run() -> None:
        candidate: Tensor = torch.rand(truth.inputs.shape, generator=generator(0, "start")).requires_grad_()
        optimizer = torch.optim.Adam([candidate], 1e-4)
        for _ in range(steps):
            candidate.grad = plain_fedleak(problem, candidate.detach(), truth.labels)
            optimizer.step()
            with torch.no_grad():
                candidate.clamp_(0, 1)

    return run


def runs(name: str, batch: int, objective: str, steps: int) -> dict[str, Run]:
    seen, truth = victim(name, batch)
    if objective == "ig":
        it = inverting_gradients(steps=steps, labels="given")
        found = {"plain loop": plain_ig(seen, truth, steps)}
        theirs = breaching(seen, truth, steps)
        if theirs is not None:
            found["breaching"] = theirs
    else:
        it = fedleak(steps=steps, labels="given", activation=0.0)
        found = {"plain loop": plain_partial(seen, truth, steps)}
    return {**found, "exact": own(seen, it, "exact"), "first order": own(seen, it, "auto")}


def compare(options: argparse.Namespace, name: str, batch: int, objective: str) -> None:
    options.model, options.size, options.batch = name, SHAPE[-1], batch
    found = {key: run for key, run in runs(name, batch, objective, options.steps).items() if key in options.of}
    clocks: dict[str, list[float]] = {key: [] for key in found}
    for turn in range(options.rounds + 1):
        for key, run in found.items():
            before = time.process_time()
            run()
            if turn:
                clocks[key].append(time.process_time() - before)
    per_step = {key: round(1e3 * statistics.median(times) / options.steps, 1) for key, times in clocks.items()}
    ratios = {
        key: sorted(a / b for a, b in zip(times, clocks["first order"], strict=True)) for key, times in clocks.items()
    }
    rival = "breaching" if "breaching" in found else "plain loop"
    row = {
        "objective": objective,
        "steps": options.steps,
        "rounds": options.rounds,
        "cpu_ms_per_step": per_step,
        "ratio_to_first_order": {
            key: [round(statistics.median(own), 2), round(own[0], 2), round(own[-1], 2)] for key, own in ratios.items()
        },
        "rival": rival,
        "times_faster": round(statistics.median(ratios[rival]), 2),
    }
    emit("attacks", f"{name}, batch {batch}, {objective}", "times_faster", options, row)
    print(per_step, row["ratio_to_first_order"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=["resnet18"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--objectives", nargs="+", default=["ig", "fedleak"], choices=["ig", "fedleak"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--of", nargs="+", default=list(OF), choices=OF)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.nets:
        for batch in options.batches:
            for objective in options.objectives:
                compare(options, name, batch, objective)


if __name__ == "__main__":
    main()
