"""What each case's update gives away with no attack, from `exposure.json`, ready to be laid out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seepage.core.storage import check_schema, read_json
from seepage.privacy.ledger import read_entry
from seepage.report.run import parse, parse_all

FILE = "exposure.json"
NAMED = 6
"""Tensors and classes that a line names; more are counted."""


@dataclass(frozen=True)
class Says:
    """What one tensor gives away; the fields are keys of `exposure.json`."""

    name: str
    gives: str | None = None
    withhold: bool = False


@dataclass(frozen=True)
class Norm:
    """What one batch norm tells."""

    mode: str
    variances: int = 0
    channels: int = 0


@dataclass(frozen=True)
class Labels:
    """What the last layer tells of the labels."""

    present: list[Any] = field(default_factory=list)
    sound: bool = False


@dataclass(frozen=True)
class Exposed:
    """One case; the fields are keys of `exposure.json`."""

    cell: str
    failed: str | None = None
    examples: int = 0
    vectors: int = 0
    batch_size: int | None = None
    at_least: int | None = None
    looks_like: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    norms: list[Any] = field(default_factory=list)
    labels: dict[str, Any] | None = None
    stated: dict[str, Any] | None = None

    @property
    def promised(self) -> list[str]:
        """What the client states of its differential privacy, and why to doubt it."""
        spent = None if self.stated is None else read_entry(self.stated)
        if spent is None:
            return []
        return [f"the client states {spent.line}", *(f"doubt on that: {doubt}" for doubt in spent.doubts)]

    @property
    def count(self) -> str:
        """Examples that are given away exactly, of how many."""
        if self.batch_size is not None:
            return f"{self.examples}/{self.batch_size}"
        return f"{self.examples} of at least {self.at_least}" if self.at_least else f"{self.examples}"

    @property
    def says(self) -> list[Says]:
        """The tensors that give something away."""
        return [says for says in parse_all(Says, self.tensors, FILE) if says.withhold]

    @property
    def withhold(self) -> str:
        """Their names."""
        return _some([says.name for says in self.says]) or "nothing found"

    @property
    def classes(self) -> str:
        """The classes that the last bias names."""
        found = None if self.labels is None else parse(Labels, self.labels, FILE)
        if found is None or not found.sound or not found.present:
            return "not told"
        return _some([str(name) for name in found.present])

    @property
    def batch_norm(self) -> str:
        """The mode of batch norm, and how much of the batch's variance it tells."""
        norms = parse_all(Norm, self.norms, FILE)
        if not norms:
            return ""
        read, channels = sum(norm.variances for norm in norms), sum(norm.channels for norm in norms)
        return f"{' and '.join(sorted({norm.mode for norm in norms}))} mode; {read} of {channels} batch variances"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def open_exposed(folder: Path) -> list[Exposed]:
    """Read what a run's updates give away by themselves; none where nobody has looked.

    Raises:
        SeepageError: Where the file is damaged or of another schema version.
    """
    path = folder / FILE
    if not path.exists():
        return []
    record = read_json(path)
    check_schema(record, path)
    return parse_all(Exposed, record.get("cells"), f"{path}")
