"""Faults of recording never reach the training: each kind is logged once, and a step that keeps failing is stopped."""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from seepage.errors import SeepageError, printable

MAX_FAULTS_IN_A_ROW = 3
"""Faults of one step and client, one after the other, after which it is given up for the rest of the run."""
MAX_REASON_LETTERS = 400
"""Letters of a fault's reason; more are cut."""

Step = Literal["hook", "read", "look", "write", "ledger"]
Circuit = tuple[Step, int | str | None]
"""A step and the client whose message it works on; None where a fault is not of one client's making."""
Say = Callable[[str], None]
T = TypeVar("T")
log = logging.getLogger("seepage")


@dataclass
class CircuitBreaker:
    """The faults of one recorder in this process.

    A fault of the update itself, such as NaN in it, opens no circuit. A full disk, a folder that may not be written,
    want of memory and mistakes in code do, where they come `MAX_FAULTS_IN_A_ROW` times without a success between. What
    works on a client's message is counted for that client alone: whatever one sends, the others are recorded.

    Attributes:
        said: Kinds that were logged already. A framework that starts a process for each round may keep them.
        open: Open circuits: steps that are not tried anymore, of one client or at all, with the reason.

    Example:
        >>> lines = []
        >>> breaker = CircuitBreaker()
        >>> for t in range(5):
        ...     found = breaker.call("look", lambda: 1 / 0, f"round {t}", lines.append)
        >>> len(lines), ("look", None) in breaker.open, found
        (2, True, None)
    """

    said: set[str] = field(default_factory=set)
    open: dict[Circuit, str] = field(default_factory=dict)
    _in_a_row: dict[Circuit, int] = field(default_factory=dict)

    def call(
        self,
        step: Step,
        work: Callable[[], T],
        where: str,
        say: Say,
        *,
        always: bool = False,
        client: int | str | None = None,
    ) -> T | None:
        """The result of a step of recording; None where it fails, or was stopped. Never raises.

        Args:
            step: The kind of step.
            work: Runs the step.
            where: Round and client, for the warning.
            say: Called with each warning.
            always: Never stop the step, since something depends on it or it costs next to nothing.
            client: Client whose message the step reads; None: its faults are of no client's making, as a full disk.
        """
        circuit = step, client
        if circuit in self.open:
            return None
        try:
            found = work()
        except Exception as error:
            why = reason_of(error)
            log.debug("seepage: %s: %s", where, why, exc_info=error)
            self.once(f"{where}: {_WORDS[step]}: {why} (further faults of this kind are not said)", kind_of(error), say)
            if always or (isinstance(error, SeepageError) and not isinstance(error.__cause__, OSError)):
                return None
            self._in_a_row[circuit] = self._in_a_row.get(circuit, 0) + 1
            if self._in_a_row[circuit] >= MAX_FAULTS_IN_A_ROW:
                self.open[circuit] = why
                ended = f"{_ENDED[step]}{'' if client is None else ' for this client'}"
                words = f"{ended} after {MAX_FAULTS_IN_A_ROW} faults in a row, and the training goes on"
                self._tell(f"{where}: {words}; start the run again to record further: {why}", say)
            return None
        self._in_a_row.pop(circuit, None)
        return found

    def once(self, words: str, kind: str, say: Say) -> None:
        """Say something of this kind, if it was not said before."""
        if kind not in self.said:
            self.said.add(kind)
            self._tell(words, say)

    def _tell(self, words: str, say: Say) -> None:
        try:
            say(words)
        except Exception:
            log.debug("seepage: a warning could not be said", exc_info=True)


_WORDS: dict[Step, str] = {
    "hook": "not recorded",
    "read": "not recorded",
    "look": "not looked at",
    "write": "not written",
    "ledger": "no epsilon beside it",
}
_ENDED: dict[Step, str] = {
    "hook": "recording has stopped",
    "read": "recording has stopped",
    "look": "updates are not looked at anymore",
    "write": "nothing is written anymore",
    "ledger": "no epsilon is said anymore",
}


def reason_of(error: Exception) -> str:
    """A fault in one line: a mistake in its own words, all else with its kind before it.

    >>> reason_of(SeepageError("the update holds NaN")), reason_of(ValueError("a   b"))
    ('the update holds NaN', 'ValueError: a b')
    """
    words = " ".join(printable(" ".join(str(error).split())).split())[:MAX_REASON_LETTERS]
    return words if isinstance(error, SeepageError) else f"{type(error).__name__}: {words}"


def kind_of(error: Exception) -> str:
    """Two faults are of one kind where they were raised at the same place for the same cause, whatever they say."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    cause = error.__cause__ or error
    return f"{type(error).__name__} {place} {type(cause).__name__} {getattr(cause, 'errno', '')}".strip()
