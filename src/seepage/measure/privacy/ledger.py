"""The privacy ledger of a client: the epsilon that its own accountant had counted when it sent an update."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, TypeAdapter, ValidationError

from seepage.base.storage import SCHEMA, check_schema, read_json, write_json
from seepage.errors import SeepageError

FILE = "privacy.json"
"""Path of the ledger in a recorded folder."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), Strict()]
"""A number that is finite and not negative; JSON's true, false and words are none."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """Differential privacy of one client after some of its own steps or rounds. Stated, not measured.

    Attributes:
        epsilon: Privacy loss so far; None where none holds or it could not be counted: `caveats` says why.
        delta: The probability in (0, 1) that the bound epsilon fails.
        accountant: The accounting method, such as `prv` or `rdp`.
        noise: Noise multiplier of the last step: standard deviation of the noise over the clip norm; None where the
            noise is another than Gaussian.
        clip: Norm that each example's gradient is clipped to over all layers; None: unknown.
        sample_rate: Chance of an example to be in the last step; None where no step was counted.
        steps: Steps counted, over all rounds.
        caveats: Why not to trust it, one sentence each.
    """

    epsilon: Amount | None
    delta: Amount
    accountant: Annotated[str, Strict()]
    noise: Amount | None
    clip: Amount | None
    sample_rate: Amount | None
    steps: Annotated[int, Field(ge=0), Strict()]
    caveats: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line for a log.

        >>> LedgerEntry(epsilon=None, delta=1e-5, accountant="rdp", noise=0.0, clip=1.0, sample_rate=None, steps=0).line
        'no epsilon (delta 1e-05; 0 steps by rdp; noise 0, clip 1)'
        """
        much = "no epsilon" if self.epsilon is None else f"epsilon {self.epsilon:.3g}"
        rate = "" if self.sample_rate is None else f", sample rate {self.sample_rate:.3g}"
        noise = "" if self.noise is None else f"noise {self.noise:.3g}"
        clip = "" if self.clip is None else f"clip {self.clip:.3g}"
        how = ", ".join(filter(None, (noise, clip))) + rate
        return f"{much} (delta {self.delta:g}; {self.steps} steps by {self.accountant}{'; ' if how else ''}{how})"

    def table(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "caveats": list(self.caveats)}


@cache
def _reader() -> TypeAdapter[LedgerEntry]:
    """Made when the first entry is read: building a validator takes longer than starting does."""
    return TypeAdapter(LedgerEntry)


def save_entry(entry: LedgerEntry, folder: Path) -> None:
    """Write it into a recorded folder.

    Raises:
        SeepageError: Where the folder cannot be written.
    """
    write_json(folder / FILE, {"schema": SCHEMA, **entry.table()})


def open_entry(folder: Path) -> LedgerEntry | None:
    """Read it from a recorded folder, which may come from others; None where nothing was stated.

    Raises:
        SeepageError: For a file that no ledger wrote.
    """
    path = folder / FILE
    if not path.exists():
        return None
    found = read_json(path)
    check_schema(found, path)
    entry = read_entry(found)
    if entry is None:
        raise SeepageError(f"{path} does not state a privacy that was spent, as a ledger does; delete it")
    return entry


def read_entry(table: Mapping[str, Any]) -> LedgerEntry | None:
    """What `LedgerEntry.table` made, read back; None for something else. Further keys are passed over."""
    try:
        return _reader().validate_python(dict(table))
    except ValidationError:
        return None
