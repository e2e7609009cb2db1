r"""What gradient matching gets of an update whose network is trained towards a class at each pixel.

python experiments/maps.py --data ../shared/data/cifar10.npz

A small convolutional network, fresh, segments photographs into three levels of brightness. The maps are known to the
attacker, or searched for along with the photograph.
"""

import argparse
from pathlib import Path

import torch
from common import draw, flat_square, keep, measure, parts
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--images", type=int, default=2, help="of each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    test = parts(arguments.data, arguments.size)[1]
    for seed in arguments.seeds:
        with frozen_randomness(seed):
            model = segmenter(arguments.width)
        for place in range(arguments.images):
            images = draw(test, 1, 7000 + 100 * seed + place).inputs
            batch = Batch(images, levels(images))
            for known in (True, False):
                seen = record(model, batch, known=["labels"] if known else [])
                options = {"steps": arguments.steps, "line_search": True, "labels": "given" if known else "joint"}
                found = attack(seen, "dlg", seed=seed, options=options)
                right = float((found.labels == batch.labels).double().mean()) if found.labels is not None else None
                facts = {
                    **measure(found, batch),
                    "flat_psnr": float(psnr(flat_square(images), images).mean()),
                    "pixels_right": right,
                    "commonest": float(batch.labels.flatten().bincount().max() / batch.labels.numel()),
                    "size": arguments.size,
                    "width": arguments.width,
                    "steps": arguments.steps,
                    "seed": seed,
                    "data": Path(arguments.data).stem,
                }
                keep("matching/maps", f"maps {'known' if known else 'searched for'}; image {place}", "psnr", facts)


if __name__ == "__main__":
    main()
