"""One deadline for whatever is searching: it looks at the clock, and where it does not it is stopped from outside.

A search that is stopped answers with its best so far, as it answers Ctrl-C: `OutOfTime` is a `KeyboardInterrupt`.

    with limited(seconds=60) as limit:      one piece of work
        between_steps()                     where all that was done so far is an answer: counted
        look()                              anywhere else, such as in each pass of a network; what was done since the
                                            last step is given up
    limit.over, limit.steps                 whether time ended it, and after how many steps

The same work with the same seed makes the same steps in every run. So `limited(steps=limit.steps)` repeats, without a
clock and with the same bits, what a clock once stopped.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from seepage.errors import SeepageError

RESERVED, MOST_RESERVED = 0.05, 20.0
"""Share of a command's minutes, and most seconds, that are kept for what comes after the attacks: scores and pages."""
GRACE = 5.0
"""Seconds after its end at which work that does not look at the clock is stopped from outside."""


class OutOfTime(KeyboardInterrupt):
    """The time of this piece of work is over."""


def check_minutes(minutes: float | None) -> None:
    """Raise `SeepageError` for minutes in which nothing could be done."""
    if minutes is not None and not minutes > 0:
        raise SeepageError(f"--minutes is {minutes:g}; give a number above 0, or leave it out")


def deadline(minutes: float | None, began: float | None = None) -> float:
    """When attacks end, by `time.monotonic`, so that a command ends in time; infinite where it has no limit.

    Args:
        minutes: What the command may take; None: no limit.
        began: When it began, by `time.monotonic`; None: now.
    """
    began = time.monotonic() if began is None else began
    return math.inf if minutes is None else began + 60 * minutes - min(RESERVED * 60 * minutes, MOST_RESERVED)


@dataclass
class Limit:
    """What one piece of work may take.

    Attributes:
        until: When it ends, by `time.monotonic`; infinite: never.
        most: Steps after which it ends, whatever the time; None: the time counts.
        steps: Steps so far, those of an earlier part that it resumed included.
        over: Whether it was stopped.
        whole: Whether what is being done must not be left in the middle: a step whose state was not kept, or the making
            of an answer after the last one.
    """

    until: float = math.inf
    most: int | None = None
    steps: int = 0
    over: bool = False
    whole: bool = False

    def stop(self) -> NoReturn:
        """Stop here."""
        self.over = True
        raise OutOfTime


_current = Limit()


def current_limit() -> Limit:
    """The limit of the work that is running; one without an end where there is none."""
    return _current


def between_steps() -> None:
    """Stop where the time, or the number of steps, is used up; else a step begins.

    Raises:
        OutOfTime: Where it is used up.
    """
    limit = _current
    if limit.steps >= limit.most if limit.most is not None else limit.until <= time.monotonic():
        limit.stop()
    limit.steps, limit.whole = limit.steps + 1, False


def look() -> None:
    """Stop where the time is over. It takes less than a microsecond.

    Raises:
        OutOfTime: Where it is.
    """
    limit = _current
    if limit.until <= time.monotonic() and limit.most is None and not (limit.whole or limit.over):
        limit.steps = max(0, limit.steps - 1)  # the one that is given up
        limit.stop()


@contextmanager
def limited(seconds: float = math.inf, steps: int | None = None) -> Iterator[Limit]:
    """Within this block work ends after so many seconds, or after so many steps.

    Work that looks at no clock is stopped `GRACE` seconds later, where this is the main thread.

    Args:
        seconds: Time; infinite: no limit.
        steps: Those that an earlier run made until the clock stopped it; the time is then no limit.

    >>> with limited(seconds=0.0) as limit:
    ...     try:
    ...         look()
    ...     except KeyboardInterrupt:
    ...         limit.over
    True
    """
    global _current
    before, _current = _current, Limit(time.monotonic() + max(0.0, seconds), steps)
    try:
        with _stopped_from_outside(seconds + GRACE if steps is None else math.inf):
            yield _current
    finally:
        _current = before


@contextmanager
def _stopped_from_outside(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the main thread after so many seconds, between two instructions of Python."""
    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not able or math.isinf(seconds):
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        if not _current.over:  # else it is answering
            _current.steps = max(0, _current.steps - 1)  # the one that is given up
            _current.stop()

    answer, (other, _) = signal.signal(signal.SIGALRM, stop), signal.setitimer(signal.ITIMER_REAL, seconds)
    begun = time.monotonic()
    try:
        yield
    finally:
        # Somebody else's alarm, such as that of a test with a limit of its own, goes on where it stood.
        left = max(1e-3, other - (time.monotonic() - begun)) if other else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, answer)
        signal.setitimer(signal.ITIMER_REAL, left)
