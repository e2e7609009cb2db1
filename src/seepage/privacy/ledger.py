"""What a client's accountant of differential privacy had counted when an update left: its own statement."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from seepage.core.storage import SCHEMA, check_schema, read_json, write_json
from seepage.errors import SeepageError

FILE = "privacy.json"
"""Where it lies in a recorded folder."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Differential privacy of one client's examples after some of its own training steps. Stated, not measured.

    Attributes:
        epsilon: Spent so far; None where none holds or it could not be counted: `doubts` says why.
        delta: The chance that it does not hold, in (0, 1).
        accountant: Who counted it, such as `prv` or `rdp`.
        noise: Noise multiplier of the last step: standard deviation of the noise over the clip norm.
        clip: Norm that each example's gradient is clipped to, over all layers.
        sample_rate: Chance of an example to be in the last step; None where no step was counted.
        steps: Steps counted, over all rounds.
        doubts: Why not to trust it, one sentence each.
    """

    epsilon: float | None
    delta: float
    accountant: str
    noise: float
    clip: float
    sample_rate: float | None
    steps: int
    doubts: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line for a log.

        >>> Spent(epsilon=None, delta=1e-5, accountant="rdp", noise=0.0, clip=1.0, sample_rate=None, steps=0).line
        'no epsilon (delta 1e-05; 0 steps by rdp; noise 0, clip 1)'
        """
        much = "no epsilon" if self.epsilon is None else f"epsilon {self.epsilon:.3g}"
        rate = "" if self.sample_rate is None else f", sample rate {self.sample_rate:.3g}"
        return (
            f"{much} (delta {self.delta:g}; {self.steps} steps by {self.accountant}; "
            f"noise {self.noise:.3g}, clip {self.clip:.3g}{rate})"
        )

    def table(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "doubts": list(self.doubts)}


def save_spent(spent: Spent, folder: Path) -> None:
    """Write it into a recorded folder.

    Raises:
        SeepageError: Where the folder cannot be written.
    """
    write_json(folder / FILE, {"schema": SCHEMA, **spent.table()})


def open_spent(folder: Path) -> Spent | None:
    """Read it from a recorded folder, which may be somebody else's; None where nothing was stated.

    Raises:
        SeepageError: For a file that no ledger wrote.
    """
    path = folder / FILE
    if not path.exists():
        return None
    found = read_json(path)
    check_schema(found, path)
    spent = read_spent(found)
    if spent is None:
        raise SeepageError(f"{path} does not state a privacy that was spent, as a ledger does; delete it")
    return spent


def read_spent(table: Mapping[str, Any]) -> Spent | None:
    """What `Spent.table` made, read back; None for something else."""
    if not _is_whole(table):
        return None
    own = {field.name: table[field.name] for field in fields(Spent)}
    return Spent(**own | {"doubts": tuple(table["doubts"])})


def _is_whole(found: Mapping[str, Any]) -> bool:
    words, steps = found.get("doubts"), found.get("steps")
    numbers = (found.get("epsilon"), found.get("sample_rate"))
    return (
        all(number is None or _is_amount(number) for number in numbers)
        and all(key in found for key in ("epsilon", "sample_rate"))
        and all(_is_amount(found.get(key)) for key in ("delta", "noise", "clip"))
        and isinstance(steps, int)
        and _is_amount(steps)
        and isinstance(found.get("accountant"), str)
        and isinstance(words, list)
        and all(isinstance(word, str) for word in words)
    )


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
