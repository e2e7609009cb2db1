"""Number formats of fewer bits than float32: which one a tensor went through, and how far its rounding may reach."""

import torch
from torch import Tensor

SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}
"""Bits of a number's significand, with the leading one that is not stored."""
FITTING_SHARE = 0.99
"""Share of a tensor's entries that must lie on a format's grid; sums that end near zero may miss it."""
MIN_ENTRIES = 16
"""Entries below which a tensor tells no format."""
LARGEST_INTEGERS = (127.0, 127.5, 128.0)
"""What the largest size of a row is divided by to make the step of symmetric 8-bit integers."""
FEWEST_LEVELS = 8
"""Levels of 127 that the entries of a tensor of integers take at least."""
WHOLE = 1e-2
"""How far a number of steps may be from a whole one; float32 sums reach 1e-4."""


def format_of(values: Tensor, slack: Tensor) -> str | None:
    """The coarse format (`bfloat16`, `float16`, `int8`) whose numbers a tensor's entries are; None: float32 or finer.

    Args:
        values: A tensor.
        slack: In its shape: how far its entries may be off, as those of a sum in float32 are.

    Example:
        >>> weights = torch.linspace(0.1, 0.9, 40)
        >>> format_of(weights.bfloat16().float(), torch.zeros(40)), format_of(weights, torch.zeros(40))
        ('bfloat16', None)
    """
    exact = values.double()
    if int(exact.count_nonzero()) < MIN_ENTRIES:
        return None
    for name in SIGNIFICANT_BITS:
        half = half_units(exact, name)
        near = (exact - exact.to(getattr(torch, name)).double()).abs() <= slack
        # A slack as wide as the grid fits everything, so entries near zero say nothing.
        tells = (slack <= half / 4) & (exact != 0)  # zero is a number of every format
        if int(tells.sum()) >= MIN_ENTRIES and _mostly(near[tells]):
            return name
    return "int8" if _are_integers(exact, slack) else None


def half_units(values: Tensor, name: str) -> Tensor:
    """Half a unit in the last place of each entry, float64, as a format of `SIGNIFICANT_BITS` would store it.

    Example:
        >>> half_units(torch.tensor([1.0, 0.02]), "bfloat16").tolist()
        [0.00390625, 6.103515625e-05]
    """
    size = values.double().abs().clamp(min=torch.finfo(getattr(torch, name)).smallest_normal)
    # 2^e <= size < 2^(e + 1) has neighbors 2^(e + 1 - bits) apart.
    return torch.exp2(torch.floor(torch.log2(size)) - SIGNIFICANT_BITS[name])


def _are_integers(exact: Tensor, slack: Tensor) -> bool:
    """Whether entries are whole multiples of one step for each row, or for the whole tensor, with at most 8 bits."""
    for rows in ([exact.flatten(1)] if exact.ndim > 1 else []) + [exact.reshape(1, -1)]:
        largest = rows.abs().amax(1, keepdim=True)
        spread = rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
        room = slack.reshape(rows.shape)
        for step in (*(largest / most for most in LARGEST_INTEGERS), spread / 255):
            places = rows / step
            whole = ((places - places.round()).abs() <= WHOLE) & (room <= step / 8)
            # Zeros are whole in any steps, and entries next to them.
            tells = (rows.abs() > room) & (step > 0)
            if int(tells.sum()) < MIN_ENTRIES or not _mostly((whole & (places.abs() > 0.5))[tells]):
                continue
            # Entries of one size, as Adam's are, or of few, are whole in some steps. So are rows that a picture of 8
            # bits makes alone, all of its one pattern; rounded rows of mixtures have each their own.
            patterns = (places * places.gather(1, places.abs().argmax(1, keepdim=True)).sign())[tells.any(1)].round()
            alone = len(rows) > 1 and 2 * len(patterns.unique(dim=0)) <= len(patterns)
            if not alone and len(places[tells].round().abs().unique()) >= FEWEST_LEVELS:
                return True
    return False


def _mostly(fits: Tensor) -> bool:
    return float(fits.double().mean()) >= FITTING_SHARE
