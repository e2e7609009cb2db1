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

    python benchmarks/speed.py --objectives gauss_newton --nets resnet10 --batches 2 [--data album]

`gauss_newton` on images of a data set, batch norm in train mode, beside itself *as before*: each linear model solved to
a hundredth, PyTorch's own second derivative of batch norm, and what the certificate asks solved to rounding. One turn
of each; one record of `results/matching/gauss-newton.jsonl`.
"""

import argparse
import statistics
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from harness import OBJECTIVES, Step, emit, medians, network, parsed, plain_fedleak, plain_step, spent, turns, victim
from torch import Tensor, nn

from seepage import Batch, FedSGD, GradientMatching, Transcript, attack, record, score
from seepage.attacks import GaussNewton, fedleak, inverting_gradients
from seepage.attacks.gauss_newton import search
from seepage.attacks.gauss_newton.search import Search
from seepage.attacks.network import linearize
from seepage.attacks.reading.readings import NEWTON_SOLVED
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.problem import Problem
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.data import load
from seepage.federation.types import Reconstruction

OF = ("plain loop", "breaching", "exact", "first order")
UNDETERMINED = Search.undetermined


def own(seen: Transcript, it: GradientMatching, gradients: Any) -> Step:
    chosen = replace(it, gradients=gradients)
    return lambda: attack(seen, chosen, seed=0)


def breaching(seen: Transcript, truth: Batch, steps: int) -> dict[str, Step]:
    """Breaching's Inverting Gradients; empty where it is not installed."""
    try:
        import breaching as package
    except ImportError:
        return {}
    body = deepcopy(seen.knowledge.model).eval()
    known = SimpleNamespace(shape=tuple(truth.inputs.shape[1:]), mean=[0.0] * 3, std=[1.0] * 3, modality="vision")
    payload = {"parameters": list(body.parameters()), "buffers": list(body.buffers()), "metadata": known}
    facts = {"num_data_points": len(truth), "labels": truth.labels.clone(), "local_hyperparams": None}
    update = {"gradients": list(seen[0].gradient(FedSGD()).values()), "buffers": None, "metadata": facts}

    def run() -> None:
        settings = package.get_attack_config("invertinggradients", overrides=[f"optim.max_iterations={steps}"])
        attacker = package.attacks.prepare_attack(body, nn.CrossEntropyLoss(), settings)
        with frozen_randomness(0):
            attacker.reconstruct([payload], [update], {})

    return {"breaching": run}


def plain(seen: Transcript, truth: Batch, steps: int, objective: str) -> Step:
    """The loop as it is usually written: double backward, total variation, Adam, clamp; for `ig` by signs."""
    found = Problem.of(seen[0], seen.knowledge, Cosine(), None)

    def run() -> None:
        noise = torch.randn if objective == "ig" else torch.rand
        candidate = noise(truth.inputs.shape, generator=generator(0, "start")).requires_grad_()
        optimizer = torch.optim.Adam([candidate], 0.1 if objective == "ig" else 1e-4)
        for _ in range(steps):
            if objective == "ig":
                slope = plain_step(found, candidate, truth.labels, tv=0.1).sign()
            else:
                slope = plain_fedleak(found, candidate.detach(), truth.labels)
            candidate.grad = slope
            optimizer.step()
            with torch.no_grad():
                candidate.clamp_(0, 1)

    return run


def runs(name: str, batch: int, objective: str, steps: int) -> dict[str, Step]:
    seen, truth, _ = victim(name, batch, known=["labels"])
    found = {"plain loop": plain(seen, truth, steps, objective)}
    if objective == "ig":
        it = inverting_gradients(steps=steps, labels="given")
        found |= breaching(seen, truth, steps)
    else:
        it = fedleak(steps=steps, labels="given", activation=0.0)
    return {**found, "exact": own(seen, it, "exact"), "first order": own(seen, it, "auto")}


def compare(options: argparse.Namespace, name: str, batch: int, objective: str) -> None:
    found = {key: run for key, run in runs(name, batch, objective, options.steps).items() if key in options.of}
    taken = turns(found, options.rounds)
    per_step = {key: round(1e3 * both.processor / options.steps, 1) for key, both in medians(taken).items()}
    ratios = {
        key: sorted(a.processor / b.processor for a, b in zip(times, taken["first order"], strict=True))
        for key, times in taken.items()
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
    name_of = f"{name}, batch {batch}, {objective}"
    emit("attacks", name_of, "times_faster", row, model=name, image=32, batch=batch)
    print(per_step, row["ratio_to_first_order"], flush=True)


def undetermined_to_rounding(own: Search, probe: Tensor, _: float) -> Tensor:
    return UNDETERMINED(own, probe, 0.0)  # no share is below 0: it does not end before


def beside_itself(options: argparse.Namespace, name: str, batch: int) -> None:
    """Gauss-Newton from its start to its certificate, as it is and as before."""
    images = load(options.data)
    chosen = images.private[torch.randperm(len(images.private), generator=generator(0, "batch"))[:batch]]
    truth = images.batch(chosen)
    seen = record(network(name), Batch(truth.inputs, truth.labels % 10))
    with ExitStack() as before:
        before.enter_context(patch.object(search, "ROUGHLY_SOLVED", NEWTON_SOLVED))
        before.enter_context(patch.object(Search, "undetermined", undetermined_to_rounding))
        before.enter_context(patch.object(linearize, "_normalize", F.batch_norm))
        old, old_seconds = timed(seen)
    new, new_seconds = timed(seen)
    row = {
        "times_faster": round(old_seconds / new_seconds, 2),
        "cpu_s": {"as before": round(old_seconds, 1), "now": round(new_seconds, 1)},
        "exact": {key: score(found, truth).exact for key, found in (("as before", old), ("now", new))},
        "data": options.data.rpartition("/")[2],
    }
    emit("gauss-newton", f"{name}, batch {batch}", "times_faster", row, model=name, image=32, batch=batch)
    print(row, flush=True)


def timed(seen: Transcript) -> tuple[Reconstruction, float]:
    """What the attack finds, and the processor's seconds that it takes."""
    found: list[Reconstruction] = []
    taken = spent(lambda: found.append(attack(seen, GaussNewton(), seed=0)))
    return found[0], taken.processor


if __name__ == "__main__":
    options = parsed(
        __doc__, nets=["resnet18"], batches=[1, 8], objectives=list(OBJECTIVES), steps=60, rounds=5, of=list(OF),
        data="album",
    )  # fmt: skip
    for name in options.nets:
        for batch in options.batches:
            for objective in options.objectives:
                if objective == "gauss_newton":
                    beside_itself(options, name, batch)
                else:
                    compare(options, name, batch, objective)
