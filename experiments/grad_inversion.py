"""GradInversion: what its published weights prefer, and where its batch-norm term helps.

    python experiments/grad_inversion.py terms search --data ../shared/data/cifar10.npz --weights ../shared/data/weights

Victims are a CIFAR ResNet-20 with batch norm in eval mode, as GradInversion's paper has it: with public weights trained
on CIFAR-10, whose running statistics are those of real images; with these and a new head, as in the paper, whose
network's features were learned without labels; or fresh, whose statistics are 0 and 1 and say nothing. `small` networks
are ConvNets for images of 16 pixels, which the gradient's distance alone can invert. Batches are test
images that neither the weights nor development saw, with labels that all differ, which the label rule needs. Labels are
told, so that a wrong one cannot be the cause.

- `terms`: the two terms of the objective at the truth, at grey and at the first noise. The distance of the gradients is
  0 at the truth; the batch-norm term is not, because the statistics of a few images are not those of the data.
- `search`: the attack with other weights, from the published ones to the gradient alone, and where each search ended
  beside the truth by its own objective. A search that ends *below* the truth has done its work: then it is the weights
  that prefer another image, and no better search helps. `near` starts at the truth with noise of 0.05 on it.

One record per variant and seed goes to results/matching/grad-inversion.jsonl; what is there already is not made again.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from common import HELD_BACK, Clock, Row, clocked, flat_square, kept, measure, parts
from convolutions import trained
from peers import resnet20
from torch import Generator, Tensor, nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.search import grad_inversion
from seepage.attacks.search.directions import Direction, Gradients
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.labels import LABEL_RULES
from seepage.attacks.search.parameters import Pixels, SearchSpace
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.types import Knowledge, Transcript
from seepage.measure.metrics.image import psnr
from seepage.measure.metrics.labels import label_accuracy
from seepage.papers.records import keep_measured

STUDY = "matching/grad-inversion"
RESNETS = ["trained", "new head", "fresh"]
CONVNETS = {"small, trained": 400, "small, fresh": 0}
"""Training steps of a ConvNet of width 16 with GELU and batch norm, for images of 16 pixels."""
STEPS = 500
"""Of the paper's 20,000; where a search ends below the truth, more could only take it further away."""
PUBLISHED: Row = {"match": 1e-4, "batch_norm": 0.1}
WEIGHTS: dict[str, Row] = {
    "published, batch norm 1,000 x distance": PUBLISHED,
    "batch norm 10 x distance": {"match": 1e-2, "batch_norm": 0.1},
    "batch norm 1 x distance": {"match": 1e-2, "batch_norm": 1e-2},
    "batch norm 0.1 x distance": {"match": 1e-2, "batch_norm": 1e-3},
    "batch norm 0.01 x distance": {"match": 1e-2, "batch_norm": 1e-4},
    "no batch norm": {"match": 1e-2, "batch_norm": 0.0},
    "no batch norm, noise on the gradient": {"match": 1e-2, "batch_norm": 0.0},
    "published, noise on the gradient": PUBLISHED,
}
"""Adam sees no common factor, so only the ratios count: of total variation (1e-4) to `match` too."""


@dataclass(frozen=True)
class NoiseOnGradient(Direction):
    """Normal noise of `scale` times the learning rate on the gradient before the optimizer, as in breaching.

    Adam takes a gradient's length away, so on small gradients that noise is all that is followed.
    """

    scale: float

    def __call__(self, gradients: Gradients, place: Any) -> Gradients:
        factor = self.scale * place.lr
        return [gradient + factor * noise for gradient, noise in zip(gradients, place.noise(gradients), strict=True)]


@dataclass(frozen=True, kw_only=True)
class NearTruth(Pixels):
    """Normalized images that start at the truth with a little noise: no attack, but a question to the objective."""

    truth: Tensor
    noise: float = 0.05

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        space = super().start(batch_size, knowledge, like, generator)
        noisy = self.truth + self.noise * torch.randn(self.truth.shape, generator=generator)
        return replace(space, unknowns=[((noisy.clamp(0, 1) - self.mean) / self.std).to(like)])


def distinct(test: Batch, n: int, seed: int) -> Batch:
    """Images of n classes, in the order of a seeded shuffle of what development did not see."""
    order = HELD_BACK + torch.randperm(len(test) - HELD_BACK, generator=generator(seed, "batch"))
    found: dict[int, int] = {}
    for place in order.tolist():
        found.setdefault(int(test.labels[place]), place)
    chosen = torch.tensor(list(found.values())[:n])
    return Batch(test.inputs[chosen], test.labels[chosen])


