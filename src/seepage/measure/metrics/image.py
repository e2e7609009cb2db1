"""How far a guess is from the truth: pure functions `[n, *shape] x [n, *shape] -> [n]`, per example.

All inputs are on [0, 1] (`data_range = 1`). Nothing is pooled over the batch: the mean of per-image PSNR and
the PSNR of the pooled MSE are different numbers, and only the first is about single examples.
"""

import pickle
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.base.registry import metrics
from seepage.errors import SeepageError, not_installed, unknown

MSE_FLOOR = 1e-15
"""Smallest MSE that `psnr` distinguishes from zero: an exact guess scores 150 dB."""

SSIM_WINDOW = 11
"""Side in pixels of SSIM's Gaussian window (Wang et al. 2004); smaller images take a smaller one."""
SSIM_SIGMA = 1.5
"""Standard deviation in pixels of SSIM's Gaussian window (Wang et al. 2004)."""
SMALLEST_SIDE = 3
"""Shortest side in pixels of what counts as an image."""

LpipsNet = Literal["vgg", "alex"]
_SMALLEST_LPIPS_SIDE: dict[str, int] = {"vgg": 16, "alex": 31}

# Small pieces stay in the processor's cache: SSIM of 256 images is some eight times faster than in one piece.
_SSIM_PIECE = 1 << 14
"""Input values that SSIM reads at a time."""
_PIECE = 1 << 20
"""Input values that metrics other than SSIM read at a time, which keeps float64 copies at 8 MiB, or one example's."""


@metrics.register("mse", by_default=True, digits=10, about="mean squared error on [0, 1]")
def mse(guesses: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error per example, computed in float64 so that exact recoveries are distinguished.

    Args:
        guesses: `[n, *shape]`, any floating dtype.
        truth: `[n, *shape]`.

    Returns:
        `[n]` float64, 0 or more. Lower is better.

    Raises:
        SeepageError: Where the shapes differ.

    >>> mse(torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.5]]))
    tensor([1.0000, 0.0833], dtype=torch.float64)
    """
    return in_pieces(lambda a, b: (a.double() - b.double()).square().flatten(1).mean(1), guesses, truth, _PIECE)


@metrics.register("psnr", unit="dB", by_default=True, about="peak signal-to-noise ratio per example; exact = 150")
def psnr(guesses: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio per example, `10 log10(1 / MSE)`, for values on [0, 1].

    Args:
        guesses: `[n, *shape]` on [0, 1].
        truth: `[n, *shape]` on [0, 1].

    Returns:
        `[n]` float64 in dB; higher is better. The MSE has a floor of 1e-15, so an exact guess scores 150 dB.

    Raises:
        SeepageError: Where the shapes differ.

    >>> psnr(torch.full((1, 1, 4, 4), 0.5), torch.full((1, 1, 4, 4), 0.4)).round(decimals=3)
    tensor([20.], dtype=torch.float64)
    """
    return -10.0 * mse(guesses, truth).clamp_min(MSE_FLOOR).log10()


