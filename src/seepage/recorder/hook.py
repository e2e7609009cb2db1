"""The part that all frameworks' hooks share: which updates are kept, what is logged, and which are let through."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from seepage.base.storage import LazyTensors
from seepage.errors import SeepageError
from seepage.recorder.arrays import tensor_of
from seepage.recorder.circuit_breaker import Say
from seepage.recorder.opacus import Ledger
from seepage.recorder.recorder import Recorded, Recorder

NOT_LOOKED_AT = Recorded(None, None, blocked=False)
"""The result for an update that is neither recorded nor analyzed."""
T = TypeVar("T")


@dataclass(frozen=True)
class Hook:
    """A recorder inside a framework: its faults do not reach the training, and a blocked update does not leave.

    Attributes:
        recorder: Writes the `observed/` folders.
        every: Keep every so many rounds; a recorder that blocks analyzes all.
        ledger: The client's own, with a line for each round; None: none is kept.

    Raises:
        SeepageError: For `every` below 1.
    """

    recorder: Recorder
    every: int = 1
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        check_every(self.every)

    def keeps(self, t: int) -> bool:
        """Whether updates of this round are written."""
        return t % self.every == 0

    def looks(self, *, keep: bool) -> bool:
        """Whether an update is recorded or analyzed: it is kept, or the recorder may block it."""
        return keep or self.recorder.block is not None

    def guarded(self, work: Callable[[], T], where: str, say: Say) -> T | None:
        """The result of `work`; None where it fails, which is logged once and never stops the training."""
        return self.recorder.breaker.call("hook", work, where, say, always=True)

    def passes(self, found: Recorded | None) -> bool:
        """Whether an update is let through; `found` is None where its analysis failed."""
        return not (self.recorder.blocks(None) if found is None else found.blocked)

    def summary(self, found: Recorded, t: int, client: int | str, say: Say) -> str:
        """One line for a log: what an update reveals and, where a ledger tells, what its client had spent."""
        words = [] if found.exposure is None else [found.exposure.line]
        ledger = self.ledger
        if ledger is not None:
            where = f"round {t}, client {client}"
            join = self.recorder.breaker.call("ledger", lambda: ledger.join(found, t=t, client=client), where, say)
            words += [] if join is None else [join.line]
        return " | ".join(words)


def check_every(every: int) -> None:
    """Raise for a number of rounds below 1."""
    if every < 1:
        raise SeepageError(f"every must be 1 or more, got {every}; 1 records each round")


def count_of(value: object) -> int | None:
    """A number of examples or steps as a framework's metrics hold it; None for anything else, such as a list."""
    # As written, an int may have thousands of digits; what reads the number refuses one far below this bound.
    return min(int(value), 2**63) if isinstance(value, int | float) and 1 <= value < math.inf else None


def named_tensors(arrays: Mapping[str, Any], unpack: Callable[[Any], Any] = lambda array: array) -> LazyTensors:
    """A framework's arrays as tensors; each is made when it is asked for.

    Args:
        arrays: By name.
        unpack: Makes NumPy's or PyTorch's array of one.
    """
    own = {str(name): name for name in arrays}  # a client may have sent numbers for names
    return LazyTensors({name: name for name in own}, lambda name: tensor_of(unpack(arrays[own[name]])))