def network(weights: str, state: str) -> nn.Module:
    """The CIFAR ResNet-20: with public weights, all or with a new head, or fresh with a shortcut of its own."""
    if state == "fresh":
        with frozen_randomness(0):
            return resnet20().eval()
    from cpa_networks import ResNet20
    from safetensors.torch import load_file

    public = load_file(f"{weights}/resnet20_cifar10.safetensors")
    with frozen_randomness(0):
        body, head = ResNet20(), nn.Linear(64, 10)
    body.load_state_dict({k: v for k, v in public.items() if not k.startswith("linear")}, strict=False)
    if state == "trained":
        head.load_state_dict({k.removeprefix("linear."): v for k, v in public.items() if k.startswith("linear")})
    from cpa_embeddings import Standardized

    return nn.Sequential(Standardized(), body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def small(train: Batch, state: str) -> nn.Module:
    """A network that gradient matching alone can invert; its running statistics are of real images where trained."""
    architecture = Architecture("convnet", {"width": 16, "activation": "gelu", "batch_norm": True})
    model = build(architecture, tuple(train.inputs.shape[1:]), 10, seed=0)
    return trained(model, train, CONVNETS[state], 0).eval()


def seen(model: nn.Module, batch: Batch) -> Transcript:
    return record(model, batch, client=FedSGD(mode="eval"), known=["labels"])


def at(transcript: Transcript, inputs: Tensor, labels: Tensor) -> Row:
    """The terms of the objective, each with weight 1."""
    distance = grad_inversion(match=1.0, batch_norm=0.0, l2=0.0, group=0.0, tv=0.0)
    both = grad_inversion(match=1.0, batch_norm=1.0, l2=0.0, group=0.0, tv=0.0)
    first, second = (one.objective_at(transcript, inputs, labels) for one in (distance, both))
    return {"distance": first, "batch_norm_term": second - first}


def terms(transcript: Transcript, batch: Batch, seed: int) -> Iterator[tuple[str, Row]]:
    noise = torch.randn(batch.inputs.shape, generator=generator(seed, "noise"))
    places = {
        "truth": batch.inputs,
        "mean color": flat_square(batch.inputs),
        "noise": (0.5 + 0.25 * noise).clamp(0, 1),
    }
    for name, inputs in places.items():
        yield name, at(transcript, inputs, batch.labels)


def searched(transcript: Transcript, batch: Batch, options: Row, seed: int, *, noise_on: str, near: bool) -> Row:
    """One search, and the objective where it ended beside that at the truth."""
    attack = grad_inversion(steps=STEPS, restarts=1, group=0.0, labels="given", **options)
    assert isinstance(attack, GradientMatching)
    if noise_on == "gradient":
        attack = replace(attack, direction=NoiseOnGradient(0.2))
    if near:
        space = attack.parameters
        attack = replace(attack, parameters=NearTruth(truth=batch.inputs, mean=0.5, std=space.std))
    clock = Clock()
    with clocked(clock):
        found = attack(transcript, seed=seed)
    assert found.labels is not None
    row = {**measure(found, batch), **found.cost, "cpu_s": clock.cpu, "status": found.status}
    row |= {f"found_{name}": value for name, value in at(transcript, found.inputs, found.labels).items()}
    row["length_of_target"] = sum(float(g.norm()) for g in transcript[0].gradient(transcript.knowledge.client).values())
    row["objective"] = attack.objective_at(transcript, found.inputs, found.labels)
    row["objective_of_truth"] = attack.objective_at(transcript, batch.inputs, batch.labels)
    return {**row, "below_truth": row["objective"] < row["objective_of_truth"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=["terms", "search", "near"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--network", nargs="+", choices=[*RESNETS, *CONVNETS], default=RESNETS)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="variants")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = Path(args.data).stem
    for seed, state in itertools.product(range(args.seeds), args.network):
        train, test = parts(args.data, 16 if state in CONVNETS else None)
        model = small(train, state) if state in CONVNETS else network(args.weights, state)
        for n in args.batch:
            batch = distinct(test, n, seed)
            transcript = seen(model, batch)
            named = LABEL_RULES["minimum"](transcript[0], transcript.knowledge)
            assert named is not None
            facts: dict[str, Any] = {
                "network": state,
                "batch": n,
                "labels_right": label_accuracy(named, batch.labels),
            }
            facts["flat_psnr"] = float(psnr(flat_square(batch.inputs), batch.inputs).mean())
            where = f"{'convnet' if state in CONVNETS else 'resnet20'} {state}, batch {n}"
            if "terms" in args.tables:
                for place, row in terms(transcript, batch, seed):
                    words = f"terms at the {place}: {where}"
                    if (words, str(seed)) not in kept(STUDY):
                        value = row["batch_norm_term"]
                        rest = facts | {"table": "terms", "place": place, "distance": row["distance"]}
                        keep_measured(STUDY, words, "batch_norm_term", value, seed=seed, data=data, **rest)
            for table in ("search", "near"):
                for name, options in WEIGHTS.items() if table in args.tables else ():
                    words = f"{table}: {name}: {where}"
                    if (words, str(seed)) in kept(STUDY) or (args.only and name not in args.only):
                        continue
                    noise_on = "gradient" if name.endswith("noise on the gradient") else "step"
                    row = searched(transcript, batch, options, seed, noise_on=noise_on, near=table == "near")
                    rest = facts | {"table": table, "variant": name, "noise_on": noise_on, **options} | row
                    keep_measured(STUDY, words, "psnr", rest.pop("psnr"), seed=seed, data=data, **rest)


if __name__ == "__main__":
    main()
