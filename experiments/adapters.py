r"""Images and texts behind LoRA adapters: what the adapters' gradients alone give back, by rank and batch.

python experiments/adapters.py vectors --data ../shared/data/cifar10.npz
python experiments/adapters.py tokens --data ../shared/data/cifar10.npz
python experiments/adapters.py text

`vectors`: a fully connected network of 2 layers with an adapter on the first one. `tokens`: vision transformers with
adapters on every block's query, key and value. `text`: a small decoder with adapters on every block's query and value,
on paragraphs of Python's language reference of 16 tokens. The base is frozen at random weights, or trained for an
epoch; the adapter is trained for some steps of SGD on other batches, as earlier rounds would, so that B is not zero.
The update is one gradient in float32 of the adapter alone. Nothing was tuned on what is scored. One row of
results/transformers/adapters.jsonl per setting and seed that is not there yet: network and batch are drawn from it.
"""

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from common import at, descend, draw, fit, flat_square, keep, kept, measure, parts
from torch import nn

import seepage.federation.data
from seepage import Architecture, Batch, attack, build, record
from seepage.base.nn import generator
from seepage.errors import Inapplicable
from seepage.federation.models.trained_part import train_part
from seepage.measure.metrics import psnr

CLASSES, SEEDS = 10, 3
ITEM = "transformers/adapters"


@dataclass(frozen=True)
class Setting:
    """A network, its adapter, and the batch.

    Attributes:
        model: Name and options of the network.
        targets: Layers with an adapter.
        rank: r.
        size: Examples in the batch.
        steps: Steps that trained the adapter before.
        epochs: Epochs that trained the base before.
    """

    model: Architecture
    targets: tuple[str, ...]
    rank: int
    size: int = 1
    steps: int = 20
    epochs: int = 0
    about: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        stage = f"base trained {self.epochs} epoch" if self.epochs else "fresh base"
        return f"{self.about}, rank {self.rank}, batch {self.size}, {stage}, adapter trained {self.steps} steps"


def fc(rank: int, size: int, hidden: int = 1024, **more: Any) -> Setting:
    return Setting(Architecture("fc2", {"hidden": hidden}), ("2",), rank, size, about=f"fc2 of {hidden} units", **more)


