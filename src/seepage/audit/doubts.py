"""What of the told things a captured update contradicts, by which its attacks read it wrongly."""

from seepage.leakage.analysis import size_doubt
from seepage.types import Transcript


def doubts(transcript: Transcript, at_least: int | None) -> list[str]:
    """Sentences for people; none where nothing is contradicted.

    Args:
        transcript: What the attacks were given.
        at_least: Examples behind the update at the least, by the rank of its layers; None where no layer tells.
    """
    wrong = size_doubt(transcript[0].batch_size, at_least)
    return [] if wrong is None else [f"Contradicted: {wrong}."]
