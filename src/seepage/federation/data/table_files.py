"""Tables from files: rows of a `.csv`, `.tsv` or `.parquet`, with a column of the class or of values to predict."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.base.registry import datasets
from seepage.base.storage import FEWER_ROWS, LARGEST_TEXT, check_regular, read_text
from seepage.errors import SeepageError, not_installed, short
from seepage.federation.data.columns import NO_VALUE, Column, is_gap, is_missing, number_of
from seepage.federation.data.dataset import Options, divide, number_words
from seepage.federation.data.tables import TableDataset
from seepage.federation.data.targets import Targets

MAX_CELLS = 2**25
"""Cells of a Parquet table, which may unpack to any number: as words they take 2 GiB or more."""
MAX_WIDTH = 4096
"""Largest number of values of an encoded row."""
MAX_TABLE_CLASSES = 100
"""Different cells of the column of classes; more are a number to predict."""
NAMED = 12
"""Columns that a message names."""

Table = dict[str, list[str]]
"""The cells of each column, by the column's name."""


@datasets.register(
    "table",
    about="rows of a .csv, .tsv or .parquet, with a column of the class, or of numbers to predict",
    suffix=(".csv", ".tsv", ".parquet"),
    origin="named by its path",
)
def load_table(
    options: Options,
    *,
    path: Path,
    label_column: str | None = None,
    target_column: str | Sequence[str] = (),
    drop: Sequence[str] = (),
) -> TableDataset:
    """Load a table with a head: numbers are scaled to [0, 1], words become one place each, and gaps are marked.

    Args:
        options: The split.
        path: Where it lies. Text in UTF-8, with commas, semicolons, tabs or bars between the cells; or Parquet, which
            needs `pyarrow` (in `seepage[parquet]`).
        label_column: Name of the column that holds the class.
        target_column: Name of the column of numbers to predict, in place of a class; several for several outputs.
        drop: Names of columns to leave out, such as those of persons.

    Raises:
        SeepageError: For a file that is no table, columns it does not have, and columns of names.
    """
    if options.size is not None or options.channels is not None:
        raise SeepageError(f"{path} is a table, and rows have no data.size or data.channels; leave them out")
    table = _parquet(path) if path.suffix.lower() == ".parquet" else _delimited(path)
    wanted = [target_column] if isinstance(target_column, str) else list(target_column)
    if wanted and label_column is not None:
        raise SeepageError("data.label_column is of classes and data.target_column of values; give one of them")
    values = _values(table, wanted, path) if wanted else None
    labels = [] if wanted else _labels(table, label_column, path)
    unknown = [name for name in drop if name not in table]
    if unknown:
        raise SeepageError(f"{path} has no column {short(unknown[0])} to drop; it has {_listed(table)}")
    aside = {label_column, *wanted, *drop}
    kept = {name: cells for name, cells in table.items() if name not in aside}
    if not kept:
        what = "what is predicted" if wanted else "the class"
        raise SeepageError(f"{path} has no column beside {what}; add columns, or drop fewer")
    columns = tuple(Column.of(name, cells) for name, cells in kept.items())
    width = sum(column.width for column in columns)
    if width > MAX_WIDTH:
        raise SeepageError(f"{path} has {width} values in a row once words have a place each; drop some columns")
    encoded = [column.encoded(cells) for column, cells in zip(columns, kept.values(), strict=True)]
    rows = torch.cat(encoded, dim=1)
    train, private = divide(len(rows), options, path.stem)
    source = f"{len(rows)} rows of the file {path.name}, {_told(columns)}"
    if values is None:
        numbers, classes = number_words(labels)
        return TableDataset(path.stem, source, rows, numbers, classes, train, private, columns)
    targets = Targets.of_values(values, train, str(path))
    return TableDataset(path.stem, source, rows, targets.parts, tuple(wanted), train, private, columns, targets)


def is_text(path: Path, options: Mapping[str, Any]) -> bool:
    """Whether a `.csv` holds texts: so an option says that tables lack, or it has a column `text`."""
    if {"column", "tokens", "tokenizer", "vocabulary"} & options.keys():
        return True
    with path.open("rb") as file:
        head = file.readline(2**16).decode("utf-8-sig", errors="replace")
    try:
        # In old files a lone carriage return ends a line.
        return "text" in next(csv.reader(head.strip().splitlines()), [])
    except csv.Error:
        return False  # whoever reads the table says what is wrong with it


def _values(table: Table, wanted: Sequence[str], path: Path) -> Tensor:
    """`[N, k]` float64 numbers to predict."""
    found = []
    for name in wanted:
        if name not in table:
            raise SeepageError(f"{path} has no column {short(name)} to predict; it has {_listed(table)}")
        numbers = [number_of(cell) for cell in table[name]]
        odd = next((row for row, number in enumerate(numbers, 1) if number is None), None)
        if odd is not None:
            raise SeepageError(
                f"row {odd} of {path} has no number in {short(name)}; correct it, delete the row, or, where it is a "
                "class, name the column with data.label_column"
            )
        found.append(torch.tensor(numbers, dtype=torch.float64))
    return torch.stack(found, 1)


