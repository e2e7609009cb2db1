"""Rows of a table, as each attack reconstructed them beside those that the client holds, value by value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from seepage.audit.record import COLUMNS
from seepage.audit.row import Case
from seepage.base.storage import read_json
from seepage.errors import SeepageError, printable
from seepage.federation.data.columns import Column
from seepage.report.pictures import Examples, Place, truth_folder
from seepage.report.run import RunFolder
from seepage.report.texts import Guess

SHOWN = 8
"""Records of a case that a page shows."""
MOST_VALUES = 60
"""Values of a record that a page shows."""
LONGEST = 60
"""Characters of a value that a page shows."""


TableValue = tuple[str, str | None, list[Guess]]
"""Column, what the client holds, None where the truth is not in the folder, and what each attack reconstructed."""

TableRecord = tuple[list[TableValue], list[int | None]]
"""The first `MOST_VALUES` values, and for each attack the number of values that read the same, of all; None where it
returned nothing."""


def records_of(run: RunFolder, case: Case, found: Examples) -> dict[str, Any] | None:
    """The records of a case, in batch order; None where its examples are no rows of numbers.

    Returns:
        `attacks` that returned records; `rows`; the `total` of which these are the first; the number of `columns`;
        whether the truth is `held` in the folder; whether the columns' names and units are known (`named`), else values
        stand as the model reads them.

    Raises:
        SeepageError: For damaged files.
    """
    if found.kind != "records":
        return None
    width = found.some.shape[1]
    known = _columns(truth_folder(run, case), width)
    columns = known or [Column(str(place)) for place in range(1, width + 1)]
    rows = [_record(found, place, columns, known is None) for place in found.places[:SHOWN]]
    return {
        "attacks": list(found.guesses), "rows": rows, "total": len(found.places), "columns": len(columns),
        "held": found.truth is not None, "named": known is not None,
    }  # fmt: skip


def _columns(folder: Path | None, width: int) -> list[Column] | None:
    """What a record's numbers stand for; None where nobody wrote it down."""
    if folder is None or not (folder / COLUMNS).is_file():
        return None
    listed = read_json(folder / COLUMNS).get("columns")
    columns = [Column.read(one) for one in listed] if isinstance(listed, list) else []
    if sum(column.width for column in columns) != width:
        raise SeepageError(f"{folder / COLUMNS} does not fit the private examples; make the run again")
    return columns


def _record(found: Examples, place: Place, columns: Sequence[Column], plain: bool) -> TableRecord:
    truth = found.private(place)
    private = None if truth is None else _words(truth, columns, plain)
    read = [
        None if row is None else _words(row, columns, plain) for row in (g.at(place) for g in found.guesses.values())
    ]
    same = [
        [private is not None and guess is not None and guess[i] == private[i] for i in range(len(columns))]
        for guess in read
    ]
    values = [
        (
            printable(column.name)[:LONGEST],
            None if private is None else private[i],
            [(None if guess is None else guess[i], right[i]) for guess, right in zip(read, same, strict=True)],
        )
        for i, column in enumerate(columns[:MOST_VALUES])
    ]
    right = [None if guess is None else sum(equal) for guess, equal in zip(read, same, strict=True)]
    return values, right


def _words(row: Tensor, columns: Sequence[Column], plain: bool) -> list[str]:
    """The values of a record `[d]`, without what would steer a terminal or turn the line around."""
    if plain:
        return [f"{value:.4g}" for value in row.tolist()]
    widths = [column.width for column in columns]
    parts = row.split(widths)
    return [printable(column.words(part))[:LONGEST] for column, part in zip(columns, parts, strict=True)]
