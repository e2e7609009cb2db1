"""Likeness of a guess to an image: the one rule that every count of `recovered` images rests on.

A person recognizes the example x in a guess g if g is like x itself, and not only like images of the same kind. Images
of the same kind that are not x are made as copies T x, slightly moved, turned, stretched or slanted (`_moves`). With
c(a, b) the correlation of two images after subtracting each channel's mean,

    likeness = max over blurs B of  min over T of  (|c(Bg, Bx)| - +-c(Bg, BTx)) / (1 - c(Bx, BTx))

where +- is the sign of the first c. It is 1 for g = x, and also for a x + b with any a but 0: brightness and contrast
do not matter, and a negative counts like its picture. If g is x plus independent noise, it is their correlation.
Another image of the same class, however similar to x, is as similar to some T x, so that its likeness is 0 or below.
The blurs stand for a larger viewing distance, which averages noise and forgives a guess that is blurred itself; for the
same reason images are compared at no more than `SIDE` pixels per side. The limit, and how many others would pass it:
`experiments/recognition.py`.

For data other than images the gain over guesses that need no update counts, for text the pairs of neighboring tokens.
"""

from functools import lru_cache
from math import cos, sin

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.base.registry import metrics
from seepage.measure.metrics.image import check_images, in_pieces

STEP = 0.05
"""Shift of the copies, as a share of the image's side."""

BLURS = (0.0, 1 / 32, 1 / 16)
"""Standard deviations of the blurs, as shares of the shorter side."""

SIDE = 64
"""Largest side in pixels at which images are compared; larger ones are scaled down."""

_FLAT, _SAME = 1e-5, 1e-6
_PIECE = 1 << 18
"""Input values that are compared at a time; the 20 moved copies are made one by one."""


@lru_cache(maxsize=1)
def _moves() -> Tensor:
    """`[20, 2, 3]` affine maps of places on [-1, 1]: 8 shifts, 2 turns, 6 stretches, 4 slants."""
    s = 2 * STEP
    shifts = [[1, 0, x * s, 0, 1, y * s] for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y]
    turns = [[cos(a), -sin(a), 0, sin(a), cos(a), 0] for a in (3 * s, -3 * s)]
    wide, narrow = 1 + 2 * s, 1 / (1 + 2 * s)
    stretches = [[a, 0, 0, 0, b, 0] for k in (wide, narrow) for a, b in ((k, 1), (1, k), (k, k))]
    slants = [[1, a, 0, b, 1, 0] for k in (2 * s, -2 * s) for a, b in ((k, 0), (0, k))]
    return torch.tensor([*shifts, *turns, *stretches, *slants], dtype=torch.float32).reshape(-1, 2, 3)


@metrics.register(
    "likeness",
    images_only=True,
    by_default=True,
    about="how much more like the truth than like slightly moved copies of it; exact = 1",
)
def likeness(guesses: Tensor, truth: Tensor) -> Tensor:
    """How much more a guess is like its image than like copies of it that are slightly moved, turned or stretched.

    Args:
        guesses: `[n, C, H, W]`, any range.
        truth: `[n, C, H, W]`.

    Returns:
        `[n]` float64, 1 or less; 0 or less where some copy is as like the guess, and where either image is flat.

    Raises:
        SeepageError: Where the shapes differ or are not images.

    >>> picture = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> likeness(0.9 - 0.1 * picture, picture).round(decimals=3), bool(likeness(picture.flip(3), picture) < 0.1)
    (tensor([1.], dtype=torch.float64), True)
    """
    check_images(guesses, truth)
    return in_pieces(_likeness, guesses, truth, _PIECE)


def _likeness(guesses: Tensor, truth: Tensor) -> Tensor:
    """`[n]` float64 likeness of guesses to examples `[n, C, H, W]`, by the module's formula; 0 for flat images."""
    g, x = _seen(guesses), _seen(truth)
    flat = (_centered(g).norm(dim=1) < _FLAT) | (_centered(x).norm(dim=1) < _FLAT)
    best = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
    for share in BLURS:
        sigma = share * min(x.shape[2:])
        guess, example = _blurred(g, sigma), _blurred(x, sigma)
        a, b = _unit(guess), _unit(example)
        own = (a * b).sum(1)  # [n], c(Bg, Bx)
        worst = torch.full_like(best, torch.inf)
        for move in _moves().to(x.device):
            grid = F.affine_grid(move.expand(len(x), -1, -1), list(x.shape), align_corners=False)
            moved = _unit(F.grid_sample(example, grid, padding_mode="border", align_corners=False))
            left = 1 - (b * moved).sum(1)  # [n], 1 - c(Bx, BTx)
            more = (own.abs() - own.sign() * (a * moved).sum(1)) / left.clamp_min(_SAME)
            worst = torch.where(left > _SAME, torch.minimum(worst, more), worst)  # T x = x, up to `_SAME`: undefined
        best = torch.maximum(best, worst.where(worst.isfinite(), -torch.inf))
    return best.where(best.isfinite() & ~flat, 0.0).clamp(max=1.0)


def _seen(images: Tensor) -> Tensor:
    """Float32, and at most `SIDE` pixels on the longer side."""
    height, width = images.shape[2:]
    shrink = SIDE / max(height, width)
    if shrink >= 1:
        return images.float()
    size = [max(1, round(side * shrink)) for side in (height, width)]
    return F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)


def _blurred(images: Tensor, sigma: float) -> Tensor:
    """By a Gaussian that repeats the edge of the image."""
    if not sigma:
        return images
    reach = max(1, round(3 * sigma))
    weights = (-(torch.arange(-reach, reach + 1, device=images.device) / sigma).square() / 2).exp()
    weights = (weights / weights.sum()).expand(images.shape[1], 1, 1, -1)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    across = F.conv2d(padded, weights, groups=images.shape[1])
    return F.conv2d(across, weights.transpose(2, 3), groups=images.shape[1])


def _centered(images: Tensor) -> Tensor:
    """`[n, d]` float64, beside the mean of each channel."""
    return (images.double() - images.double().mean((2, 3), keepdim=True)).flatten(1)


def _unit(images: Tensor) -> Tensor:
    return F.normalize(_centered(images), dim=1)
