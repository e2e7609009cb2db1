"""Columns of a table from a file: cells in words become numbers in [0, 1], and numbers become words again."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from seepage.errors import SeepageError, short

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Cells that hold no value, whatever their case."""
GAP_MARKS = frozenset({"-", "?", "."})
"""Cells that hold no value where the other cells of their column are numbers; among words they are words."""
NO_VALUE = "(missing)"
WIDE = 20
"""Places of a column of words from which a run says that one column takes so many."""
MAX_CATEGORIES = 100
"""Distinct words of a column up to which they count as categories; more look like names of persons or things."""


@dataclass(frozen=True)
class Column:
    """One column of a table, and the places of an example that it takes.

    A number takes one place, scaled so that the column's smallest value is 0 and its largest 1, and a second one that
    is 1 where the value is missing, if it ever is (also as one of `GAP_MARKS`): the first then holds the column's mean.
    A word takes one place for each different word of the column, all 0 but its own (one-hot); a missing word is a word
    of its own.

    Attributes:
        name: From the head of the table.
        low: Smallest number.
        high: Largest number.
        whole: Whether all numbers are whole.
        gaps: Whether a number is missing somewhere.
        categories: The words, sorted; empty for a column of numbers.

    >>> age = Column.of("age", ["30", "50", ""])
    >>> age.encoded(["30", "50", ""])
    tensor([[0.0000, 0.0000],
            [1.0000, 0.0000],
            [0.5000, 1.0000]])
    >>> age.words(torch.tensor([0.26, 0.1])), age.words(torch.tensor([0.5, 0.9]))
    ('35', '(missing)')
    >>> region = Column.of("region", ["south", "north"])
    >>> region.encoded(["south"]), region.words(torch.tensor([0.3, 0.7]))
    (tensor([[0., 1.]]), 'south')
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    whole: bool = False
    gaps: bool = False
    categories: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, cells: Sequence[str]) -> Self:
        """The column that its cells describe: of numbers if all present cells are numbers, else of words.

        Raises:
            SeepageError: For infinite numbers, and for more than `MAX_CATEGORIES` words.
        """
        known = [cell for cell in cells if not is_gap(cell)]
        numbers = [number_of(cell) for cell in known]
        if known and None not in numbers:
            values = [number for number in numbers if number is not None]
            if not all(map(math.isfinite, values)):
                raise SeepageError(
                    f"the column {short(name)} has infinite values; correct them, or leave it out: {drop(name)}"
                )
            whole = all(value.is_integer() for value in values)
            return cls(name, min(values), max(values), whole, len(known) < len(cells))
        words = tuple(sorted({NO_VALUE if is_missing(cell) else cell for cell in cells}))
        if len(words) > MAX_CATEGORIES:
            raise SeepageError(
                f"the column {short(name)} has {len(words)} different words, which is a name and no category; leave "
                f"it out: {drop(name)}"
            )
        return cls(name, categories=words)

    @property
    def width(self) -> int:
        """Places that it takes."""
        return len(self.categories) or 1 + self.gaps

    def encoded(self, cells: Sequence[str]) -> Tensor:
        """The cells `[N]` as float32 numbers in [0, 1] `[N, width]`."""
        if self.categories:
            place = {word: number for number, word in enumerate(self.categories)}
            numbers = torch.tensor([place[NO_VALUE if is_missing(cell) else cell] for cell in cells])
            return torch.nn.functional.one_hot(numbers, len(self.categories)).float()
        missing = torch.tensor([is_gap(cell) for cell in cells])
        values = torch.tensor([number_of(cell) or 0.0 for cell in cells], dtype=torch.float64)
        # A column of one value spans nothing, and is 0 everywhere. Halves, as a span may be beyond all numbers.
        scaled = (values / 2 - self.low / 2) / ((self.high / 2 - self.low / 2) or 1.0)
        scaled[missing] = scaled[~missing].mean()
        return torch.stack([scaled, missing.double()][: self.width], dim=1).float()

    def words(self, places: Tensor) -> str:
        """The cell as text, from the column's numbers `[width]`; those of an attack may lie outside of [0, 1]."""
        if self.categories:
            return self.categories[int(places.argmax())]
        if self.gaps and places[1] > 0.5:
            return NO_VALUE
        share = float(places[0])
        value = (1 - share) * self.low + share * self.high
        if not math.isfinite(value):
            return "not a number"
        return str(round(value)) if self.whole else f"{value:.6g}"

    def record(self) -> dict[str, Any]:
        """The column as JSON, written beside the truth."""
        return asdict(self)

    @classmethod
    def read(cls, found: Any) -> Self:
        """From a record, which may be damaged.

        Raises:
            SeepageError: Where it is none.
        """
        kinds = {"name": str, "low": int | float, "high": int | float, "whole": bool, "gaps": bool, "categories": list}
        if not isinstance(found, Mapping) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
            raise SeepageError("the columns of the table beside the truth are damaged; make the run again")
        if not all(abs(found[limit]) <= sys.float_info.max for limit in ("low", "high")):
            raise SeepageError("the limits of a column beside the truth are no numbers; make the run again")
        if not all(isinstance(word, str) for word in found["categories"]):
            raise SeepageError("the words of a column beside the truth are damaged; make the run again")
        return cls(**{key: found[key] for key in kinds} | {"categories": tuple(found["categories"])})


def is_missing(cell: str) -> bool:
    """Whether a cell holds no value.

    >>> is_missing(" NaN "), is_missing("0")
    (True, False)
    """
    return cell.strip().lower() in MISSING


def is_gap(cell: str) -> bool:
    """Whether a cell holds no value where it stands among numbers.

    >>> is_gap("?"), is_gap("-1"), is_missing("?")
    (True, False, False)
    """
    return is_missing(cell) or cell.strip() in GAP_MARKS


def places_in_words(columns: Sequence[Column]) -> str | None:
    """A sentence on how many columns hold words and how many places of a row they take; None without such columns.

    >>> places_in_words([Column("age"), Column("region", categories=("east", "west"))])
    '1 of numbers and 1 of words, which take 2 of the 3 places of a row'
    """
    words = [column.width for column in columns if column.categories]
    if not words:
        return None
    places = sum(column.width for column in columns)
    kinds = f"{len(columns) - len(words)} of numbers and {len(words)} of words"
    most = f", {max(words)} of them one column; data.drop leaves out what is a name" if max(words) >= WIDE else ""
    return f"{kinds}, which take {sum(words)} of the {places} places of a row{most}"


def number_of(cell: str) -> float | None:
    """The number in a cell; None where there is none.

    >>> number_of(" 1.5e3"), number_of("1_000"), number_of("north")
    (1500.0, None, None)
    """
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def drop(name: str) -> str:
    """The option that leaves a column out."""
    return f"""--set 'data.drop=["{short(name).strip("'")}"]'"""