def small(rank: int, **more: Any) -> Setting:
    model = Architecture("timm:vit_small_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 4})
    return Setting(model, ("qkv",), rank, about="ViT-S of 4 blocks, 17 tokens", **more)


def tiny(rank: int, **more: Any) -> Setting:
    model = Architecture("timm:vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "depth": 4})
    return Setting(model, ("qkv",), rank, about="ViT-Ti of 4 blocks, 65 tokens", **more)


SETTINGS = {
    "vectors": (
        *(fc(rank, 1) for rank in (8, 16, 64, 256)),
        fc(8, 1, steps=0),
        fc(8, 1, steps=1),
        fc(8, 8),
        fc(8, 16),
        fc(64, 8),
        fc(16, 16),
        fc(8, 8, epochs=1),
    ),
    "tokens": (
        *(small(rank, steps=1) for rank in (8, 16, 32, 64, 256)),
        small(32, steps=0),
        tiny(128, steps=1),
        *(small(rank) for rank in (32, 64, 256)),
        small(32, epochs=1),
    ),
}


def adapted(setting: Setting, train: Batch, data: str, seed: int) -> nn.Module:
    """The network at the audited round."""
    model = build(setting.model, tuple(train.inputs.shape[1:]), CLASSES, seed=seed)
    head = list(model.parameters())[-2]
    if not head.any():  # a head of zeros passes nothing back
        nn.init.normal_(head, std=0.02, generator=generator(seed, "head"))
    if setting.epochs:
        key = f"{setting.model}/{data}/{setting.epochs}/{seed}"
        fit(model, train, epochs=setting.epochs, size=128, seed=seed, key=key)
    torch.manual_seed(seed)
    model = train_part(model, {"adapter": {"rank": setting.rank, "targets": list(setting.targets)}})
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, order = torch.optim.SGD(trained, 0.1), torch.randperm(len(train), generator=generator(seed, "rounds"))
    model.eval()
    descend(model, optimizer, (at(train, order[32 * step : 32 * step + 32]) for step in range(setting.steps)))
    return model


def run(setting: Setting, train: Batch, test: Batch, data: str, seed: int) -> dict[str, Any]:
    batch = draw(test, setting.size, seed)
    seen = record(adapted(setting, train, data, seed), batch)
    facts = {"rank": setting.rank, "size": setting.size, "steps": setting.steps, "epochs": setting.epochs}
    facts |= {"network": setting.about, "mean_color": float(psnr(flat_square(batch.inputs), batch.inputs).mean())}
    cpu = time.process_time()
    try:
        found = attack(seen, "lora", seed=seed)
    except Inapplicable as error:
        return {**facts, "psnr": None, "reason": error.reason, "cpu_s": time.process_time() - cpu}
    facts["cpu_s"] = time.process_time() - cpu
    labels = float((found.labels.sort().values == batch.labels.sort().values).double().mean())
    return {**facts, **measure(found, batch), "labels": labels, "notes": list(found.notes)}


def text(rank: int, size: int, steps: int, seed: int) -> dict[str, Any]:
    """Texts of 16 tokens behind the adapters of a decoder of width 256 and 3 blocks."""
    data = seepage.federation.data.load("python_reference", tokens=16)
    options = {"width": 256, "depth": 3, "adapter": {"rank": rank, "targets": ["query", "value"]}}
    model = build(Architecture("gpt", options), data.input_shape, len(data.pieces), seed=seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.1)
    earlier = data.batch(data.train[torch.randperm(len(data.train), generator=generator(seed, "rounds"))[:8]])
    descend(model, optimizer, [earlier] * steps)
    order = torch.randperm(len(data.private), generator=generator(seed, "texts"))
    batch = data.batch(data.private[order[:size]])
    facts = {"rank": rank, "size": size, "steps": steps, "epochs": 0, "network": "gpt of 3 blocks, width 256"}
    cpu = time.process_time()
    try:
        found = attack(record(model, batch), "token_sequences", seed=seed)
    except Inapplicable as error:
        return {**facts, "exact": 0.0, "reason": error.reason, "cpu_s": time.process_time() - cpu}
    facts["cpu_s"] = time.process_time() - cpu
    guesses = [row.tolist() for row in found.inputs]
    right = [row.tolist() in guesses for row in batch.inputs]
    certified = 0 if found.certified is None else int(found.certified.sum())
    facts |= {"certified": certified / size, "false_certificates": certified if certified and not all(right) else 0}
    return {**facts, "exact": sum(right) / size, "notes": list(found.notes)}


TEXTS = [(rank, size, steps) for rank, size in ((8, 1), (16, 1), (64, 1), (64, 3), (256, 4)) for steps in (0, 1)]


def texts() -> None:
    for seed in range(SEEDS):
        done = kept(ITEM)
        for rank, size, steps in TEXTS:
            name = f"text, rank {rank}, {size} x 16 tokens, adapter trained {steps} steps"
            if (name, str(seed)) not in done:
                keep(ITEM, name, "exact", {**text(rank, size, steps, seed), "seed": seed, "data": "python_reference"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*SETTINGS, "text"])
    parser.add_argument("--data", default="../shared/data/cifar10.npz")
    arguments = parser.parse_args()
    if arguments.what == "text":
        texts()
        return
    train, test = parts(arguments.data)
    name = arguments.data.split("/")[-1]
    for seed in range(SEEDS):
        done = kept(ITEM)
        for setting in SETTINGS[arguments.what]:
            if (setting.name, str(seed)) not in done:
                row = run(setting, train, test, name, seed)
                keep(ITEM, setting.name, "psnr", {**row, "seed": seed, "data": name})
                print(setting.name, seed, row.get("psnr"), row.get("certified"), row.get("reason", ""), flush=True)


if __name__ == "__main__":
    main()