@metrics.register(
    "psnr_quadrants", unit="dB", images_only=True, about="mean PSNR of an image's four quadrants, as CAFE states it"
)
def psnr_quadrants(guesses: Tensor, truth: Tensor) -> Tensor:
    """Mean of the PSNR of an image's four quadrants: what CAFE's code prints for its four parties, who hold one each.

    Never below `psnr`, as the mean of logarithms is not above the logarithm of the mean; the more the four differ, the
    further above it.

    Args:
        guesses: `[n, C, H, W]` on [0, 1]; of an odd side the first half is the longer one.
        truth: `[n, C, H, W]` on [0, 1].

    Returns:
        `[n]` float64 in dB; higher is better.

    >>> guess = torch.full((1, 1, 4, 4), 0.5)
    >>> guess[..., :2, :2] = 0.49
    >>> truth = torch.full((1, 1, 4, 4), 0.4)
    >>> float(psnr_quadrants(guess, truth)), float(psnr(guess, truth))  # (3 x 20 + 20.92) / 4
    (20.228..., 20.211...)
    """
    parts = [[tile for half in whole.chunk(2, 2) for tile in half.chunk(2, 3)] for whole in (guesses, truth)]
    return torch.stack([psnr(guess, true) for guess, true in zip(*parts, strict=True)]).mean(0)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether examples of this shape (without the batch) are images that SSIM and LPIPS are made for.

    >>> is_image((3, 32, 32)), is_image((1, 2, 50)), is_image((784,))
    (True, False, False)
    """
    return len(shape) == 3 and min(shape[1:]) >= SMALLEST_SIDE


def ssim_window(height: int, width: int) -> int:
    """Width of the SSIM window: 11, or the largest odd number that fits a smaller image.

    >>> ssim_window(32, 32), ssim_window(8, 20)
    (11, 7)
    """
    short = min(height, width)
    return min(SSIM_WINDOW, short if short % 2 else short - 1)


@metrics.register(
    "ssim", images_only=True, by_default=True, about="structural similarity of images, Gaussian window of 11"
)
def ssim(guesses: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity per image (Wang et al. 2004), with a Gaussian window of 11 and sigma 1.5.

    The map is averaged over the whole image and over channels. At the border the image is mirrored (without
    repeating the edge); scikit-image leaves 5 pixels out at each side instead, so the two agree to rounding
    on an image that was mirrored beforehand, and inside the border otherwise.
    For images with a short side below 11 the window shrinks to the largest odd number that fits
    (`ssim_window`) and sigma with it; such numbers do not compare with those of larger images.

    Args:
        guesses: `[n, C, H, W]` on [0, 1], H and W at least 3.
        truth: `[n, C, H, W]` on [0, 1].

    Returns:
        `[n]` float64 in [-1, 1]; higher is better, 1 only for an exact guess.

    Raises:
        SeepageError: Where the shapes differ or are not images; ask `is_image` first.

    >>> image = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
    >>> ssim(image, image)
    tensor([1.], dtype=torch.float64)
    """
    check_images(guesses, truth)
    window = ssim_window(truth.shape[2], truth.shape[3])
    sigma = SSIM_SIGMA * window / SSIM_WINDOW
    return in_pieces(lambda a, b: _ssim(a, b, sigma, window), guesses, truth, _SSIM_PIECE)


