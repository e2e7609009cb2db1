"""Ctrl-C, and SIGTERM as schedulers, containers and `timeout` send it: a command ends, and what is finished is kept."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""What shells report of a process that a signal ended."""


_began = [time.monotonic()]


def begin() -> None:
    """A command begins."""
    _began[0] = time.monotonic()


def began() -> float:
    """When this command began, by `time.monotonic`: before PyTorch was imported."""
    return _began[0]


class Stopped(SystemExit):
    """A signal came; `code` is the exit code.

    No `KeyboardInterrupt`: attacks answer that with what they have so far, and who called one may go on from that.
    """


@contextmanager
def stoppable() -> Iterator[None]:
    """Within this block Ctrl-C and SIGTERM raise `Stopped`; afterwards what was set before is set again.

    Whatever else ends the block once SIGTERM came is `Stopped` too. Ctrl-C stays ignored where it is, as in a shell's
    background job. Only the main thread may set signals; in another nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except BaseException as error:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
            raise Stopped(TERMINATED) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def answer_by_interrupt() -> None:
    """Let both raise `KeyboardInterrupt`: for a library that set answers of its own, or swallows `SystemExit`."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGINT) is _stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    _hear_no_more(number)
    raise Stopped(128 + number)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    _hear_no_more(number)
    raise KeyboardInterrupt


def _hear_no_more(number: int) -> None:
    """A second SIGTERM must not disturb the tidying up after the first; a second Ctrl-C ends it at once."""
    signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else signal.SIG_DFL)
