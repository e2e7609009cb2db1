r"""One image of a vision transformer from one update, by the gradients of its patch and position embeddings.

python experiments/patches.py photographs
python experiments/patches.py small --data ../shared/data/cifar10.npz
python experiments/patches.py batches --data ../shared/data/imagenet_sample_224.zip --sizes 2 3 4

`photographs`: networks of torchvision and timm for 224 pixels, with random weights, on five photographs that
scikit-image and scikit-learn ship, one gradient in float32 each. torchvision's heads start at zero, with which a first
gradient holds nothing: theirs are drawn with a standard deviation of 0.02. `small`: `vit` on five CIFAR-10 images of 32
pixels, by what the client does. Nothing was tuned on these images. One row of results/transformers/patches.jsonl per
setting that is not there yet: the mean PSNR, between the least and the most, with the mean color beside it.

`batches`: `patch_unmixing` on ViT-B/32, five batches of each size, of ImageNet photographs on which nothing was tuned
(that was done on the photographs of scikit-image and scikit-learn): the median PSNR of all images, between the least
and the most.
"""

import argparse
import io
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import skimage.data
import sklearn.datasets
import torch
import torch.nn.functional as F
from common import draw, fit, flat_square, kept, parts
from PIL import Image
from torch import Tensor, nn

from seepage import Architecture, Batch, GaussianNoise, attack, build, record, score
from seepage.attacks.base import ignore
from seepage.attacks.patches import PatchEmbedding
from seepage.errors import Inapplicable
from seepage.federation.clients import FedAvg
from seepage.federation.defenses.quantize import Quantize
from seepage.federation.types import ClientUpdate, Defense, Update
from seepage.measure.metrics import psnr, ssim
from seepage.papers.records import keep_measured

NETWORKS = (
    "torchvision:vit_b_32",
    "torchvision:vit_b_16",
    "timm:deit_small_patch16_224",
    "timm:deit_small_distilled_patch16_224",
    "timm:deit_tiny_patch16_224",
    "timm:vit_small_patch14_reg4_dinov2",
)
SIZE, CLASSES, IMAGES = 224, 10, 5
UNMIXED = "torchvision:vit_b_32"


