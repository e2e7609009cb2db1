"""What decides whether gradient matching reads a network with ReLU: evaluations, width, training, mode.

    python experiments/fedleak_grid.py 500 --data ../shared/data/cifar10.npz --elsewhere ../shared/data/cifar100.npz
    python experiments/fedleak_grid.py 4000 --data ../shared/data/cifar10.npz --elsewhere ../shared/data/cifar100.npz

One image of a batch of 1, labels known, ResNet-10 on 32 x 32, three images that development did not see. `fresh`:
weights as drawn. `fresh head`: features learned on another data set, under a head as drawn. `trained`: on the train
part of the data that the images are of. Learned are `--training` steps of SGD at 0.02 with momentum 0.9, batches of
32. `smooth`: the fresh network with GELU or sigmoid in place of ReLU, one change at a time. An evaluation is one
gradient of the objective; FedLeak takes two a step. The start, the rate (0.03 with cosine decay for `fedleak`) and
all else are those of the attacks. Of Inverting Gradients both weights of its total variation: the paper's and its
library's.

One record per cell, attack and image goes to results/matching/fedleak-grid.jsonl; what is there is not made again.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from common import Row, attacked_of, command, descend_once, draw, draws, flat_square, keep, kept, parts
from torch import nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks import Attack
from seepage.attacks.guided import fedleak_guided, gradient_matching
from seepage.attacks.search import fedleak, fedleak_released, inverting_gradients
from seepage.base.nn import generator
from seepage.measure.metrics.image import psnr

STUDY = "matching/fedleak-grid"
TRAININGS = ("fresh", "fresh head", "trained", "smooth: gelu", "smooth: sigmoid")


def attacks(evaluations: int) -> dict[str, Attack]:
    """Each attack with so many evaluations of its objective."""
    two, how = evaluations // 2, {"lr": 0.03, "schedule": "cosine", "labels": "given"}
    return {
        "fedleak, sums": fedleak(steps=two, l1="sum", variation="sum", **how),
        "fedleak, means": fedleak(steps=two, l1="mean", variation="mean", **how),
        "fedleak, sums, no blend": fedleak(steps=evaluations, l1="sum", variation="sum", weight=0.0, **how),
        "fedleak_released": fedleak_released(steps=two, labels="given"),
        "inverting_gradients, 1e-4": inverting_gradients(steps=evaluations, labels="given"),
        "inverting_gradients, 0.1": inverting_gradients(steps=evaluations, tv=0.1, labels="given"),
        "gradient_matching": gradient_matching(steps=evaluations),
        "fedleak_guided": fedleak_guided(steps=two),
    }


def network(training: str, width: int, own: Batch, elsewhere: Batch, steps: int, seed: int) -> nn.Module:
    """A network of the grid, trained once."""
    activation = training.partition(": ")[2] or "relu"
    architecture = Architecture("resnet", {"width": width, "activation": activation})
    shape, classes = tuple(own.inputs.shape[1:]), int(own.labels.max()) + 1
    model = build(architecture, shape, classes, seed=seed)
    if training in ("trained", "fresh head"):
        data = own if training == "trained" else elsewhere
        learner = build(architecture, shape, int(data.labels.max()) + 1, seed=seed).train()
        optimizer = torch.optim.SGD(learner.parameters(), 0.02, momentum=0.9)
        key = f"fedleak-grid {training} {width} {steps} {seed} {len(data)} {float(data.inputs[:64].double().sum())}"
        descend_once(key, learner, optimizer, draws(data, steps, 32, generator(seed, "train")))
        learned, fresh = learner.state_dict(), model.state_dict()
        head = [name for name in fresh if fresh[name].shape != learned[name].shape] if training != "trained" else []
        model.load_state_dict({name: fresh[name] if name in head else tensor for name, tensor in learned.items()})
    return model.eval()


def cells(
    widths: tuple[int, ...], modes: tuple[str, ...], trainings: tuple[str, ...]
) -> Iterator[tuple[int, str, str]]:
    yield from ((width, training, mode) for width in widths for mode in modes for training in trainings)


def main(
    evaluations: int,
    *,
    data: str,
    elsewhere: str,
    widths: tuple[int, ...] = (16,),
    modes: tuple[str, ...] = ("eval", "train"),
    trainings: tuple[str, ...] = TRAININGS,
    only: tuple[str, ...] = (),
    images: int = 3,
    batch: int = 1,
    training: int = 300,
) -> None:
    torch.set_num_threads(1)
    train, test = parts(data, 32)
    other, _ = parts(elsewhere, 32)
    for seed in range(images):
        private = draw(test, batch, seed)
        flat = float(psnr(flat_square(private.inputs), private.inputs).mean())
        for width, kind, mode in cells(widths, modes, trainings):
            model = network(kind, width, train, other, training, seed)
            for name, attack in attacks(evaluations).items():
                row = f"{name}: {evaluations} evaluations, width {width}, {kind}, {mode} mode, batch {batch}"
                if (only and name not in only) or (row, str(seed)) in kept(STUDY):
                    continue
                seen = record(model, private, client=FedSGD(mode=mode), known=["labels"])
                found: Row = attacked_of(attack, seen, private)
                found |= {"variant": name, "evaluations": evaluations, "width": width, "training": kind, "mode": mode}
                found |= {"batch": batch, "trained_steps": training, "flat_psnr": flat, "seed": seed}
                keep(STUDY, row, "psnr", found | {"data": Path(data).stem})
                print(
                    f"{seed} {row}: {found['psnr']:.1f} dB (mean color {flat:.1f}), {found['cpu_s']:.0f} s", flush=True
                )


if __name__ == "__main__":
    command(main)
