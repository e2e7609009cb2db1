"""What each case's update gives away with no attack, from `exposure.json`, ready to be laid out."""

from pathlib import Path

from pydantic import JsonValue

from seepage.core.schema import JsonRecord, parse_all
from seepage.core.storage import check_schema, read_json
from seepage.privacy.ledger import read_entry

FILE = "exposure.json"
LISTED_NAMES = 6
"""Tensors and classes that a line names; more are counted."""


class TensorExposure(JsonRecord):
    """What one tensor gives away; the fields are keys of `exposure.json`."""

    name: str
    gives: str | None = None
    withhold: bool = False


class BatchNormExposure(JsonRecord):
    """What one batch norm tells."""

    mode: str
    variances: int = 0
    channels: int = 0


class LabelExposure(JsonRecord):
    """What the last layer tells of the labels."""

    present: list[JsonValue] = []
    sound: bool = False


class CellExposure(JsonRecord):
    """One case; the fields are keys of `exposure.json`."""

    cell: str
    failed: str | None = None
    examples: int = 0
    vectors: int = 0
    batch_size: int | None = None
    at_least: int | None = None
    looks_like: list[JsonValue] = []
    tensors: list[TensorExposure] = []
    norms: list[BatchNormExposure] = []
    labels: LabelExposure | None = None
    stated: dict[str, JsonValue] | None = None

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
    def giving(self) -> list[TensorExposure]:
        """The tensors that give something away."""
        return [tensor for tensor in self.tensors if tensor.withhold]

    @property
    def withhold(self) -> str:
        """Their names."""
        return _some([says.name for says in self.giving]) or "nothing found"

    @property
    def classes(self) -> str:
        """The classes that the last bias names."""
        found = self.labels
        if found is None or not found.sound or not found.present:
            return "not told"
        return _some([str(name) for name in found.present])

    @property
    def batch_norm(self) -> str:
        """The mode of batch norm, and how much of the batch's variance it tells."""
        norms = self.norms
        if not norms:
            return ""
        read, channels = sum(norm.variances for norm in norms), sum(norm.channels for norm in norms)
        return f"{' and '.join(sorted({norm.mode for norm in norms}))} mode; {read} of {channels} batch variances"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return ", ".join(names[:LISTED_NAMES]) + more


def open_exposed(folder: Path) -> list[CellExposure]:
    """Read what a run's updates give away by themselves; none where nobody has looked.

    Raises:
        SeepageError: Where the file is damaged or of another schema version.
    """
    path = folder / FILE
    if not path.exists():
        return []
    record = read_json(path)
    check_schema(record, path)
    return parse_all(CellExposure, record.get("cells"), f"{path}")
