"""A batch of 256 packaged pictures before and after: python experiments/cpa_picture.py docs/cpa-256.png"""

import sys

import torch
from common import descend
from PIL import Image
from torch import Tensor

import seepage.federation.data
from seepage import attack, record, score
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.models import fc2
from seepage.federation.types import Batch
from seepage.measure.metrics import align_guess

N = 256


def sheet(images: Tensor, across: int) -> Tensor:
    """`[n, 3, h, w]` tiles to one picture `[H, W, 3]`."""
    rows = [torch.cat(list(row), 2) for row in images.split(across)]
    return torch.cat(rows, 1).permute(1, 2, 0)


def main() -> None:
    data = seepage.federation.data.load("album", size=64)
    order = torch.randperm(len(data), generator=generator(0, "picture"))
    batch, rest = data.batch(order[:N]), data.batch(order[N:])
    with frozen_randomness(0):
        model = fc2(data.input_shape, len(data.classes), hidden=512)
    descend(model, torch.optim.Adam(model.parameters(), 1e-3), [rest] * 20)
    seen = record(model, Batch(batch.inputs, batch.labels))
    found = attack(seen, CocktailParty(polish="--polish" in sys.argv))
    result = score(found, batch)
    after = align_guess(found, batch, (0.0, 1.0)).guesses
    weight = next(t for t in seen[0].update.tensors.values() if t.dim() == 2)
    mixed = weight[:N].reshape(N, *data.input_shape)
    low, high = mixed.flatten(1).amin(1), mixed.flatten(1).amax(1)
    before = (mixed - low[:, None, None, None]) / (high - low).clamp(min=1e-30)[:, None, None, None]
    gap = torch.ones(1024, 32, 3)
    whole = torch.cat([sheet(before, 16), gap, sheet(after, 16)], 1)
    picture = Image.fromarray((whole * 255).round().byte().numpy())
    picture.resize((picture.width * 3 // 8, picture.height * 3 // 8), Image.Resampling.LANCZOS).quantize(64).save(
        sys.argv[1], optimize=True
    )
    print(*found.notes, sep="\n")
    certified = "" if found.certified is None else f", {int(found.certified.sum())} certified"
    print(f"{N} pictures, mean PSNR {result.psnr:.1f} dB, SSIM {result.ssim:.3f}, {result.exact:.0%} exact{certified}")


if __name__ == "__main__":
    main()
