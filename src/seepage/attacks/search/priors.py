"""What real inputs look like, as penalties on the candidates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.base.images import neighbor_differences
from seepage.errors import refuse
from seepage.federation.types import Knowledge

SMOOTHING = 1e-6
"""Added under a root, so that it has a slope where neighbors are alike: a difference of 1e-3 counts half."""
FURTHEST = 0.125
"""Largest shift that registers two images, as a share of each side."""


class Prior(ABC):
    """A penalty on candidates `[restarts, batch, *shape]`, one number for each restart.

    Candidates come as inputs, of values in [0, 1] for images. Papers state weights for images normalized to
    `(x - mean) / std`; a prior whose weight was stated so has `unit = std`, the length on the inputs' scale of what is
    1 there, and penalizes what the paper does.

    Attributes:
        compares: The penalty of one restart depends on where the others stand.
    """

    compares: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, " restarts"]:
        """Penalties `[restarts]`."""

    def of_first(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, ""]:
        """The penalty of the first restart alone."""
        return self(candidates)[0]

    def at(self, share: float) -> "Prior":
        """The prior whose gradient is followed once a share of the steps is done; its value is that of the last."""
        return self

    def check(self, knowledge: Knowledge) -> None:
        """Raise `Inapplicable` where the prior makes no sense, e.g. total variation on a table."""
        return


@dataclass(frozen=True)
class TotalVariation(Prior):
    """Anisotropic total variation: absolute differences of neighbors, down plus across, times `weight / unit`.

    Zero for inputs that are no images: columns of a table have no neighbors.

    Args:
        weight: Weight against the gradient distance.
        unit: What the weight takes for a difference of 1, on the inputs' scale.
        reduce: The mean over all neighbors, or the sum over those of an image and the mean over the batch.

    >>> edge = torch.tensor([0.0, 0.5]).expand(1, 1, 1, 2, 2)
    >>> TotalVariation(0.1)(edge).item(), TotalVariation(0.1, unit=0.25)(edge).item()
    (0.05000000074505806, 0.20000000298023224)
    """

    weight: float
    unit: float = 1.0
    reduce: Literal["mean", "sum"] = "mean"

    def __call__(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, " restarts"]:
        if candidates.ndim != 5:
            return (candidates * 0).flatten(1).sum(1)  # zero, and differentiable
        down, across = neighbor_differences(candidates)
        if self.reduce == "sum":
            whole = down.flatten(1).sum(1) + across.flatten(1).sum(1)
            return self.weight / self.unit / candidates.shape[1] * whole
        # |a/u - b/u| = |a - b| / u: the weight of a first power is divided by the unit once.
        return self.weight / self.unit * (down.flatten(1).mean(1) + across.flatten(1).mean(1))

    def check(self, knowledge: Knowledge) -> None:
        _check_neighbors(knowledge)


def _check_neighbors(knowledge: Knowledge) -> None:
    if len(knowledge.input_shape) == 3 and min(knowledge.input_shape[1:]) < 2:
        raise refuse("no_neighbors")(
            f"total variation needs neighbors and images here are {knowledge.input_shape[1:]} pixels",
            "set the attack's tv to 0",
        )


@dataclass(frozen=True, kw_only=True)
class ColorVariation(Prior):
    """Isotropic total variation of the colors and of their differences: mean of `sqrt(dx^2 + dy^2 + eps)`.

    With red, green and blue stand red - green, red - blue and green - blue, so an edge in one color alone costs more
    than the same edge in all; other numbers of channels stand alone. The idea is that of breaching's later presets
    ("double opponents"); there the border is penalized too. The weight may go from one value to another over the
    steps, geometrically: strong while the image takes shape, weak once it has to agree in detail.

    Args:
        weight: Weight against the gradient distance, at the last step.
        first: Weight at the first step; None: `weight`.
        unit: What the weight takes for a difference of 1, on the inputs' scale.

    >>> edge = torch.tensor([0.0, 1.0]).expand(1, 1, 3, 2, 2)
    >>> ColorVariation(weight=2.0, first=8.0).at(0.5)
    ColorVariation(weight=4.0, first=None, unit=1.0)
    >>> round(ColorVariation(weight=4.0)(edge).item(), 2)
    2.0
    """

    weight: float
    first: float | None = None
    unit: float = 1.0

    def __call__(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, " restarts"]:
        if candidates.ndim != 5:
            return (candidates * 0).flatten(1).sum(1)  # zero, and differentiable
        if candidates.shape[2] == 3:
            red, green, blue = candidates.unbind(2)
            differences = torch.stack([red - green, red - blue, green - blue], 2)
            candidates = torch.cat([candidates, differences], 2)
        down, across = neighbor_differences(candidates)
        # Both differences of a pixel, [..., H - 1, W - 1]; the last row and column have only one and are left out.
        squares = down[..., :-1].square() + across[..., :-1, :].square()
        smooth = (squares / self.unit**2 + SMOOTHING).sqrt() - SMOOTHING**0.5
        variation: Tensor = self.weight * smooth.flatten(1).mean(1)
        return variation

    def at(self, share: float) -> "ColorVariation":
        if self.first is None:
            return self
        return replace(self, weight=self.first * (self.weight / self.first) ** share, first=None)

    def check(self, knowledge: Knowledge) -> None:
        _check_neighbors(knowledge)


@dataclass(frozen=True)
class SquaredNorm(Prior):
    """Mean square of the inputs' distance from their middle, times `weight / unit^2` (GradInversion's L2 term).

    Deviations: the paper's inputs are normalized, so that 0 is about mid-grey; the mean stands for the sum, so that
    the weight does not depend on the size.

    Args:
        weight: Weight against the gradient distance.
        middle: The value that costs nothing.
        unit: What the weight takes for a distance of 1, on the inputs' scale.
    """

    weight: float
    middle: float = 0.5
    unit: float = 1.0

    def __call__(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, " restarts"]:
        return self.weight * ((candidates - self.middle) / self.unit).square().flatten(1).mean(1)


@dataclass(frozen=True)
class GroupConsistency(Prior):
    """Mean square distance to the mean of all restarts, once these are registered (GradInversion, CVPR 2021, eq. 11).

    Restarts agree on what is in an image more than on where. For each restart and image, the others' versions are
    moved onto its own, the mean of all is taken as given, and the distance to it is the penalty. Image i of one restart
    is image i of the others, which holds where their labels are the same and differ from one another.

    Deviations: the paper's distance is an L2 norm, this one the mean square over the entries; the paper registers by
    RANSAC flow, a trained network, here by the whole-pixel shift of the largest circular cross-correlation (by FFT, all
    colors together), none above an eighth of a side, with wrap-around.

    Args:
        weight: The paper's alpha_group.
        unit: What the weight takes for a distance of 1, on the inputs' scale.
    """

    compares: ClassVar[bool] = True
    weight: float
    unit: float = 1.0

    def __call__(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, " restarts"]:
        return torch.stack([self.of_first(candidates.roll(-r, 0)) for r in range(len(candidates))])

    def of_first(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, ""]:
        with torch.no_grad():
            moved = candidates
            if candidates.ndim == 5:
                moved = torch.stack([registered(other, candidates[0], FURTHEST) for other in candidates])
            group = moved.mean(0)
        return self.weight * ((candidates[0] - group) / self.unit).square().mean()


def registered(
    moving: Float[Tensor, "batch channels height width"],
    fixed: Float[Tensor, "batch channels height width"],
    furthest: float,
) -> Float[Tensor, "batch channels height width"]:
    """Each image of `moving`, shifted (with wrap-around) by the whole pixels at which it correlates best with `fixed`.

    >>> image = torch.eye(4)[None, None]
    >>> bool((registered(image.roll(1, -1), image, 0.5) == image).all())
    True
    """
    height, width = fixed.shape[-2:]
    spectra = [torch.fft.rfft2(images - images.mean((-2, -1), keepdim=True)) for images in (fixed, moving)]
    surface = torch.fft.irfft2((spectra[0] * spectra[1].conj()).sum(1), s=(height, width))  # [batch, height, width]
    allowed = _near(height, furthest)[:, None] & _near(width, furthest)[None]
    best = surface.masked_fill(~allowed.to(surface.device), -torch.inf).flatten(1).argmax(1).tolist()
    shifted = [image.roll((place // width, place % width), (-2, -1)) for image, place in zip(moving, best, strict=True)]
    return torch.stack(shifted)


def _near(side: int, furthest: float) -> Tensor:
    """Which circular shifts `0..side-1` are at most a share of the side, forwards or backwards."""
    shift = torch.arange(side)
    return torch.minimum(shift, side - shift) <= furthest * side
