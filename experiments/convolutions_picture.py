"""Eight packaged pictures, decoded and then read exactly: python experiments/convolutions_picture.py FILE.png"""

import sys

import torch
from PIL import Image
from torch import Tensor

import seepage.federation.data
from seepage import attack, record, score
from seepage.attacks import GaussNewton
from seepage.base.nn import generator
from seepage.base.registry import Spec
from seepage.federation.models import build
from seepage.federation.types import Batch
from seepage.measure.metrics import align_guess

N = 8


def row(images: Tensor) -> Tensor:
    """`[n, 3, h, w]` side by side, `[h, W, 3]`, with a gap between two."""
    gap = torch.ones(3, images.shape[2], 2)
    return torch.cat([part for image in images for part in (image, gap)], 2).permute(1, 2, 0)


def main() -> None:
    data = seepage.federation.data.load("album", size=32)
    batch = data.batch(torch.randperm(len(data), generator=generator(0, "picture"))[:N])
    private = Batch(batch.inputs, batch.labels)
    seen = record(build(Spec("convnet", {}), data.input_shape, len(data.classes), seed=0), private)
    # No step at all: what the decoder reads off the features.
    rows = [private.inputs]
    for steps in (0, 40):
        found = attack(seen, GaussNewton(steps=steps, rounding=steps > 0))
        rows.append(align_guess(found, private, (0.0, 1.0)).guesses)
        print(f"{steps} steps at most: mean PSNR {score(found, private).psnr:.1f} dB", *found.notes, sep="\n  ")
    gap = torch.ones(2, row(rows[0]).shape[1], 3)
    whole = torch.cat([part for images in rows for part in (row(images), gap)], 0)
    picture = Image.fromarray((whole * 255).round().byte().numpy())
    picture.resize((picture.width * 3, picture.height * 3), Image.Resampling.NEAREST).quantize(128).save(
        sys.argv[1], optimize=True
    )


if __name__ == "__main__":
    main()
