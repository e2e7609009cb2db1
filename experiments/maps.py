r"""What gradient matching gets of an update whose network is trained towards a class at each pixel.

python experiments/maps.py --data ../shared/data/cifar10.npz

A small convolutional network, fresh, segments photographs into three levels of brightness. The maps are known to the
attacker, or searched for along with the photograph.
"""

from pathlib import Path
from typing import Annotated

import torch
from common import command, draw, flat_square, keep, measure, parts
from torch import Tensor, nn

from seepage.api import attack, record
from seepage.base.nn import frozen_randomness
from seepage.federation.types import Batch
from seepage.measure.metrics.image import psnr

LEVELS = (1 / 3, 2 / 3)
"""Brightness from which a pixel is of the second and of the third class."""


def levels(images: Tensor) -> Tensor:
    """`[n, h, w]` the level of each pixel's brightness."""
    return torch.bucketize(images.mean(1), torch.tensor(LEVELS))


def segmenter(width: int) -> nn.Module:
    first, second = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
    return nn.Sequential(first, nn.Sigmoid(), second, nn.Sigmoid(), nn.Conv2d(width, len(LEVELS) + 1, 1))


def main(
    *,
    data: str,
    size: int = 8,
    width: int = 16,
    steps: int = 60,
    images: Annotated[int, "of each seed"] = 2,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> None:
    test = parts(data, size)[1]
    for seed in seeds:
        with frozen_randomness(seed):
            model = segmenter(width)
        for place in range(images):
            photograph = draw(test, 1, 7000 + 100 * seed + place).inputs
            batch = Batch(photograph, levels(photograph))
            for known in (True, False):
                seen = record(model, batch, known=["labels"] if known else [])
                options = {"steps": steps, "line_search": True, "labels": "given" if known else "joint"}
                found = attack(seen, "dlg", seed=seed, options=options)
                right = float((found.labels == batch.labels).double().mean()) if found.labels is not None else None
                facts = {
                    **measure(found, batch),
                    "flat_psnr": float(psnr(flat_square(photograph), photograph).mean()),
                    "pixels_right": right,
                    "commonest": float(batch.labels.flatten().bincount().max() / batch.labels.numel()),
                }
                facts |= {"size": size, "width": width, "steps": steps, "seed": seed, "data": Path(data).stem}
                keep("matching/maps", f"maps {'known' if known else 'searched for'}; image {place}", "psnr", facts)


if __name__ == "__main__":
    command(main)
