"""What a thumbnail of an image is worth in PSNR: a scale for reconstructions that are neither noise nor the image.

python experiments/thumbnails.py --data FOLDER

Each image is averaged over k x k equal tiles and drawn at its own size again, bilinearly. k = 1 is its mean color.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from common import command, keep

from seepage.federation.data import load
from seepage.measure.metrics.image import psnr, ssim


def main(*, data: str, size: int = 128, sides: tuple[int, ...] = (1, 8, 16, 20, 32)) -> None:
    everything = load(data, size=size)
    images = everything.batch(torch.arange(len(everything))).inputs
    for side in sides:
        small = F.adaptive_avg_pool2d(images, side)
        drawn = F.interpolate(small, images.shape[2:], mode="bilinear", align_corners=False)
        each = psnr(drawn, images)
        facts = {"psnr": float(each.mean()), "ssim": float(ssim(drawn, images).mean()), "images": len(images)}
        facts |= {"psnr_min": float(each.min()), "psnr_max": float(each.max()), "size": size, "side": side}
        keep("matching/thumbnails", f"{side} x {side}", "psnr", {**facts, "data": Path(data).stem})


if __name__ == "__main__":
    command(main)
