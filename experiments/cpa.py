r"""Fill the Cocktail Party Attack's tables: each command adds JSON lines to results/cpa/, with versions and command.

python experiments/cpa.py unmix  --data ../shared/data/cifar10.npz --n 32 64 128 192 256 --batches 5
python experiments/cpa.py polish --data ../shared/data/tiny_imagenet_64.npz --n 32 64 128 --batches 5
python experiments/cpa.py updates --data ../shared/data/cifar10.npz --n 32 64
python experiments/cpa.py rivals --data ../shared/data/tiny_imagenet_64.npz --n 32 --steps 4000 --matching-steps 1000
python experiments/cpa.py ablation --data ../shared/data/tiny_imagenet_64.npz --n 32 --batches 2 --steps 3000
python experiments/cpa.py noise --data ../shared/data/tiny_imagenet_64.npz --n 8 --batches 2 --matching-steps 500
python experiments/cpa.py wide --data ../shared/data/cifar10.npz --n 512 1024 --hidden 2048 --epochs 2 --batches 1
"""

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import Row, attacked, draw, keep, parts, trained_fc2
from torch import nn

from seepage.api import record
from seepage.attacks import Attack, inverting_gradients
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.attacks.cpa.ica import IMAGES
from seepage.base.nn import norm
from seepage.federation.clients import FedAvg
from seepage.federation.defenses.noise import GaussianNoise
from seepage.federation.types import Batch

Methods = Iterator[tuple[str, Attack]]
DELTA = 1e-5


def ours() -> Methods:
    yield "unmixed", CocktailParty(polish=False)
    yield "polished", CocktailParty()


def gma(steps: int, labels: str) -> Attack:
    """Gradient matching with the settings of CPA's authors: plain Adam, cosine schedule, total variation 1e-3."""
    return inverting_gradients(steps=steps, tv=1e-3, schedule="cosine", signed=False, labels=labels)


def rivals(arguments: argparse.Namespace) -> Methods:
    """The published method, gradient matching with labels optimized (as its authors ran it) or counted, and ours."""
    yield from ours()
    yield "published", CocktailParty(mode="published", steps=arguments.steps)
    if arguments.matching_steps:
        yield "matching, labels optimized", gma(arguments.matching_steps, "joint")
        yield "matching, labels counted", gma(arguments.matching_steps, "auto")


def ablation(arguments: argparse.Namespace) -> Methods:
    """Table 4: the published objective without each of its terms."""
    without = {"all": {}, "-NE": {"negentropy": 0.0}, "-TV": {"tv": 0.0}, "-MI": {"independence": 0.0}}
    for name, change in without.items():
        yield name, CocktailParty(mode="published", steps=arguments.steps, objective=replace(IMAGES, **change))


def epsilon(ratio: float, delta: float = DELTA) -> float:
    """Epsilon of one Gaussian mechanism with `ratio` = sensitivity / sigma, exactly (Balle and Wang 2018, theorem 8).

    >>> round(epsilon(1.0), 2)
    4.38
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    def excess(e: float) -> float:
        a, b = ratio / 2 - e / ratio, -ratio / 2 - e / ratio
        return float(ndtr(a) - math.exp(e + log_ndtr(b)) - delta)

    return float(brentq(excess, 0.0, ratio**2 / 2 + 10 * ratio + 10))


def noise(arguments: argparse.Namespace, model: nn.Module, batch: Batch, facts: Mapping[str, Any]) -> None:
    """Table 3: the whole gradient scaled to norm 1, noise of deviation sigma on each entry."""
    size = float(norm(record(model, batch)[0].update.tensors))
    for sigma in (0.0, 1e-4, 1e-3, 1e-2):
        # The paper's epsilons are those of a sensitivity of 1/n: each example's gradient clipped to norm 1.
        exact = epsilon(1 / len(batch) / sigma) if sigma else None
        for name, attack in rivals(arguments):
            known = {**facts, "method": name, "sigma": sigma, "epsilon": exact, "gradient_norm": size}
            row = attacked(attack, model, batch, defense=GaussianNoise(sigma=sigma, clip=min(1.0, size)))
            keep("cpa/noise", f"{name}, sigma {sigma:g}", "cosine", known | row)


def updates(arguments: argparse.Namespace, model: nn.Module, batch: Batch, facts: Mapping[str, Any]) -> None:
    """Table 1, update inversion: ten local epochs of batches of 32."""
    rule = FedAvg(lr=arguments.lr, epochs=10, batch_size=32)
    for name, attack in ours():
        row = {**facts, "method": name, "lr": rule.lr, **attacked(attack, model, batch, client=rule)}
        keep("cpa/updates", f"{name}, n {len(batch)}", "cosine", row)


def methods(arguments: argparse.Namespace) -> Methods:
    kinds = {"rivals": rivals, "ablation": ablation}
    if arguments.kind in kinds:
        return kinds[arguments.kind](arguments)
    return (pair for pair in ours() if pair[0] == ("polished" if arguments.kind == "polish" else "unmixed"))


def run(arguments: argparse.Namespace) -> None:
    model, test = trained_fc2(arguments.data, hidden=arguments.hidden, epochs=arguments.epochs)
    if arguments.kind == "wide":
        # Only time and memory are asked for, and there are too few test images.
        both = parts(arguments.data)
        test = Batch(torch.cat([part.inputs for part in both]), torch.cat([part.labels for part in both]))
    for n in arguments.n:
        for seed in range(arguments.first, arguments.first + arguments.batches):
            batch = draw(test, n, seed)
            facts: Row = {"data": Path(arguments.data).stem, "n": n, "seed": seed, "hidden": arguments.hidden}
            if arguments.kind in ("noise", "updates"):
                {"noise": noise, "updates": updates}[arguments.kind](arguments, model, batch, facts)
                continue
            for name, attack in methods(arguments):
                if arguments.methods and name not in arguments.methods:
                    continue
                row = {**facts, "method": name, **attacked(attack, model, batch)}
                keep(f"cpa/{arguments.kind}", f"{name}, n {n}", "cosine", row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("unmix", "polish", "updates", "rivals", "ablation", "noise", "wide"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--n", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first", type=int, default=3000, help="first batch seed")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=25_000, help="of the published method")
    parser.add_argument("--matching-steps", type=int, default=0, help="of gradient matching; 0: leave it out")
    parser.add_argument("--methods", nargs="*", help="only these of rivals or ablation")
    parser.add_argument("--lr", type=float, default=1e-3, help="of the client's local steps")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