def _labels(table: Table, label_column: str | None, path: Path) -> list[str]:
    """The class of each row in words."""
    if label_column not in table:
        found = "is a table" if label_column is None else f"has no column {short(label_column)}"
        raise SeepageError(
            f"{path} {found}: name the column of the class with --set data.label_column=…, that of numbers to predict "
            f"with --set data.target_column=…, or that of a text with --set data.column=…; it has {_listed(table)}"
        )
    labels = [cell.strip() for cell in table[label_column]]
    empty = next((number for number, cell in enumerate(labels, 1) if is_missing(cell)), None)
    if empty is not None:
        raise SeepageError(
            f"row {empty} of {path} has no class in {short(label_column)}; fill it in, or delete the row"
        )
    if len(set(labels)) > MAX_TABLE_CLASSES:
        raise SeepageError(
            f"the column {short(label_column)} of {path} has {len(set(labels))} different cells, and a class at most "
            f"{MAX_TABLE_CLASSES}; name another column, or predict its numbers with data.target_column"
        )
    return labels


def _delimited(path: Path) -> Table:
    """The columns of a text file with one row a line."""
    content = read_text(path)
    head = content[: content.find("\n")] if "\n" in content else content
    if (content.count("\n") + 1) * (max(head.count(one) for one in ",;\t|") + 1) > MAX_CELLS:
        raise SeepageError(f"{path} has more than {MAX_CELLS:,} cells; keep fewer rows or columns")
    between = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=head.count)
    try:
        rows = list(csv.reader(io.StringIO(content, newline=""), delimiter=between, strict=True))
    except csv.Error as error:
        raise SeepageError(f"{path} cannot be read as a table ({error}); check the file") from error
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise SeepageError(f"{path} has no rows under its head; it needs one line of names and rows below")
    names = [name.strip() for name in rows[0]]
    uneven = next((number for number, row in enumerate(rows[1:], 1) if len(row) != len(names)), None)
    if uneven is not None:
        raise SeepageError(
            f"row {uneven} of {path} has {len(rows[uneven])} cells and the head {len(names)}; correct the row"
        )
    columns = zip(*rows[1:], strict=True)
    # Where a semicolon stands between the cells, the comma is likely to stand inside of numbers.
    return _named(names, [_points(cells) if between == ";" else list(cells) for cells in columns], path)


def _points(cells: Sequence[str]) -> list[str]:
    """Decimal commas as points, where that makes numbers of a whole column."""
    changed = [cell.replace(",", ".", 1) for cell in cells]
    numbers = all(is_gap(cell) or number_of(cell) is not None for cell in changed)
    return changed if numbers else list(cells)


def _parquet(path: Path) -> Table:
    """The columns of a Parquet file, each cell in words."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise not_installed("pyarrow, which reads .parquet,", "parquet") from error
    check_regular(path, LARGEST_TEXT, too_large=FEWER_ROWS)
    try:
        head = parquet.read_metadata(path)
        if head.num_rows * head.num_columns > MAX_CELLS:
            raise SeepageError(f"{path} has {head.num_rows} rows of {head.num_columns} columns; keep fewer rows")
        found = parquet.read_table(path)
        cells = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in found.columns]
    # A text that is no UTF-8 is a ValueError; a date after the year 9999 overflows.
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        raise SeepageError(f"{path} cannot be read as Parquet ({short(str(error))}); check the file") from error
    if not found.num_rows:
        raise SeepageError(f"{path} has no rows; it needs some")
    return _named(found.column_names, cells, path)


def _named(names: Sequence[str], columns: Sequence[list[str]], path: Path) -> Table:
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise SeepageError(f"{path} has two columns {short(twice)}; give each a name of its own")
    return dict(zip(names, columns, strict=True))


def _told(columns: Sequence[Column]) -> str:
    """The treatment of the columns, in words."""
    words = [column for column in columns if column.categories]
    gaps = [column for column in columns if column.gaps or NO_VALUE in column.categories]
    parts = [f"{len(columns) - len(words)} of numbers, scaled from the least to the largest"]
    places = sum(column.width for column in words)
    parts += [f"{len(words)} of words, with a place for each, {places} in all"] if words else []
    parts += [f"{len(gaps)} with gaps, which are marked"] if gaps else []
    return f"{len(columns)} columns ({'; '.join(parts)})"


def _listed(table: Table) -> str:
    names = [short(name) for name in list(table)[:NAMED]]
    return ", ".join(names) + (f" and {len(table) - NAMED} more" if len(table) > NAMED else "")
