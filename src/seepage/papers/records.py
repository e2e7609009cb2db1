"""Measured numbers as JSON lines; every file below `results/` has this form.

results/reproduce/PAPER-ITEM.jsonl  tables and figures of the papers, by `seepage reproduce`
results/STUDY.jsonl                 studies (`experiments/`) and benchmarks (`benchmarks/`); a study is called
                                    `cpa/unmix`, and its file lies in the folder of its subject
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from seepage.base.storage import read_lines, write_lines
from seepage.errors import SeepageError
from seepage.papers.items import Size

RESULTS = Path("results")
"""Folder of the records of studies and benchmarks, relative to the root of the repository."""

RECORD_SCHEMA: Literal[2] = 2
"""Version of the form of a line. In version 1 the value was called `ours`, its interval `low` and `high`."""


def _in_order(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise ValueError(f"an interval goes from its lower end to its upper one, got {interval}")
    return interval


LARGEST = 1e100
"""Size up to which a number of an item is one: squares of what is beyond cannot be summed."""

_Amount = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class _ItemFacts(BaseModel):
    """The facts of an item's record that the book reads; others may be anything."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    recovered: _Amount | None = None
    examples: Annotated[int, Field(ge=0, le=2**53)] | None = None
    psnr: _Amount | None = None
    psnr_low: _Amount | None = None
    psnr_high: _Amount | None = None
    ssim: _Amount | None = None
    lpips: _Amount | None = None
    cosine: _Amount | None = None
    correlation: _Amount | None = None
    mean_color_psnr: _Amount | None = None
    mean_color_ssim: _Amount | None = None
    by_seed: dict[str, dict[str, _Amount | None]] = {}
    intervals: dict[str, list[_Amount | None] | tuple[_Amount | None, ...]] = {}

    @field_validator("intervals")
    @classmethod
    def _of_two_ends(cls, found: dict[str, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
        if any(len(ends) != 2 for ends in found.values()):
            raise ValueError("an interval has two ends")
        return found


class Record(BaseModel):
    """One measured number, with the facts needed to judge it and to reproduce it.

    Attributes:
        version: Version of this form; the key `schema` in the file.
        item: Which question it answers: an item of a paper (`cafe/table-3`) or a study (`cpa/unmix`).
        row: What was measured: the name of a row of the item, or the method and setting of a study.
        metric: What the number is: a key of an audit's result rows, or a word of the study's own.
        value: The number; None where nothing could be measured.
        interval: Its lower and upper end: 95 % over batches or examples, or the least and the most of several seeds.
        seeds: Each seed with its own value; empty where there is no chance in it.
        facts: What stands beside the number: settings, and further numbers of the same run.
        data: The data set that was used.
        command: What made it, to be typed at the root of the repository.
        made: Versions, hardware and date, as far as they were written down.
        size: For an item of a paper: `small` or `paper`.
        column: For an item: number of the column, from 0.
        paper_data: For an item: the data set that the paper used; empty where the recipe says it.
        paper: For an item: the paper's number, from `[expect]`; None where it prints none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    version: Literal[2] = Field(default=RECORD_SCHEMA, alias="schema")
    item: str = Field(pattern=r"^[a-z-]+/[a-z0-9-]+$")
    row: str
    metric: str
    value: float | None
    interval: Annotated[tuple[float, float], AfterValidator(_in_order)] | None = None
    seeds: dict[str, float | None] = {}
    facts: dict[str, Any] = {}
    data: str = ""
    command: str = ""
    made: dict[str, Any] = {}
    size: Size | None = None
    column: int = 0
    paper_data: str = ""
    paper: float | None = None

    @model_validator(mode="after")
    def _check_item(self) -> Self:
        """The facts of an item's record are what the results book takes them for."""
        if self.size is not None:
            _ItemFacts.model_validate(self.facts)
            numbers = [self.value, self.paper, *(self.interval or ()), *self.seeds.values()]
            if any(number is not None and abs(number) > LARGEST for number in numbers):
                raise ValueError(f"no number of an item is beyond {LARGEST:g}")
        return self

    @property
    def key(self) -> tuple[str | None, str, int, str, str]:
        """What another measurement of the same replaces. One packaged set may stand in for several of the paper's."""
        return self.size, self.row, self.column, self.paper_data, self.data

    def line(self) -> dict[str, Any]:
        """The record as it is written. What only items of papers have is left out of a study's."""
        written = self.model_dump(by_alias=True, mode="json")
        return written if self.size else {key: written[key] for key in written if key not in _ITEMS_ONLY}


_ITEMS_ONLY = ("size", "column", "paper_data", "paper")


def file_of(results: Path, item: str) -> Path:
    """Where the records of a paper's item lie: `cafe-table-3.jsonl`."""
    return results / f"{item.replace('/', '-')}.jsonl"


def picture_of(results: Path, item: str, size: Size | None, data: str) -> Path:
    """Where the pictures of a figure lie: `cpa-figure-5-small-photos.png`."""
    return results / f"{item.replace('/', '-')}-{size}-{data}.png"


def read_records(results: Path, item: str) -> list[Record]:
    """The records of a paper's item; none where it has not been run.

    Raises:
        SeepageError: Where the file is damaged.
    """
    return read_file(file_of(results, item))


def read_file(path: Path) -> list[Record]:
    """All records of a file, checked; none where there is no such file.

    Raises:
        SeepageError: Where a line is no record.
    """
    found = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            found.append(Record.model_validate(line))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the line"
            reason = f"line {number}: {place}: {first['msg']}"
            raise SeepageError(
                f"{path} cannot be read ({reason}); run the item again, with another --results"
            ) from None
    return found


def keep_records(results: Path, item: str, fresh: Sequence[Record]) -> Path:
    """Write an item's records: the fresh ones in place of older ones of the same size, row, column and data."""
    replaced = {record.key for record in fresh}
    kept = [record for record in read_records(results, item) if record.key not in replaced]
    path, listed = file_of(results, item), [*kept, *fresh]
    # By size and data; rows stay in the order in which they were measured.
    rows = list(dict.fromkeys(record.row for record in listed))
    listed.sort(key=lambda record: (record.size or "", record.data, rows.index(record.row), record.column))
    write_lines(path, (record.line() for record in listed))
    return path
