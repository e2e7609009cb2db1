"""From where on an example counts as recovered; how the numbers were chosen: `docs/concepts/verdict.md`."""

from dataclasses import dataclass

LIKENESS = 0.4
GAIN_DB = 9.0
ROUGE_2 = 0.5
"""Where a record (dB) and a text (half of its token pairs) count as recovered, as an image in `metrics.recognize`."""


@dataclass(frozen=True)
class Limits:
    """From where on an example counts as recovered.

    Attributes:
        likeness: For images.
        gain_db: For examples that are neither images nor texts, in dB.
    """

    likeness: float = LIKENESS
    gain_db: float = GAIN_DB
