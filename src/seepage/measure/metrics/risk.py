"""Risk tiers: words for a mean PSNR, and when they are meaningless."""

from dataclasses import dataclass
from math import isfinite

from seepage.errors import SeepageError

TIERS = ((20.0, "very high"), (15.0, "high"), (10.0, "medium"))
"""Smallest mean PSNR in dB of each word; under the last one: low."""

LEAST_GAIN = 3.0
"""Gain in dB over the mean color below which a tier is meaningless: a factor of 2 in mean squared error."""


@dataclass(frozen=True)
class Risk:
    """A tier together with the gain that it needs to mean anything.

    Attributes:
        tier: `very high`, `high`, `medium` or `low`.
        gain_db: Mean PSNR over that of the example's own mean color, in dB.
        meaningful: Whether the gain is at least `LEAST_GAIN`; else a flat square would do about as well.
    """

    tier: str
    gain_db: float
    meaningful: bool

    def __str__(self) -> str:
        sign = "+" if self.gain_db >= 0 else ""
        words = self.tier if self.meaningful else f"{self.tier}, but meaningless"
        return f"{words} ({sign}{self.gain_db:.1f} dB over the mean color)"


def risk(psnr: float, gain_db: float) -> Risk:
    """The risk tier of FedLeak (Fan et al., USENIX Security 2025, Table 2), with its gain over the mean color.

    The paper reads it off the PSNR alone: from 20 dB very high, from 15 dB high, from 10 dB medium; what lies under
    that has no word there and is called low here. Deviation from the paper: a tier is not to be had without the gain.
    A square of each image's mean color, which is no recovery at all, is "medium" or "high" by these limits on most
    batches of CIFAR-10 (docs/judging.md).

    Args:
        psnr: Mean PSNR of an attack's guesses, in dB.
        gain_db: That PSNR minus the PSNR of the examples' own mean colors, in dB.

    Raises:
        SeepageError: For NaN or infinite values.

    >>> str(risk(18.0, 4.5)), str(risk(16.0, 0.4))
    ('high (+4.5 dB over the mean color)', 'high, but meaningless (+0.4 dB over the mean color)')
    """
    if not isfinite(psnr) or not isfinite(gain_db):
        raise SeepageError(f"a PSNR of {psnr} dB with a gain of {gain_db} dB has no risk tier; leave that row out")
    tier = next((word for least, word in TIERS if psnr >= least), "low")
    return Risk(tier, gain_db, gain_db >= LEAST_GAIN)
