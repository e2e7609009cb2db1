"""What rounding leaves of numbers that are equal, or zero: relative sizes, from a float64 solve to a whole network."""

import math

FLOAT64_FLOOR = 1e-10
"""Relative size, or change, up to which what float64 solved for is zero but for its rounding."""
FLOAT32_SUM = 1e-6
"""Relative error that float32 leaves in a sum of many numbers, such as an entry of a gradient: about ten epsilons."""
FLOAT32_SAME = 2e-6
"""Relative difference up to which two gradients in float32, or two rows of one, are the same but for `FLOAT32_SUM`."""
FLOAT32_ZERO = 1e-5
"""Share of the largest, or relative difference, up to which float32 numbers are zero, or the same, but for rounding."""
FLOAT32_NETWORK = 1e-4
"""As `FLOAT32_ZERO`, for numbers that went through a network, or were solved for from what it sent."""
ROUNDINGS = 10.0
"""Times the rounding of one number that a sum of many, such as an entry of a gradient, may carry."""
DEVIATIONS = 4.0
"""Standard deviations that an error does not exceed by chance: one normal number in 16,000 does."""
FALSE_ALARM = 1e-6
"""Chance that anything at all in a tensor is taken for what is looked for, where it is not there."""


def outward(low: float, high: float) -> tuple[float, float]:
    """Two ends, rounded outward to a hundredth to a tenth of what lies between them.

    >>> outward(-2.622, 2.007), outward(0.0, 1.0), outward(13.2, 301.0)
    ((-2.7, 2.1), (0.0, 1.0), (10.0, 310.0))
    """
    unit = 10.0 ** (math.floor(math.log10(high - low)) - 1) if high > low else 1.0
    ends = math.floor(low / unit + 1e-9) * unit, math.ceil(high / unit - 1e-9) * unit
    return round(ends[0], 12), round(ends[1], 12)