@dataclass(frozen=True)
class Setting:
    """What is attacked, and what the client does; `grid`: the image's pixels are whole levels of 8 bits."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 0
    client: ClientUpdate | None = None
    defense: Defense | None = None
    dtype: torch.dtype = torch.float32
    grid: bool = True


SMALL = (
    Setting("fresh"),
    Setting("trained for an epoch", epochs=1),
    Setting("patches of 8 pixels", {"patch": 8}),
    Setting("64 patches, tokens of 64 numbers", {"width": 64}),
    Setting("64 patches, tokens of 48 numbers", {"width": 48}),
    Setting("64 patches, tokens of 32 numbers", {"width": 32}),
    Setting("64 patches, tokens of 24 numbers", {"width": 24}),
    Setting("64 patches, tokens of 48 numbers, image off the grid", {"width": 48}, grid=False),
    *(
        Setting(f"{steps} local step{'s' * (steps > 1)}", client=FedAvg(lr=0.01, steps=steps, batch_size=1))
        for steps in (1, 2, 5, 20)
    ),
    Setting("5 local steps at 0.1", client=FedAvg(lr=0.1, steps=5, batch_size=1)),
    Setting("5 local steps, momentum", client=FedAvg(lr=0.01, steps=5, batch_size=1, momentum=0.9)),
    Setting("float16", dtype=torch.float16),
    Setting("bfloat16", dtype=torch.bfloat16),
    *(Setting(f"quantized to {bits} bits", defense=Quantize(bits=bits)) for bits in (8, 4)),
    *(
        Setting(f"Gaussian noise of {sigma:g}", defense=GaussianNoise(sigma=sigma))
        for sigma in (1e-6, 1e-5, 1e-4, 1e-3)
    ),
)


def photographs() -> Iterator[Tensor]:
    """Five photographs, cut to squares in their middle, in 8 bits."""
    found = [skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee()]
    for picture in [*found, *sklearn.datasets.load_sample_images().images]:
        image = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float() / 255
        side = min(image.shape[2:])
        top, left = (image.shape[2] - side) // 2, (image.shape[3] - side) // 2
        square = image[..., top : top + side, left : left + side]
        small = F.interpolate(square, size=(SIZE, SIZE), mode="bilinear", antialias=True)
        yield (small * 255).round().clamp(0, 255) / 255


def network(use: str, seed: int) -> nn.Module:
    # Those whose size is an option, as they are made for larger images.
    options = {"img_size": SIZE} if "dinov2" in use else {}
    model = build(Architecture(use, options), (3, SIZE, SIZE), CLASSES, seed=seed)
    if use.startswith("torchvision:"):
        nn.init.normal_(model.heads.head.weight, std=0.02, generator=torch.Generator().manual_seed(seed))  # type: ignore[union-attr, arg-type]
    return model


def measure(model: nn.Module, batch: Batch, setting: Setting, seed: int) -> dict[str, Any]:
    seen = record(model, batch, client=setting.client, defense=setting.defense, seed=seed)
    if setting.dtype != torch.float32:
        first = seen[0]
        rounded = {name: tensor.to(setting.dtype).float() for name, tensor in first.update.tensors.items()}
        first = replace(first, update=Update(rounded, first.update.kind))
        seen = replace(seen, make_round=lambda t: first)
    cpu, mean_color = time.process_time(), float(psnr(flat_square(batch.inputs), batch.inputs))
    reader = PatchEmbedding()
    try:
        view = reader.prepare(seen)
    except Inapplicable as error:
        return {"mean_color": mean_color, "reason": error.reason, "cpu_s": time.process_time() - cpu}
    found = reader.run(view, seed=0, progress=ignore)
    quality = float(psnr(found.inputs, batch.inputs))
    certified = bool(found.certified is not None and found.certified[0])
    return {
        "psnr": quality,
        "ssim": float(ssim(found.inputs, batch.inputs)),
        "mean_color": mean_color,
        "expected": -20 * torch.tensor(view.solved.deviation).log10().item(),
        "condition": view.solved.condition,
        "shown": view.solved.rank / len(view.errors),
        "certified": certified,
        "rounded": view.solved.whole,
        "false": certified and quality < 40,
        "label": found.labels is not None and torch.equal(found.labels, batch.labels),
        "cpu_s": time.process_time() - cpu,
    }


def keep(row: str, rows: list[dict[str, Any]], data: str, **facts: Any) -> None:
    """One record: means over the images that the attack applies to."""
    read = [one for one in rows if "psnr" in one]
    facts |= {"images": len(rows), "applicable": len(read), "mean_color": mean("mean_color", rows)}
    facts |= {"cpu_s": mean("cpu_s", rows), "reasons": sorted({one["reason"] for one in rows if "reason" in one})}
    if not read:
        keep_measured("transformers/patches", row, "psnr", None, data=data, **facts)
        return
    numbers = [one["psnr"] for one in read]
    facts |= {key: mean(key, read) for key in ("ssim", "expected", "shown", "certified", "rounded", "label")}
    facts |= {"exact": sum(number > 40 for number in numbers) / len(rows)}
    facts |= {"false_certificates": sum(one["false"] for one in read)}
    facts |= {"condition": max(one["condition"] for one in read)}
    ends = (min(numbers), max(numbers))
    keep_measured("transformers/patches", row, "psnr", mean("psnr", read), interval=ends, data=data, **facts)


def mean(key: str, rows: list[dict[str, Any]]) -> float:
    return sum(float(one[key]) for one in rows) / len(rows)


def batches(path: str, size: int) -> Iterator[Batch]:
    """Five batches of different photographs, drawn once for all sizes."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(size)).tolist()
        for batch in range(IMAGES):
            pictures = [archive.read(names[i]) for i in order[batch * size : (batch + 1) * size]]
            images = [np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")) for picture in pictures]
            inputs = torch.stack([torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255 for image in images])
            yield Batch(inputs, torch.arange(size))


def unmix_batches(path: str, size: int) -> None:
    model, rows = network(UNMIXED, 0), []
    for seed, batch in enumerate(batches(path, size)):
        cpu, seen = time.process_time(), record(model, batch, seed=seed)
        found = attack(seen, "patch_unmixing")
        scores = score(found, batch)
        flat = torch.cat([psnr(flat_square(image[None]), image[None]) for image in batch.inputs])
        rows += [
            {"psnr": float(one), "mean_color": float(color), "cpu_s": time.process_time() - cpu}
            for one, color in zip(scores.values["psnr"].tolist(), flat.tolist(), strict=True)
        ]
        assert found.certified is not None
        assert not found.certified.any()
        print(f"{size} images, batch {seed}: {[round(row['psnr'], 1) for row in rows[-size:]]}", flush=True)
    numbers = sorted(row["psnr"] for row in rows)
    median = float(torch.tensor(numbers).quantile(0.5))
    facts = {"images": len(rows), "batches": IMAGES, "batch_size": size, "mean_color": mean("mean_color", rows)}
    facts |= {"cpu_s": mean("cpu_s", rows), "over_30": sum(one > 30 for one in numbers) / len(numbers)}
    facts |= {"mean": mean("psnr", rows), "certified": 0, "false_certificates": 0, "patch": 32}
    ends = (numbers[0], numbers[-1])
    study, row = "transformers/batches", f"{UNMIXED}, batch of {size}"
    keep_measured(study, row, "psnr", median, interval=ends, data=path.split("/")[-1], **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["photographs", "small", "batches"])
    parser.add_argument("--data", default="../shared/data/cifar10.npz")
    parser.add_argument("--sizes", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    arguments = parser.parse_args()
    done = {row for row, _ in kept("transformers/patches")}
    if arguments.what == "batches":
        for size in arguments.sizes:
            unmix_batches(arguments.data, size)
        return
    if arguments.what == "photographs":
        for use in arguments.networks:
            if use in done:
                continue
            batches = [Batch(image, torch.tensor([seed])) for seed, image in enumerate(photographs())]
            model = network(use, 0)
            rows = [measure(model, batch, Setting(use), seed) for seed, batch in enumerate(batches)]
            keep(use, rows, "photographs", pixels=SIZE)
        return
    train, test = parts(arguments.data)
    for setting in SMALL:
        if setting.name in done:
            continue
        rows = []
        for seed in range(IMAGES):
            model = build(Architecture("vit", setting.options), tuple(train.inputs.shape[1:]), CLASSES, seed=seed)
            if setting.epochs:
                fit(
                    model,
                    train,
                    epochs=setting.epochs,
                    size=128,
                    seed=seed,
                    key=f"vit/{arguments.data}/{setting}/{seed}",
                )
            batch = draw(test, 1, seed)
            if not setting.grid:  # as an image is that was resized in floating point: up to half a level off
                noise = torch.rand(batch.inputs.shape, generator=torch.Generator().manual_seed(seed)) - 0.5
                batch = replace(batch, inputs=(batch.inputs + noise / 255).clamp(0, 1))
            rows.append(measure(model, batch, setting, seed))
        keep(setting.name, rows, arguments.data.split("/")[-1])


if __name__ == "__main__":
    main()
