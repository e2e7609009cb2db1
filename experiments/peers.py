"""Gradient matching beside other packages: equal weights, gradients, images, labels and numbers of evaluations.

    python experiments/peers.py --data cifar10.npz [--attacks NAME ...] [--networks NAME ...]

A victim is a network, its weights (fresh, or after 100 steps), the mode its update was taken in, and a batch size. Of
each network, 20 images are attacked: four alone, two batches of four and one of eight, all test images from number 300
on; the first 300 are for tuning. On ResNet-20 it is 14 images and 100 evaluations. Labels are known. `breaching` and
`leakpro` run where they are installed, through their own interfaces and with their own constants; only the number of
steps is set. Every guess is clamped, matched to the originals by least total error and scored by one function.

One line per victim and attack goes to `results/matching/peers.jsonl`; lines that are there already are not made again.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from common import Clock, Row, at, clocked, descend, flat_square, kept, parts
from peer_packages import breaching_guess
from torch import Tensor, nn

from seepage import Architecture, FedSGD, attack, build, record
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.models import Normalize
from seepage.federation.types import Batch, Reconstruction
from seepage.measure.metrics import align_guess
from seepage.measure.metrics.image import psnr, ssim
from seepage.measure.metrics.interval import bootstrap_interval
from seepage.papers.records import keep_measured

STUDY = "matching/peers"
FIRST_SCORED = 300
"""Test images before this one are for tuning."""
MEAN, STD = 0.5, 0.25
"""Of `Normalize`, the first layer of every network here; other packages are known of it and given the rest."""

SIZES = {1: (0, 1, 2, 3), 4: (4, 8), 8: (12,)}
"""Batch size to the places, counted from the first scored image, at which its batches begin."""
FEWER = {"resnet20": {1: (0, 1), 4: (4,), 8: (12,)}}
"""The same where a step is dear: 14 of the 20 images."""
EVALUATIONS = {"resnet20": 100}
"""Gradient evaluations of a network; 300 of the others."""


def lenet(activation: type[nn.Module], spread: float) -> nn.Sequential:
    """Three 5x5 convolutions of 12 channels and a linear layer, as in Deep Leakage from Gradients."""
    layers: list[nn.Module] = [Normalize(MEAN, STD)]
    for channels, stride in ((3, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(channels, 12, 5, stride=stride, padding=2), activation()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, 10))
    for parameter in net.parameters() if spread else ():
        nn.init.uniform_(parameter, -spread, spread)
    return net


def vgg() -> nn.Sequential:
    """Six 3x3 convolutions in three pairs, max pooling after each pair, one linear layer; no batch norm."""
    layers: list[nn.Module] = [Normalize(MEAN, STD)]
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut: a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.relu(self.body(inputs) + self.shortcut(inputs))
        return outputs


def resnet20() -> nn.Sequential:
    """ResNet-20 for CIFAR (He et al., CVPR 2016, section 4.2): three stages of three blocks, 16 to 64 channels."""
    layers: list[nn.Module] = [Normalize(MEAN, STD)]
    layers += [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for stage, width in enumerate((16, 32, 64)):
        for place in range(3):
            layers.append(Residual(before, width, 2 if stage and not place else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convnet": lambda: build(Architecture("convnet"), (3, 32, 32), 10),
    "lenet-relu": lambda: lenet(nn.ReLU, 0.0),
    "lenet-sigmoid": lambda: lenet(nn.Sigmoid, 0.5),
    "vgg": vgg,
    "resnet20": resnet20,
}
"""Only ResNet-20 has batch norm, so only there do the modes differ."""


@dataclass(frozen=True)
class Victim:
    """One line of the table.

    Attributes:
        network: A key of `NETWORKS`.
        steps: Training steps of its weights.
        mode: In which its update is taken, and known to be taken.
        size: Examples per batch.
    """

    network: str
    steps: int
    mode: Literal["train", "eval"]
    size: int

    def __str__(self) -> str:
        weights = f"after {self.steps} steps" if self.steps else "fresh"
        return f"{self.network}, {weights}, {self.mode} mode, batch {self.size}"


def victims(names: list[str], sizes: list[int]) -> Iterator[Victim]:
    for name, steps in itertools.product(names, (0, 100)):
        for mode in ("eval", "train") if name == "resnet20" else ("eval",):
            yield from (Victim(name, steps, mode, size) for size in sizes)  # type: ignore[arg-type]


def weighted(victim: Victim, train: Batch, seed: int = 0) -> nn.Module:
    """The network with its weights: SGD at 0.02 with momentum 0.9 on batches of 32."""
    with frozen_randomness(seed):
        model = NETWORKS[victim.network]()
    optimizer, order = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9), generator(seed, "training")
    chosen = (torch.randperm(len(train), generator=order)[:32] for _ in range(victim.steps))
    descend(model.train(), optimizer, (at(train, places) for places in chosen))
    return model.eval()


Attacked = Callable[[nn.Module, Batch, Victim, int], Tensor]
"""Network, private batch, victim and evaluations to guesses `[n, 3, 32, 32]` in [0, 1]."""


def gradients_of(model: nn.Module, batch: Batch, mode: str) -> list[Tensor]:
    """The update every attack is given: the gradient of the mean cross-entropy."""
    copy = deepcopy(model).train(mode == "train")
    loss = F.cross_entropy(copy(batch.inputs), batch.labels)
    return list(torch.autograd.grad(loss, list(copy.parameters())))


def ours(name: str, **options: Any) -> Attacked:
    def run(model: nn.Module, batch: Batch, victim: Victim, evaluations: int) -> Tensor:
        seen = record(model, batch, client=FedSGD(mode=victim.mode), known=["labels"])
        return attack(seen, name, options={"steps": evaluations, **options}, seed=0).inputs

    return run


def breaching(preset: str) -> Attacked:
    """A preset of the breaching package, through `prepare_attack` and `reconstruct`."""

    def run(model: nn.Module, batch: Batch, victim: Victim, evaluations: int) -> Tensor:
        return breaching_guess(
            deepcopy(model)[1:],  # type: ignore[index]  # without `Normalize`
            gradients_of(model, batch, victim.mode),
            batch.labels,
            batch.inputs.shape[1:],
            preset=preset,
            evaluations=evaluations,
            train=victim.mode == "train",
            mean=MEAN,
            std=STD,
        )

    return run


class _KeepsMode(nn.Module):
    """A network whose mode nobody changes: LeakPro calls `eval` on every victim."""

    def __init__(self, body: nn.Module, mode: str) -> None:
        super().__init__()
        self.body = body.train(mode == "train")

    def train(self, mode: bool = True) -> "_KeepsMode":
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.body(inputs)
        return outputs


def leakpro(model: nn.Module, batch: Batch, victim: Victim, evaluations: int) -> Tensor:
    """LeakPro's `InvertingGradients`; it computes the update itself. Its point of lowest loss, not of best SSIM."""
    from leakpro.attacks.gia_attacks.invertinggradients import InvertingConfig, InvertingGradients
    from torch.utils.data import DataLoader, TensorDataset

    body = _KeepsMode(deepcopy(model)[1:], victim.mode)  # type: ignore[index]
    loader = DataLoader(TensorDataset((batch.inputs - MEAN) / STD, batch.labels), batch_size=32)
    mean, std = torch.full((1, 3, 1, 1), MEAN), torch.full((1, 3, 1, 1), STD)
    with frozen_randomness(0):
        it = InvertingGradients(body, loader, mean, std, configs=InvertingConfig(at_iterations=evaluations))
        it.prepare_attack()
        for _ in it.run_attack():
            pass
    guesses: Tensor = it.best_reconstruction.dataset.reconstruction.detach()
    return guesses * STD + MEAN


