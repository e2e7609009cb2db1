"""Faults of recording never reach the training: each kind is logged once, and a step that keeps failing is stopped."""

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from seepage.base.storage import SCHEMA, append_line, make_private
from seepage.errors import SeepageError, printable

MAX_FAULTS_IN_A_ROW = 3
"""Faults of one step and client, one after the other, after which it is given up for the rest of the run."""
MAX_REASON_LETTERS = 400
"""Letters of a fault's reason; more are cut."""
FAULTS_FILE = "faults.jsonl"
"""File of the recorder's folder with a line for each kind of fault, and for each step that was given up."""

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
        folder: Where `faults.jsonl` goes, as far as it can be written.
        said: Kinds that were logged already. A framework that starts a process for each round may keep them.
        open: Open circuits: steps that are not tried anymore, of one client or at all, with the reason.

    Example:
        >>> import tempfile
        >>> lines = []
        >>> with tempfile.TemporaryDirectory() as place:
        ...     breaker = CircuitBreaker(Path(place))
        ...     for t in range(5):
        ...         found = breaker.call("look", lambda: 1 / 0, f"round {t}", lines.append)
        ...     len(lines), ("look", None) in breaker.open, found
        (2, True, None)
    """

    folder: Path
    said: set[str] = field(default_factory=set)
    open: dict[Circuit, str] = field(default_factory=dict)
    _in_a_row: dict[Circuit, int] = field(default_factory=dict)
    _unwritten: list[dict[str, Any]] = field(default_factory=list)

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
            self.note(circuit, error, where, say, always=always)
            return None
        self._in_a_row.pop(circuit, None)
        if self._unwritten and step == "write":
            self._flush()
        return found

    def note(self, circuit: Circuit, error: Exception, where: str, say: Say, *, always: bool = False) -> None:
        """Log a fault, if it is the first of its kind, and stop its step after `MAX_FAULTS_IN_A_ROW`.

        Args:
            circuit: The step and its client.
            error: The fault.
            where: Round and client, for the warning.
            say: Called with each warning.
            always: Never stop the step.
        """
        step, client = circuit
        why, kind = reason_of(error), kind_of(error)
        log.debug("seepage: %s: %s", where, why, exc_info=error)
        if kind not in self.said:
            self.once(f"{where}: {_WORDS[step]}: {why} (further faults of this kind are not said)", kind, say)
            self._write({"step": step, "where": where, "why": why, "given_up": False})
        if always or _of_update(error):
            return
        self._in_a_row[circuit] = self._in_a_row.get(circuit, 0) + 1
        if self._in_a_row[circuit] >= MAX_FAULTS_IN_A_ROW:
            self.open[circuit] = why
            whose = "" if client is None else " for this client"
            self._tell(
                f"{where}: {_ENDED[step]}{whose} after {MAX_FAULTS_IN_A_ROW} faults in a row, and the training goes "
                f"on; start the run again to record further: {why}",
                say,
            )
            self._write({"step": step, "where": where, "why": why, "given_up": True})

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

    def _write(self, row: dict[str, Any]) -> None:
        self._unwritten.append({"schema": SCHEMA, "time": round(time.time()), **row})
        self._flush()

    def _flush(self) -> None:
        try:
            make_private(self.folder)
            while self._unwritten:
                append_line(self.folder / FAULTS_FILE, self._unwritten[0])
                del self._unwritten[0]
        except Exception:  # a full disk takes no note of itself: the log has it, and the next try may do
            log.debug("seepage: no note of a fault could be written", exc_info=True)


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


def _of_update(error: Exception) -> bool:
    return isinstance(error, SeepageError) and not isinstance(error.__cause__, OSError)
