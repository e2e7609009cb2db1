"""How far a run is, for whoever watches it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a run is at."""

    RECORDING = "recording"
    TRAINING = "training"
    LOOKING = "looking at updates"
    ATTACKING = "attacking"
    MEASURING = "measuring"
    SCORING = "scoring"
    WRITING = "writing"


@dataclass(frozen=True)
class Doing:
    """A step of a run in words.

    Attributes:
        what: What of the phase, such as the attack and its case; empty in `ATTACKING` where nothing new is named.
        phase: What the run is at.
        left: Seconds until the deadline; None: there is none.

    >>> str(Doing("the report", Phase.WRITING)), str(Doing("dlg on fc2"))
    ('writing the report', 'dlg on fc2')
    """

    what: str = ""
    phase: Phase = Phase.ATTACKING
    left: float | None = None

    def __str__(self) -> str:
        return self.what if self.phase is Phase.ATTACKING else f"{self.phase} {self.what}".rstrip()


ProgressCallback = Callable[[float, float, Doing], None]
"""Called with (done, total, step) during a run."""


def no_progress(done: float, total: float, doing: Doing) -> None:
    """Show nothing."""
