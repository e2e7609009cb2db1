r"""Fill the Cocktail Party Attack's tables: each command adds JSON lines to results/cpa/, with versions and command.

python benchmarks/cpa.py unmix  --data ../shared/data/cifar10.npz --n 32 64 128 --batches 5
python benchmarks/cpa.py polish --data ../shared/data/tiny_imagenet_64.npz --n 32 64 128 --batches 5
python benchmarks/cpa.py updates --data ../shared/data/cifar10.npz --n 32 64
python benchmarks/cpa.py published --data ../shared/data/cifar10.npz --n 32 --batches 1 --steps 25000
python benchmarks/cpa.py matching --data ../shared/data/tiny_imagenet_64.npz --n 32 --batches 1 --steps 800
python benchmarks/cpa.py noise --data ../shared/data/tiny_imagenet_64.npz --n 8
python benchmarks/cpa.py embeddings --data ../shared/data/imagenet_sample_224.zip --n 32 64 128 256 --batches 1 \
    --weights ../shared/data/weights/squeezenet1_1_caffe_imagenet.safetensors
python benchmarks/cpa.py wide --data ../shared/data/tiny_imagenet_64.npz --n 512 --hidden 2048
"""

import argparse
import hashlib
import io
import json
import platform
import resource
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.api import record
from seepage.attacks import Attack, inverting_gradients
from seepage.attacks.cocktail_party import CocktailParty
from seepage.clients import FedSGD
from seepage.defenses.noise import GaussianNoise
from seepage.functional import forward, frozen_randomness, generator, in_mode
from seepage.metrics.align import align
from seepage.metrics.image import is_image, psnr, ssim
from seepage.models import fc2
from seepage.transcript import OneRound
from seepage.types import Batch, ClientUpdate, Knowledge, Reconstruction, Round, Tensors, Update

OUT = Path("results/cpa")
HELD_BACK = 256
"""The first so many test images, in a seeded order, are for development; no batch here is drawn from them."""


@dataclass(frozen=True, kw_only=True)
class LocalSteps(ClientUpdate):
    """Epochs of mini-batch SGD from the server's weights; sends the difference of weights."""

    lr: float = 1e-3
    epochs: int = 10
    size: int = 32
    examples: int = 32
    seed: int = 0

    def _batches(self, n: int) -> list[Tensor]:
        draw = generator(self.seed, "local order")
        return [part for _ in range(self.epochs) for part in torch.randperm(n, generator=draw).split(self.size)]

    def __call__(
        self,
        model: nn.Module,
        params: Tensors,
        batch: Batch,
        *,
        buffers: Tensors | None = None,
        create_graph: bool = False,
    ) -> Update:
        now = {name: p.detach().clone() for name, p in params.items()}
        for part in self._batches(len(batch)):
            leaves = {name: p.requires_grad_() for name, p in now.items()}
            with in_mode(model, training=True):
                loss = F.cross_entropy(forward(model, leaves, batch.inputs[part], buffers=buffers), batch.labels[part])
            slopes = torch.autograd.grad(loss, list(leaves.values()))
            now = {name: (p - self.lr * g).detach() for (name, p), g in zip(leaves.items(), slopes, strict=True)}
        return Update.from_states(params, now)

    def as_gradient(self, update: Update) -> Tensors:
        steps = self.epochs * -(-self.examples // self.size)
        return {name: tensor / (-self.lr * steps) for name, tensor in update.tensors.items()}

    def separable(self, model: nn.Module) -> bool:
        return True


def load(path: str, train: int = 0) -> tuple[Batch, Batch]:
    """Train and test images of a data file; a file without a split is split after a seeded shuffle."""
    with np.load(path) as file:
        if "x_train" in file.files:
            parts = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
        else:
            order = np.random.default_rng(7).permutation(len(file["x"]))
            x, y = file["x"][order], file["y"][order]
            train = train or round(0.68 * len(x))
            parts = [(x[:train], y[:train]), (x[train:], y[train:])]
    both = [Batch(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y).long()) for x, y in parts]
    return both[0], both[1]


def trained(path: str, *, hidden: int, epochs: int, seed: int) -> tuple[nn.Module, Batch, int]:
    """FC-2 trained as in the paper (Adam 1e-3, batch 128), from the cache where it was trained before; test images."""
    train, test = load(path)
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    with frozen_randomness(seed):
        model = fc2(tuple(train.inputs.shape[1:]), classes, hidden=hidden)
    key = hashlib.sha256(f"{Path(path).name}/{hidden}/{epochs}/{seed}".encode()).hexdigest()[:12]
    cache = Path(tempfile.gettempdir()) / f"seepage-fc2-{key}.pt"
    if cache.exists():
        model.load_state_dict(torch.load(cache, weights_only=True))
        return model, test, classes
    optimizer, draw = torch.optim.Adam(model.parameters(), 1e-3), generator(seed, "train")
    for _ in range(epochs):
        for part in torch.randperm(len(train), generator=draw).split(128):
            loss = F.cross_entropy(model(train.inputs[part]), train.labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), cache)
    return model, test, classes


