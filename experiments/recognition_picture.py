"""Pictures just above and just below the limit of recognition: python experiments/recognition_picture.py FILE.png

A row for each picture: itself; noised until its likeness is the limit and a tenth more, then a tenth less; blurred
to the same two; and the other picture of its class that correlates best with it, which counts for nothing. All ship
with a dependency.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from PIL import Image
from recognition import blurred, correlations
from torch import Tensor

from seepage.base.limits import LIKENESS
from seepage.base.nn import generator
from seepage.federation.data import load
from seepage.measure.metrics import likeness

SIDE = 96
CHOSEN = {"digits": (3, 7), "faces": (5, 40), "photos": (10, 60)}
"""Places in the part of each set that an audit calls private."""


def at(wanted: float, copy: Callable[[float], Tensor], image: Tensor) -> Tensor:
    """The copy whose likeness falls to a value: its strength is bisected."""
    low, high = 0.0, 3.0
    for _ in range(20):
        middle = (low + high) / 2
        above = likeness(copy(middle).clamp(0, 1), image).item() > wanted
        low, high = (middle, high) if above else (low, middle)
    return copy(low).clamp(0, 1)


def line(image: Tensor, others: Tensor) -> tuple[list[Tensor], list[float]]:
    noise = torch.randn(image.shape, generator=generator(0, "picture"))
    ways: tuple[Callable[[float], Tensor], ...] = (
        lambda strength: image + strength * noise,
        lambda strength: blurred(image, generator(0, "picture"), 0.01 + strength / 10),
    )
    limits = (1.1 * LIKENESS, 0.9 * LIKENESS)
    found = [image, *(at(wanted, way, image) for way in ways for wanted in limits)]
    found.append(others[correlations(image, others)[0].argmax()][None])
    return found, [likeness(one, image).item() for one in found]


def main() -> None:
    rows = []
    for name, places in CHOSEN.items():
        data = load(name)
        private, rest = data.batch(data.private), data.batch(data.train)
        for place in places:
            image = private.inputs[place][None].float()
            cases, values = line(image, rest.inputs[rest.labels == private.labels[place]].float())
            print(name, place, *(f"{value:.2f}" for value in values))
            grow = partial(F.interpolate, size=(SIDE, SIDE), mode="nearest")
            framed = [F.pad(grow(case.expand(-1, 3, -1, -1)), (3, 3, 3, 3), value=1.0) for case in cases]
            rows.append(torch.cat(framed, 3)[0])
    whole = (torch.cat(rows, 1) * 255).round().byte().permute(1, 2, 0)
    Image.fromarray(whole.numpy()).quantize(128).save(sys.argv[1], optimize=True)


if __name__ == "__main__":
    main()
