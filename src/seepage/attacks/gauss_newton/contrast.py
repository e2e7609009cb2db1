"""The contrast of a batch, which batch norm in train mode does not show, from what 8-bit pictures look like."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.attacks.gauss_newton.levels import LEVELS
from seepage.base.nn import generator

SPAN = 8.0
"""The contrast may be so many times smaller than the one that fills the value range."""
BEYOND = 1.02
"""Or so many times larger: of values with errors some lie beyond the range."""
STEP = 2e-4
"""Relative step of the contrasts that are tried: an eighth of the one at which values half a range away move by a fifth
of a level."""
SAMPLE = 4096
"""Values that each contrast is tried on."""
ALIGNED = 0.1
"""Mean distance from whole levels below which values are those of 8-bit pictures: 0.25 for any others."""
TIE = 1.5
"""Contrasts whose distance is within this factor of the best are ties. The smallest contrast wins, because odd
multiples of it fall on whole levels, too."""


def with_contrast(unit: Float[Tensor, "n C H W"], center: Float[Tensor, "1 C H W"]) -> Float[Tensor, "n C H W"]:
    """Images in [0, 1], of which the distance from `center` is known up to one factor.

    Where there is a factor at which all values are whole numbers over 255, it is that one. Otherwise it is the largest
    one at which they stay in the range: a batch of photographs reaches black or white somewhere.

    >>> truth = torch.randint(256, (2, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 255
    >>> middle = torch.full((1, 1, 8, 8), 0.5)
    >>> bool((with_contrast(middle + 0.3 * (truth - middle), middle) - truth).abs().max() < 1e-5)
    True
    """
    # Images are center + factor * apart, with one unknown factor for the batch. [n, C, H, W]
    apart = (unit - center).double()
    # How far each value may go; where the center is black itself, values below it are errors.
    room = torch.where(apart > 0, 1 - center, center).double()
    room = torch.where(room > 0, room / apart.abs().clamp(min=1e-12), torch.inf)
    filling = float(room.min())  # the largest factor at which all values stay in [0, 1]
    chosen = torch.randperm(apart.numel(), generator=generator(0, "contrast"))[:SAMPLE].to(apart.device)
    values, middle = apart.flatten()[chosen], center.double().expand_as(apart).flatten()[chosen]

    def levels(factor: Tensor) -> Tensor:
        return LEVELS * (middle + factor * values)

    def distance(factor: Tensor) -> float:
        exact = levels(factor)
        return float((exact - exact.round()).abs().mean())

    # Factors in equal relative steps from filling / SPAN to filling * BEYOND; a scan, since the distance has
    # many local minima.
    count = int(math.log(SPAN * BEYOND) / STEP)
    tried = filling / SPAN * torch.exp(STEP * torch.arange(count, dtype=torch.float64, device=apart.device))
    found = torch.tensor([distance(factor) for factor in tried])
    factor = filling
    if float(found.min()) < ALIGNED:
        smallest = tried[int((found <= TIE * found.min()).nonzero()[0])]
        whole = levels(smallest).round() - LEVELS * middle
        # The least |LEVELS factor values - whole|^2 over the factor, with the nearest levels held.
        factor = float((whole * values).sum() / (LEVELS * values.square().sum()))
    return (center + factor * apart.to(unit)).clamp(0, 1)