def draw(test: Batch, n: int, seed: int) -> Batch:
    """A batch of n images that development did not see; where too few are left, of all."""
    first = HELD_BACK if len(test) - HELD_BACK >= n else 0
    chosen = first + torch.randperm(len(test) - first, generator=generator(seed, "batch"))[:n]
    return Batch(test.inputs[chosen], test.labels[chosen])


def upright(inputs: Tensor, truth: Tensor) -> Tensor:
    """Images whose negative is nearer to the example they resemble most, made negative; as the authors score theirs."""

    def unit(images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return F.normalize(flat - flat.mean(1, keepdim=True), dim=1)

    cosines = unit(inputs) @ unit(truth).T
    chosen = cosines.gather(1, cosines.abs().argmax(1, keepdim=True))[:, 0]
    return torch.where(chosen[:, None, None, None] < 0, 1 - inputs, inputs)


def measure(found: Reconstruction, batch: Batch, certify: float | None) -> dict[str, Any]:
    """Scores after Hungarian matching; sign and scale are fitted only where the method leaves them open."""
    inputs = found.inputs
    if "sign" in found.ambiguity and found.space == "input":
        inputs = upright(inputs, batch.inputs)
    matched = align(inputs, batch.inputs)
    guesses, there = matched.guesses, matched.matched
    similar = F.cosine_similarity(guesses.flatten(1) - 0.5, batch.inputs.flatten(1) - 0.5).where(there, torch.zeros(()))
    quality = psnr(guesses, batch.inputs)
    row: dict[str, Any] = {
        "cosine": float(similar.mean()),
        "cosine_median": float(similar.median()),
        "psnr": float(quality.mean()),
        "exact": float(((quality > 40) & there).double().mean()),
        "alignment": matched.name + ("+negatives chosen by the truth" if inputs is not found.inputs else ""),
    }
    if is_image(tuple(batch.inputs.shape[1:])):
        row["ssim"] = float(ssim(guesses, batch.inputs).mean())
    if certify is not None and found.objective is not None and "sign" not in found.ambiguity:
        sure = torch.zeros(len(batch), dtype=torch.bool)
        sure[there] = found.objective[matched.permutation[there]] < certify
        row["certified"] = float(sure.double().mean())
        row["false_certified"] = int((sure & (quality <= 40)).sum())
        row["certified_psnr_min"] = float(quality[sure].min()) if sure.any() else None
    return row


def one(kind: str, attack: Attack, model: nn.Module, batch: Batch, facts: Mapping[str, Any], **how: Any) -> None:
    """Record, attack, measure, write."""
    seen = OneRound(record(model, batch, **how), 0)
    wall, cpu = time.perf_counter(), time.process_time()
    found = attack(seen, seed=0)
    seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    row = {
        "case": kind,
        **facts,
        **measure(found, batch, attack.certify if isinstance(attack, CocktailParty) else None),
        **seconds,
        "attack": repr(attack),
    }
    row["notes"] = list(found.notes)
    write(kind, row)


def write(name: str, row: dict[str, Any]) -> None:
    """Add a line to results/cpa/NAME.jsonl and show it."""
    OUT.mkdir(parents=True, exist_ok=True)
    short = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
    line = json.dumps(
        {
            **short,
            "command": "python " + " ".join(sys.argv),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    )
    with (OUT / f"{name}.jsonl").open("a") as file:
        file.write(line + "\n")
    shown = (
        "data",
        "n",
        "seed",
        "polish",
        "cosine",
        "over_0.999",
        "psnr",
        "exact",
        "certified",
        "false_certified",
        "cpu_s",
        "wall_s",
    )
    print(name, {key: short[key] for key in shown if key in short}, flush=True)


@dataclass(frozen=True)
class Handmade:
    """A transcript of one round made without recording: the backbone is frozen, so only the head's gradient is sent."""

    knowledge: Knowledge
    observed: Round

    def __len__(self) -> int:
        return 1

    def __getitem__(self, t: int) -> Round:
        return self.observed


class Standardized(nn.Module):
    """Photographs to the units that ImageNet networks were trained in."""

    def forward(self, images: Tensor) -> Tensor:
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        return (images - mean.to(images)[:, None, None]) / std.to(images)[:, None, None]


def headed(weights: str, hidden: int = 512, seed: int = 0) -> nn.Sequential:
    """SqueezeNet 1.1 features of 7 x 7 x 512 = 25,088 entries, frozen, and a fresh two-layer head."""
    from safetensors.torch import load_file
    from torchvision.models import squeezenet1_1

    network = squeezenet1_1()
    network.load_state_dict(load_file(weights))
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    with frozen_randomness(seed):
        head = [nn.Linear(25_088, hidden), nn.ReLU(), nn.Linear(hidden, 1000)]
        return nn.Sequential(Standardized(), network.features, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head).eval()


def pictures(path: str, n: int, seed: int) -> Tensor:
    """`[n, 3, 224, 224]` images of a zip file."""
    from PIL import Image

    with zipfile.ZipFile(path) as file:
        names = sorted(name for name in file.namelist() if name.endswith(".jpg"))
        chosen = torch.randperm(len(names), generator=generator(seed, "pictures"))[:n].tolist()
        arrays = [np.asarray(Image.open(io.BytesIO(file.read(names[i]))).convert("RGB")) for i in chosen]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def embeddings(arguments: argparse.Namespace) -> None:
    """Embeddings of pretrained features recovered from the head's gradient; random labels."""
    model = headed(arguments.weights)
    body, head = model[:4], model[4:]
    for n in arguments.n:
        for seed in range(arguments.first, arguments.first + arguments.batches):
            with torch.no_grad():
                truth = torch.cat([body(part) for part in pictures(arguments.data, n, seed).split(8)])
            labels = torch.randint(1000, (n,), generator=generator(seed, "labels"))
            slopes = torch.autograd.grad(F.cross_entropy(head(truth), labels), list(head.parameters()))
            params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
            observed = Round(0, params, Update(dict(zip(params, slopes, strict=True))), {}, n)
            seen = Handmade(Knowledge(model, FedSGD(mode="eval"), (3, 224, 224), 1000), observed)
            for polished in (False, True):
                cpu = time.process_time()
                found = CocktailParty(polish=polished)(seen, seed=0)
                cpu = time.process_time() - cpu
                best = (F.normalize(found.inputs, dim=1) @ F.normalize(truth, dim=1).T).max(0).values
                row = {"n": n, "seed": seed, "polish": polished, "cosine": float(best.mean())}
                row["over_0.999"] = float((best > 0.999).double().mean())
                write("embeddings", {**row, "cpu_s": cpu, "notes": list(found.notes)})


def run(arguments: argparse.Namespace) -> None:
    model, test, _ = trained(arguments.data, hidden=arguments.hidden, epochs=arguments.epochs, seed=0)
    for n in arguments.n:
        for seed in range(arguments.first, arguments.first + arguments.batches):
            batch = draw(test, n, seed)
            facts = {"data": Path(arguments.data).stem, "n": n, "seed": seed, "hidden": arguments.hidden}
            kind = arguments.kind
            if kind == "unmix":
                one(kind, CocktailParty(polish=False), model, batch, facts)
            elif kind == "polish":
                one(kind, CocktailParty(), model, batch, facts)
            elif kind == "updates":
                rule = LocalSteps(lr=arguments.lr, examples=n)
                for polished in (False, True):
                    one(kind, CocktailParty(polish=polished), model, batch, {**facts, "lr": rule.lr}, client=rule)
            elif kind == "published":
                one(kind, CocktailParty(mode="published", steps=arguments.steps), model, batch, facts)
                one(kind, CocktailParty(polish=False), model, batch, facts)
                one(kind, CocktailParty(), model, batch, facts)
            elif kind == "matching":
                attack = inverting_gradients(
                    steps=arguments.steps, tv=1e-3, schedule="cosine", signed=False, labels="joint"
                )
                one(kind, attack, model, batch, facts)
            elif kind == "noise":
                for sigma in (0.0, 1e-4, 1e-3, 1e-2):
                    shield = GaussianNoise(sigma=sigma, clip=1.0)
                    one(kind, CocktailParty(), model, batch, {**facts, "sigma": sigma}, defense=shield)
            else:
                one(kind, CocktailParty(polish=False), model, batch, facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("unmix", "polish", "updates", "published", "matching", "noise", "wide", "embeddings")
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--data", required=True)
    parser.add_argument("--n", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first", type=int, default=1000, help="first batch seed")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=25_000)
    parser.add_argument("--lr", type=float, default=1e-3, help="of the client's local steps")
    parser.add_argument("--weights", help="SqueezeNet 1.1 weights, for embeddings")
    arguments = parser.parse_args()
    embeddings(arguments) if arguments.kind == "embeddings" else run(arguments)


if __name__ == "__main__":
    main()
