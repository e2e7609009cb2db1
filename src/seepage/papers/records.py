"""What `seepage reproduce` measured, as JSON lines: one file per item, one line per row, column, size and data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seepage.core.storage import SCHEMA, read_lines, write_lines
from seepage.errors import SeepageError
from seepage.papers.items import Size
from seepage.registry import problems_with


@dataclass(frozen=True, kw_only=True)
class Record:
    """One number beside the paper's.

    Attributes:
        item: `cafe/table-3`.
        size: `small` or `paper`.
        row: Name of the row.
        column: Number of the column, from 0.
        paper_data: The data set that the paper used; empty: as the recipe says.
        data: What was used here.
        metric: What the number is.
        paper: The paper's number, or None.
        ours: Ours; None where nothing could be measured.
        low: Lower end of its interval: over examples, or over seeds where there are several.
        high: Upper end.
        seeds: The seeds, each with its number.
        facts: What stands beside it: PSNR with one guess per image, SSIM, share recovered, the mean color, options.
        made: Versions, hardware and date.
        command: What made it.
        schema: Version of this form.
    """

    item: str
    size: Size
    row: str
    column: int
    paper_data: str
    data: str
    metric: str
    paper: float | None
    ours: float | None
    low: float | None = None
    high: float | None = None
    seeds: Mapping[str, float | None] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    schema: int = SCHEMA

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """What another measurement of the same replaces. One packaged set may stand in for several of the paper's."""
        return self.size, self.row, self.column, self.paper_data, self.data


def file_of(results: Path, item: str) -> Path:
    """Where the records of an item lie: `cafe-table-3.jsonl`."""
    return results / f"{item.replace('/', '-')}.jsonl"


def picture_of(results: Path, item: str, size: Size, data: str) -> Path:
    """Where the pictures of a figure lie: `cpa-figure-5-small-photos.png`."""
    return results / f"{item.replace('/', '-')}-{size}-{data}.png"


def read_records(results: Path, item: str) -> list[Record]:
    """The records of an item; none where it has not been run.

    Raises:
        SeepageError: Where the file is damaged.
    """
    path = file_of(results, item)
    found = []
    for number, line in enumerate(read_lines(path), 1):
        problems = problems_with(Record, line, f"line {number}") if isinstance(line, dict) else ["it is no table"]
        if problems or line["schema"] != SCHEMA:
            reason = problems[0] if problems else f"schema version {line['schema']!r}"
            raise SeepageError(f"{path} cannot be read ({reason}); run the item again, with another --results")
        found.append(Record(**line))
    return found


def keep_records(results: Path, item: str, fresh: Sequence[Record]) -> Path:
    """Write an item's records: the fresh ones in place of older ones of the same size, row, column and data."""
    replaced = {record.key for record in fresh}
    kept = [record for record in read_records(results, item) if record.key not in replaced]
    path = file_of(results, item)
    write_lines(path, (asdict(record) for record in _sorted([*kept, *fresh])))
    return path


def _sorted(records: Iterable[Record]) -> list[Record]:
    """By size and data; rows stay in the order in which they were measured."""
    listed = list(records)
    rows = list(dict.fromkeys(record.row for record in listed))
    return sorted(listed, key=lambda record: (record.size, record.data, rows.index(record.row), record.column))
