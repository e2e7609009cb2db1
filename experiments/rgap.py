r"""R-GAP on photographs, batch 1: a network after the paper's CNN6, and narrower ones, with their ranks.

python experiments/rgap.py --data ../shared/data/cifar10.npz --images 2
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import draw, flat_square, keep, measure, parts
from torch import nn

from seepage.api import attack, record
from seepage.attacks import RGap
from seepage.base.nn import frozen_randomness
from seepage.federation.models import cnn6
from seepage.measure.metrics.image import psnr


def strided_cnn(widths: tuple[int, ...], seed: int) -> nn.Sequential:
    """3 x 3 convolutions without bias, the first (4 x 4) and second of stride 2, LeakyReLU 0.2, one linear layer."""
    layers: list[nn.Module] = []
    channels = 3
    with frozen_randomness(seed):
        for i, width in enumerate(widths):
            kernel, stride = (4, 2) if i == 0 else (3, 2 if i == 1 else 1)
            layers += [nn.Conv2d(channels, width, kernel, stride, padding=1, bias=False), nn.LeakyReLU(0.2)]
            channels = width
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * channels, 10, bias=False))


def whole(seed: int) -> nn.Sequential:
    """The paper's CNN6 with ten classes in place of one logistic output."""
    with frozen_randomness(seed):
        return cnn6((3, 32, 32), 10)


NETWORKS: dict[str, Callable[[int], nn.Sequential]] = {
    "12-36-36": partial(strided_cnn, (12, 36, 36)),
    "12-12-12": partial(strided_cnn, (12, 12, 12)),
    "3-12-12": partial(strided_cnn, (3, 12, 12)),
    "cnn6": whole,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--first", type=int, default=4000, help="first image's seed")
    arguments = parser.parse_args()
    test = parts(arguments.data)[1]
    for name in arguments.networks:
        for seed in range(arguments.first, arguments.first + arguments.images):
            batch = draw(test, 1, seed)
            cpu = time.process_time()
            found = attack(record(NETWORKS[name](seed), batch), RGap())
            cpu = time.process_time() - cpu
            mean = flat_square(batch.inputs)
            facts = {"data": Path(arguments.data).stem, "network": name, "seed": seed, "method": "rgap", "n": 1}
            plain = {"plain_mse": float((mean - batch.inputs).square().mean())}
            plain["plain_psnr"] = float(psnr(mean, batch.inputs).mean())
            mse = float((found.inputs - batch.inputs).square().mean())
            right = bool(found.labels is not None and found.labels.equal(batch.labels))
            row = {**facts, **measure(found, batch), **plain, "mse": mse, "label": right, "cpu_s": cpu}
            keep("closed/rgap", name, "psnr", {**row, "notes": list(found.notes)})


if __name__ == "__main__":
    main()