def _ssim(guesses: Tensor, truth: Tensor, sigma: float, window: int) -> Tensor:
    """Equation 13 of Wang et al. with `C1 = 0.01^2`, `C2 = 0.03^2`, averaged over all places.

    Written out, since to load a library for it takes longer than to compute it.
    """
    steps = torch.arange(window, dtype=torch.float64, device=truth.device) - window // 2
    weights = (-(steps / sigma).square() / 2).exp()
    weights = weights / weights.sum()
    x, y = guesses.double(), truth.double()
    # One map after the other, [5 n C, 1, H, W]: x, y, x^2, y^2, x y. The window is a product: rows first, then columns.
    maps = torch.cat([x, y, x * x, y * y, x * y]).flatten(0, 1)[:, None]
    maps = F.pad(maps, (window // 2,) * 4, mode="reflect")
    means = F.conv2d(F.conv2d(maps, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))
    mx, my, xx, yy, xy = means.view(5, *truth.shape)
    c1, c2 = 0.01**2, 0.03**2
    agree = (2 * mx * my + c1) * (2 * (xy - mx * my) + c2)
    apart = (mx.square() + my.square() + c1) * (xx - mx.square() + yy - my.square() + c2)
    quality: Tensor = (agree / apart).flatten(1).mean(1)
    return quality


@metrics.register(
    "lpips",
    images_only=True,
    about="learned perceptual distance of images (VGG-16), if its weights are on disk",
)
def lpips(guesses: Tensor, truth: Tensor, net: LpipsNet = "vgg") -> Tensor | None:
    """Learned perceptual distance per image (Zhang et al. 2018), where the backbone's weights are on disk.

    Nothing is ever downloaded. Grey images are repeated to three channels. Images that are too small for the
    backbone (short side below 16 for `vgg`, 31 for `alex`) have no LPIPS: enlarging them first would give
    a number that cannot be compared with any other.

    Args:
        guesses: `[n, C, H, W]` on [0, 1], C = 1 or 3.
        truth: `[n, C, H, W]` on [0, 1].
        net: Backbone: `vgg` (VGG-16) or `alex` (AlexNet).

    Returns:
        `[n]` float64, 0 for an exact guess; lower is better. None where the weights are missing, the images
        have too few pixels or another number of channels; `lpips_missing` says which.

    Raises:
        SeepageError: Where the shapes differ, are not images, or the weights file cannot be read.

    >>> lpips(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)) is None
    True
    """
    check_images(guesses, truth)
    if lpips_missing(tuple(truth.shape[1:]), net) is not None:
        return None
    backbone = _lpips_net(net).to(truth.device)
    return in_pieces(lambda a, b: _lpips(backbone, a, b), guesses, truth, _PIECE)


def _lpips(backbone: nn.Module, guesses: Tensor, truth: Tensor) -> Tensor:
    a, b = (t.float().clamp(0.0, 1.0).expand(-1, 3, -1, -1) for t in (guesses, truth))
    with torch.no_grad():
        return cast(Tensor, backbone(a, b, normalize=True)).flatten().double()


@metrics.register("correlation", by_default=True, about="correlation with the truth, blind to brightness and contrast")
def correlation(guesses: Tensor, truth: Tensor) -> Tensor:
    """Pearson correlation of guess and truth over all values, per example; 0 where either is flat.

    It does not see brightness and contrast, as the eye hardly does: a guess with washed-out colors may lose in PSNR
    to a flat color and still show every outline.

    Args:
        guesses: `[n, *shape]`, any range.
        truth: `[n, *shape]`.

    Returns:
        `[n]` float64 in [-1, 1]. Higher is better.

    Raises:
        SeepageError: Where the shapes differ.

    >>> picture = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> correlation(0.4 + 0.1 * picture, picture).round(decimals=4)
    tensor([1.], dtype=torch.float64)
    """
    return in_pieces(_correlation, guesses, truth, _PIECE)


def _correlation(guesses: Tensor, truth: Tensor) -> Tensor:
    a, b = (t.double().flatten(1) for t in (guesses, truth))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    # Rounding leaves about 1e-7 of a flat float32 example; that is not a picture to correlate with.
    flat = (a.norm(dim=1) < 1e-5) | (b.norm(dim=1) < 1e-5)
    return _cosine(a, b).masked_fill(flat, 0.0)


@metrics.register("cosine", by_default=True, about="cosine between guess and truth; the only metric of inner features")
def cosine(guesses: Tensor, truth: Tensor) -> Tensor:
    """Cosine of the angle between guess and truth, per example; 0 where either is all zeros.

    Args:
        guesses: `[n, *shape]`, any range.
        truth: `[n, *shape]`.

    Returns:
        `[n]` float64 in [-1, 1]. Higher is better.

    Raises:
        SeepageError: Where the shapes differ.

    >>> cosine(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 2.0]]))
    tensor([0.7071], dtype=torch.float64)
    """
    return in_pieces(_cosine, guesses, truth, _PIECE)


def _cosine(guesses: Tensor, truth: Tensor) -> Tensor:
    a, b = (nn.functional.normalize(t.double().flatten(1), dim=1) for t in (guesses, truth))
    return (a * b).sum(1).clamp(-1.0, 1.0)


@lru_cache(maxsize=1)
def _lpips_net(net: LpipsNet) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

        try:
            return cast(nn.Module, LearnedPerceptualImagePatchSimilarity(net_type=net).net)
        except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
            raise SeepageError(
                f"the LPIPS weights in {lpips_weights(net)} cannot be read, so the file is damaged or cut "
                "short; delete it and fetch it again"
            ) from error


def lpips_missing(shape: tuple[int, ...], net: LpipsNet = "vgg") -> str | None:
    """Why examples of this shape (without the batch) have no LPIPS here, as a sentence; None where they have.

    >>> lpips_missing((3, 8, 8))
    'LPIPS with vgg needs images of 1 or 3 channels with sides of 16 or more, got (3, 8, 8).'
    """
    _check_net(net)
    least = _SMALLEST_LPIPS_SIDE[net]
    if not is_image(shape) or shape[0] not in (1, 3) or min(shape[1:]) < least:
        return f"LPIPS with {net} needs images of 1 or 3 channels with sides of {least} or more, got {shape}."
    if find_spec("torchmetrics") is None:
        return f"{not_installed('torchmetrics, which LPIPS needs,', 'lpips')}."
    return None if lpips_weights(net).is_file() else lpips_help(net)


def lpips_weights(net: LpipsNet = "vgg") -> Path:
    """Where torchvision keeps the backbone's weights once they are fetched; the file may not exist.

    >>> lpips_weights("alex").suffix
    '.pth'
    """
    _check_net(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchvision.models import AlexNet_Weights, VGG16_Weights

        weights = {"vgg": VGG16_Weights.DEFAULT, "alex": AlexNet_Weights.DEFAULT}[net]
        return Path(torch.hub.get_dir(), "checkpoints", weights.url.rsplit("/", 1)[-1])


def below_home(path: Path) -> str:
    """A path with `~` for the user's home folder, as recorded rows repeat it on other machines."""
    return f"~/{path.relative_to(Path.home()).as_posix()}" if path.is_relative_to(Path.home()) else str(path)


def lpips_help(net: LpipsNet = "vgg") -> str:
    """One sentence that says how to get the weights LPIPS needs.

    >>> lpips_help("alex").startswith("LPIPS needs the weights of torchvision's alexnet")
    True
    """
    path, model = lpips_weights(net), {"vgg": "vgg16", "alex": "alexnet"}[net]
    return (
        f"LPIPS needs the weights of torchvision's {model}, which are not on this machine: where there is "
        f"network run `python -c \"import torchvision; torchvision.models.{model}(weights='DEFAULT')\"`, "
        f"then copy {path.name} to {below_home(path.parent)}."
    )


def _check_net(net: str) -> None:
    if net not in _SMALLEST_LPIPS_SIDE:
        raise unknown("LPIPS network", net, _SMALLEST_LPIPS_SIDE)


def check_images(guesses: Tensor, truth: Tensor) -> None:
    """Raise `SeepageError` for tensors of different shapes, and for what is no image."""
    _check_shapes(guesses, truth)
    if not is_image(tuple(truth.shape[1:])):
        raise SeepageError(
            f"examples of shape {tuple(truth.shape[1:])} are not images, so SSIM and LPIPS do not apply; "
            f"use mse or psnr, or pass [n, C, H, W] with sides of {SMALLEST_SIDE} or more"
        )


def _check_shapes(guesses: Tensor, truth: Tensor) -> None:
    if guesses.shape != truth.shape:
        raise SeepageError(
            f"guesses {tuple(guesses.shape)} and truth {tuple(truth.shape)} cannot be compared one by one; "
            "align them first, so that both have the same shape"
        )


def in_pieces(measure: Callable[[Tensor, Tensor], Tensor], guesses: Tensor, truth: Tensor, values: int) -> Tensor:
    """Apply `measure` to a few examples at a time, about `values` numbers each, and join the results."""
    _check_shapes(guesses, truth)
    if not len(truth):
        return torch.empty(0, dtype=torch.float64, device=truth.device)
    size = max(1, values // max(1, truth[0].numel()))
    pairs = zip(guesses.split(size), truth.split(size), strict=True)
    return torch.cat([measure(a, b) for a, b in pairs])
