"""The 256 values of an 8-bit image, and which values of a guess are surely theirs."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

LEVELS = 255
"""Steps from black to white."""
NEIGHBORHOOD = 3
"""Height and width of the neighborhood whose values must all lie near 8-bit ones for one of them to be sure, and
that is looked at for a change that the equations do not show."""
OWN = 2.5
"""How much further from its level than the neighborhood, on average, a sure value may lie."""
FIRST_NEARNESS, LAST_NEARNESS, NEARNESS_GROWTH = 0.05, 0.2, 1.3
"""Root mean square distance of a neighborhood from 8-bit values, in steps: at first, at most, and how it is raised.

Values that have nothing to do with 8 bits have a distance of `1 / sqrt(12) = 0.29`.
"""
FEWEST = 0.02
"""Share of the values that are left from which on it is worth solving anew before nearness is raised."""


def to_levels(unit: Float[Tensor, "n C H W"]) -> Float[Tensor, "n C H W"]:
    """The nearest 8-bit values of images in [0, 1].

    >>> import torch
    >>> to_levels(torch.tensor([0.5001, 1.2])) * 255
    tensor([128., 255.])
    """
    return (unit.detach().clamp(0, 1) * LEVELS).round() / LEVELS


def sure_values(unit: Float[Tensor, "n C H W"], nearness: float) -> Bool[Tensor, "n C H W"]:
    """Values that are surely the nearest 8-bit one, since all around them, in each color, lie near such values.

    Args:
        unit: Images in [0, 1].
        nearness: Largest root mean square distance of a neighborhood, in steps of 8 bits.

    >>> import torch
    >>> exact = torch.arange(48.0).view(1, 3, 4, 4) / 255
    >>> sure_values(exact + 0.02 / 255, 0.05).all(), sure_values(exact + 0.4 / 255, 0.05).any()
    (tensor(True), tensor(False))
    """
    # Signed distance from the nearest level, in levels: uniform in (-1/2, 1/2) for values that are not of 8 bits.
    off = (unit.detach() - to_levels(unit)) * LEVELS
    around = F.avg_pool2d(
        off.square().mean(1, keepdim=True), NEIGHBORHOOD, 1, NEIGHBORHOOD // 2, count_include_pad=False
    )
    return (around.sqrt() < nearness) & (off.abs() < OWN * nearness)
