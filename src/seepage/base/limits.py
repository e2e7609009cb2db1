"""Limits from which on an example counts as recovered or exact; how they were chosen: `docs/concepts/verdict.md`."""

from dataclasses import dataclass

LIKENESS = 0.4
"""Likeness (`metrics.recognize`, at most 1) from which on an image counts as recovered."""
GAIN_DB = 9.0
"""PSNR in dB over the best guess without an attack from which on a record counts: an eighth of its squared error."""
EXACT_DB = 40.0
"""PSNR in dB over which an example counts as exact."""
ROUGE_2 = 0.5
"""ROUGE-2 in [0, 1] from which on a text counts as recovered: half of its pairs of neighboring tokens."""


@dataclass(frozen=True)
class Limits:
    """Limits from which on an example counts as recovered or exact.

    Attributes:
        likeness: Likeness of an image, at most 1.
        gain_db: Gain in dB over the best guess without an attack, for examples that are neither images nor texts.
        exact_db: PSNR in dB above which an example counts as exact.
    """

    likeness: float = LIKENESS
    gain_db: float = GAIN_DB
    exact_db: float = EXACT_DB