ATTACKS: dict[str, Attacked] = {
    "breaching invertinggradients": breaching("invertinggradients"),
    "breaching modern": breaching("modern"),
    "leakpro invertinggradients": leakpro,
    "inverting_gradients": ours("inverting_gradients", labels="given"),
    # The weight of total variation that its authors' library has where none is named, twice less than breaching's.
    "inverting_gradients tv=0.1": ours("inverting_gradients", labels="given", tv=0.1),
    "gradient_matching": ours("gradient_matching", labels="given"),
}


def scored(guesses: Tensor, batch: Batch) -> dict[str, Tensor]:
    """PSNR and SSIM of each example after matching, and both of its own mean color."""
    found = align_guess(Reconstruction(inputs=guesses.detach().clamp(0, 1)), batch, (0.0, 1.0)).guesses
    flat, truth = flat_square(batch.inputs), batch.inputs
    return {
        "psnr": psnr(found, truth),
        "ssim": ssim(found, truth),
        "flat_psnr": psnr(flat, truth),
        "flat_ssim": ssim(flat, truth),
    }


def batches(victim: Victim, test: Batch, first: int) -> Iterator[Batch]:
    for place in FEWER.get(victim.network, SIZES)[victim.size]:
        chosen = slice(first + place, first + place + victim.size)
        yield Batch(test.inputs[chosen], test.labels[chosen])


def case(attacked: Attacked, victim: Victim, model: nn.Module, test: Batch, options: argparse.Namespace) -> Row:
    """All batches of one victim under one attack: mean PSNR with its 95 % interval, and what stands beside it."""
    evaluations = options.evaluations or EVALUATIONS.get(victim.network, 300)
    scores: list[dict[str, Tensor]] = []
    clock = Clock()
    for batch in batches(victim, test, options.first):
        with clocked(clock):
            guesses = attacked(model, batch, victim, evaluations)
        scores.append(scored(guesses, batch))
    each = {name: torch.cat([score[name] for score in scores]) for name in scores[0]}
    group = torch.arange(len(scores)).repeat_interleave(victim.size)
    row: Row = {name: float(values.double().mean()) for name, values in each.items()}
    return {
        **row,
        "interval": bootstrap_interval(each["psnr"], group),
        "each": each["psnr"].tolist(),
        "evaluations": evaluations,
        "cpu_s": clock.cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--evaluations", type=int, help="per batch and attack; 300, or fewer where a step is dear")
    parser.add_argument("--first", type=int, default=FIRST_SCORED, help="number of the first test image")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, test = parts(options.data)
    done = {row for row, _ in kept(STUDY)}
    for victim in victims(options.networks, options.sizes):
        missing = [name for name in options.attacks if f"{name}: {victim}" not in done]
        model = weighted(victim, train) if missing else None
        for name in missing:
            assert model is not None
            row = case(ATTACKS[name], victim, model, test, options)
            facts = {"attack": name, **vars(victim), **row}
            # The command names one attack and one network: that is enough to make the line again.
            words = f"--attacks '{name}' --networks {victim.network} --sizes {victim.size}"
            command = f"python experiments/peers.py --data cifar10.npz {words} --evaluations {row['evaluations']}"
            interval, value = facts.pop("interval"), facts.pop("psnr")
            keep_measured(
                *(STUDY, f"{name}: {victim}", "psnr", value),
                seed=0,
                interval=interval,
                data="cifar10",
                command=command,
                **facts,
            )


if __name__ == "__main__":
    main()
