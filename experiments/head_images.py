"""Images of the features that a head alone reveals, by `feature_decoder`, where the body is public and frozen.

python experiments/head_images.py          a record for each body, batch size and guess; ten minutes

The body is that of `convnet` of width 16, learned on CIFAR-10 by 300 steps of SGD: its maps as 2,048 features, or their
means over all positions, `pooled` to 32. The client's images are of CIFAR-100, its head is fresh and has 100 classes;
the attacker's own images are the 3,730 that the body learned on. Three seeds of both, ten batches each. `nearest`: the
one of these whose features are nearest. Recognized: a likeness of 0.4 or more. Labels are not known.
"""

from dataclasses import replace

import torch
from common import Clock, at, clocked, command, flat_square, keep, kept, parts, trained
from torch import nn

from seepage import Architecture, Batch, attack, build, record
from seepage.attacks import FeatureDecoder
from seepage.base.nn import frozen_randomness, generator
from seepage.base.schema import Share
from seepage.errors import Inapplicable
from seepage.federation.clients import FedSGD
from seepage.federation.types import Reconstruction
from seepage.measure.metrics import align_guess, likeness
from seepage.measure.metrics.image import psnr

STUDY, SEEDS, BATCHES, CLASSES, SHAPE = "head/images", 3, 10, 100, (3, 32, 32)
RECOGNIZED = 0.4
"""The likeness from which on a picture counts as recognized."""
BODIES = ("maps", "pooled")
GUESSES = ("decoder", "nearest")


def headed(body: str, public: Batch, seed: int) -> nn.Module:
    """A body that learned ten public classes and is frozen, under a fresh head."""
    learned = trained(build(Architecture("convnet", {"width": 16}), SHAPE, 10, seed=seed), public, 300, seed)
    assert isinstance(learned, nn.Sequential)
    layers = nn.Sequential(*list(learned)[:-2], *([nn.AdaptiveAvgPool2d(1)] * (body == "pooled")), nn.Flatten())
    with torch.no_grad():
        width = layers(public.inputs[:1]).shape[1]
    with frozen_randomness(seed):
        return nn.Sequential(layers.requires_grad_(False), nn.Linear(width, CLASSES)).eval()


def main(*, sizes: tuple[int, ...] = (1, 8, 32)) -> None:
    there = {name for name, _ in kept(STUDY)}
    public, _ = parts("../shared/data/cifar10.npz")
    both = parts("../shared/data/cifar100.npz")
    private = Batch(*(torch.cat([getattr(part, name) for part in both]) for name in ("inputs", "labels")))
    for body in BODIES:
        names = {(n, how): f"{body}, batch of {n}, {how}" for n in sizes for how in GUESSES}
        if there >= set(names.values()):
            continue
        found = {key: list[list[float]]() for key in names}  # likeness, dB and a flat color's dB of each image
        clocks, said = {key: Clock() for key in names}, dict[tuple[int, str], str]()
        for seed in range(SEEDS):
            model, order = headed(body, public, seed), generator(seed, "batches")
            for n in sizes:
                for _ in range(BATCHES):
                    batch = at(private, torch.randperm(len(private), generator=order)[:n])
                    seen = record(model, batch, client=FedSGD(mode="eval"))
                    own = replace(seen.knowledge, auxiliary=public.inputs, known=frozenset({"auxiliary"}))
                    flat = psnr(flat_square(batch.inputs), batch.inputs)
                    for how in GUESSES:
                        try:
                            with clocked(clocks[n, how]):
                                decoder = FeatureDecoder(guess=how, width=8, training=300)
                                guess = attack(replace(seen, knowledge=own), decoder)
                            said[n, how] = guess.notes[0]
                        except Inapplicable as refused:
                            print(names[n, how], refused)
                            guess = Reconstruction(batch.inputs[:0])
                        made = align_guess(guess, batch, (0.0, 1.0))
                        alike = likeness(made.guesses, batch.inputs).where(made.matched, torch.zeros(()).double())
                        near = psnr(made.guesses, batch.inputs).where(made.matched, flat * float("nan"))
                        found[n, how] += torch.stack([alike, near, flat], 1).tolist()
        for (n, how), name in names.items():
            alike, near, flat = torch.tensor(found[n, how], dtype=torch.float64).T
            share = Share.count(int((alike >= RECOGNIZED).sum()), len(alike))
            row = {"body": body, "n": n, "guess": how, "of": len(alike), "known": int(near.isfinite().sum())}
            row |= {"recognized": share.hits, "interval": [share.low, share.high], "psnr": float(near.nanmean())}
            row |= {"flat": float(flat.mean()), "above_flat": int((near > flat).sum()), "batches": SEEDS * BATCHES}
            row |= {"cpu_s": clocks[n, how].cpu / (SEEDS * BATCHES), "said": said.get((n, how), ""), "data": "cifar100"}
            keep(STUDY, name, "recognized", row)
            print(name, row, flush=True)


if __name__ == "__main__":
    command(main)
