"""What an attack costs: evaluations and seconds for 10,000 iterations (FedLeak, section 6.5).

    python experiments/attack_cost.py --data ../shared/data/cifar10.npz

The attacks that section 6.5 times, on its network (ResNet-10) and a batch of four CIFAR-10 images, a CPU core in place
of an RTX 4090. An iteration's time is the difference of two runs of some and of more steps, so that starts and the
training of generators, which section 6.5 does not count, fall out; gradients are taken as a long search takes them.
Processor seconds; an evaluation is one value of the objective with its gradient. One record per attack goes to
results/matching/attack-cost.jsonl.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from common import command, draw, keep, parts
from fedleak_ablations import fedleak_read

from seepage import Architecture, FedSGD, build, record
from seepage.attacks import (
    Attack,
    fedleak,
    fedleak_released,
    ggl,
    grad_inversion,
    inverting_gradients,
    rogs,
)
from seepage.attacks.search.engine import GradientMatching
from seepage.federation.types import Transcript

STUDY = "matching/attack-cost"
ITERATIONS = 10_000
SMALL = {"width": 4, "training": 2}
ATTACKS: dict[str, tuple[Callable[[int], Attack], int | None]] = {
    "inverting_gradients": (lambda steps: inverting_gradients(steps=steps), 5),
    "grad_inversion": (lambda steps: grad_inversion(steps=steps, restarts=1, group=0.0, labels="given"), 5),
    "ggl, adam": (lambda steps: ggl(steps=steps, search="adam", latent=32, **SMALL), 11),
    "rogs": (lambda steps: rogs(steps=steps, enhance=False), 11),
    "fedleak": (lambda steps: fedleak(steps=steps, labels="auto"), 20),
    "fedleak, Algorithm 1 to the letter": (lambda steps: fedleak_read(steps=steps, labels="auto", entries="kept"), 20),
    "fedleak_released": (lambda steps: fedleak_released(steps=steps), 20),
}
"""Each attack with the paper's minutes, where it has them."""


def cost(make: Callable[[int], Attack], seen: Transcript, few: int, more: int) -> tuple[float, float]:
    """Processor seconds and evaluations of one iteration."""
    spent, evaluations = [], []
    for steps in (few, few, more):  # the first trains what there is to train, and wakes the kernels
        attack = make(steps)
        if isinstance(attack, GradientMatching):
            attack = replace(attack, gradients="first_order")  # what a search of fifty steps and more tries first
        start = time.process_time()
        found = attack(seen, seed=0)
        spent.append(time.process_time() - start)
        evaluations.append(found.cost["evaluations"])
    return (spent[-1] - spent[1]) / (more - few), (evaluations[-1] - evaluations[1]) / (more - few)


def main(*, data: str, batch: int = 4, width: int = 64, steps: tuple[int, ...] = (3, 13)) -> None:
    torch.set_num_threads(1)
    train, test = parts(data)
    private = draw(test, batch, 0)
    shape, classes = tuple(private.inputs.shape[1:]), int(train.labels.max()) + 1
    model = build(Architecture("resnet", {"depth": 10, "width": width}), shape, classes, seed=0)
    seen = record(model, private, client=FedSGD(mode="eval"), known=["labels"])
    seen = replace(seen, knowledge=replace(seen.knowledge, auxiliary=train.inputs[:64]))
    for name, (make, minutes) in ATTACKS.items():
        seconds, evaluations = cost(make, seen, *steps)
        facts = {"attack": name, "evaluations": ITERATIONS * evaluations, "paper_minutes": minutes}
        facts |= {"model": f"resnet10, width {width}", "batch": batch, "steps": list(steps)}
        keep(STUDY, name, "cpu_s", {"cpu_s": ITERATIONS * seconds, "data": Path(data).stem, **facts})


if __name__ == "__main__":
    command(main)
