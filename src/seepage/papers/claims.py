"""Claims: what a table or figure is in its paper for, as relations between its numbers that can be checked.

[[expect.claims]]
text, where           the claim in one sentence of our own, and where the paper makes it
relation              rows, columns, monotone, peak, close or level; each has its own keys
differs               what is different here, and what would have to be true for the paper's result

Every relation comes down to a list of `ClaimPart`s of one cell with another cell, with a level, or with a baseline of
its own. `verdicts.py` decides them, on the paper's printed numbers and on ours.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from seepage.papers.lines import Line

Patterns = Annotated[tuple[str, ...], Field(min_length=1)]
Columns = Annotated[tuple[int, ...], Field(min_length=1)]


@dataclass(frozen=True)
class At:
    """One cell of an item.

    Attributes:
        line: The row.
        column: Number of the column, from 0.
    """

    line: Line
    column: int


@dataclass(frozen=True)
class ClaimPart:
    """One thing that a claim says.

    Attributes:
        left: The cell it is about.
        right: The cell it is compared with, a level in the unit of the metric, or the name of a baseline beside the
            left cell's own number.
        by: How far left must be on the better side of right; for `within`, how far apart they may be.
        within: Whether the two are to be alike instead.
        at_most: Whether left is to be on the worse side of right.
    """

    left: At
    right: At | float | str
    by: float = 0.0
    within: bool = False
    at_most: bool = False


class _Claim(BaseModel):
    """What all claims have.

    Attributes:
        text: The claim in one sentence of our own.
        where: Where the paper makes it.
        printed: Whether the paper prints numbers that show it; False where it shows a figure or only says so.
        exact: Whether no chance is in the numbers, so that they are compared as they are.
        instead: The metric that is read, more being better, where the row's own could not be measured.
        own: Whether our numbers are by an algorithm of this package in place of the paper's, which the verdict says.
        only: Columns that the claim is about; empty: all.
        differs: What is different here and what would have to be true for the paper's result; needed where the claim
            does not hold here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(min_length=1)
    where: str = Field(min_length=1)
    printed: bool = True
    exact: bool = False
    instead: Literal["ssim", "psnr"] | None = None
    own: bool = False
    only: tuple[int, ...] = ()
    differs: str = ""

    def comparisons(self, lines: Sequence[Line], columns: int) -> list[ClaimPart]:
        """All that it says of an item with these rows and so many columns."""
        raise NotImplementedError

    def problems(self, lines: Sequence[Line], columns: int) -> list[str]:
        """Sentences on mistakes in the claim, for an item with these rows and so many columns."""
        found = [
            f"the claim {self.text!r} names the rows {pattern!r}, and there are none"
            for pattern in (*getattr(self, "rows", ()), *getattr(self, "than", ()))
            if not _matching((pattern,), lines)
        ]
        wrong = sorted({column for column in self._columns() if not 0 <= column < columns})
        if wrong:
            found.append(f"the claim {self.text!r} names column {wrong[0]}, and there are {columns}, counted from 0")
        if not found and not self.comparisons(lines, columns):
            found.append(f"the claim {self.text!r} compares nothing; name rows of one data set, or more columns")
        return found

    def _columns(self) -> Iterator[int]:
        yield from self.only

    def _used(self, columns: int) -> Sequence[int]:
        return self.only or range(columns)


class RowsClaim(_Claim):
    """Some rows are better than others of the same data set, column by column.

    Attributes:
        rows: Names of the better rows; `*` stands for anything.
        than: Names of the others.
        by: By how much at least, in the unit of the metric; negative: no worse than by so much.
        across: Whether rows of other data sets are compared, too.
    """

    relation: Literal["rows"]
    rows: Patterns
    than: Patterns
    by: float = 0.0
    across: bool = False

    def comparisons(self, lines: Sequence[Line], columns: int) -> list[ClaimPart]:
        pairs = itertools.product(_matching(self.rows, lines), _matching(self.than, lines))
        return [
            ClaimPart(At(better, column), At(other, column), self.by)
            for better, other in pairs
            if self.across or better.data == other.data
            for column in self._used(columns)
        ]


class ColumnsClaim(_Claim):
    """In some rows, some columns are better than others.

    Attributes:
        rows: Names of the rows.
        pairs: Pairs of columns, the better one first.
        by: By how much at least.
    """

    relation: Literal["columns"]
    rows: Patterns = ("*",)
    pairs: Annotated[tuple[tuple[int, int], ...], Field(min_length=1)]
    by: float = 0.0

    def comparisons(self, lines: Sequence[Line], columns: int) -> list[ClaimPart]:
        found = itertools.product(_matching(self.rows, lines), self.pairs)
        return [ClaimPart(At(line, better), At(line, other), self.by) for line, (better, other) in found]

    def _columns(self) -> Iterator[int]:
        yield from itertools.chain(self.only, *self.pairs)


class MonotoneClaim(_Claim):
    """In some rows, every column is better (or worse) than the one before.

    Attributes:
        rows: Names of the rows.
        gets: Whether the numbers get better or worse from left to right, as the metric goes.
        by: By how much at least from one column to the next; negative: a step back of so much is let pass.
    """

    relation: Literal["monotone"]
    rows: Patterns = ("*",)
    gets: Literal["better", "worse"]
    by: float = 0.0

    def comparisons(self, lines: Sequence[Line], columns: int) -> list[ClaimPart]:
        steps = list(itertools.pairwise(self._used(columns)))
        found = [(a, b) if self.gets == "worse" else (b, a) for a, b in steps]
        return [
            ClaimPart(At(line, better), At(line, other), self.by)
            for line in _matching(self.rows, lines)
            for better, other in found
        ]


class PeakClaim(_Claim):
    """In some rows, one column is the best.

    Attributes:
        rows: Names of the rows.
        at: The column.
        by: By how much at least.
    """

    relation: Literal["peak"]
    rows: Patterns = ("*",)
    at: int
    by: float = 0.0

    def comparisons(self, lines: Sequence[Line], columns: int) -> list[ClaimPart]:
        return [
            ClaimPart(At(line, self.at), At(line, column), self.by)
            for line in _matching(self.rows, lines)
            for column in self._used(columns)
            if column != self.at
        ]

    def _columns(self) -> Iterator[int]:
        yield from (*self.only, self.at)


class CloseClaim(_Claim):
    """No effect: columns of a row are alike, or rows are.

    Attributes:
        rows: Names of the rows.
        than: Names of the rows that they are like, column by column; empty: each row's columns are alike.
        margin: How far apart any two may be, in the unit of the metric.
    """

    relation: Literal["close"]
    rows: Patterns = ("*",)
    than: tuple[str, ...] = ()
    margin: float = Field(ge=0)

    def comparisons(self, lines: Sequence[Line], columns: int) -> list[ClaimPart]:
        own, used = _matching(self.rows, lines), self._used(columns)
        if not self.than:
            pairs = itertools.product(own, itertools.combinations(used, 2))
            return [ClaimPart(At(line, a), At(line, b), self.margin, within=True) for line, (a, b) in pairs]
        return [
            ClaimPart(At(a, column), At(b, column), self.margin, within=True)
            for a, b in itertools.product(own, _matching(self.than, lines))
            if a.data == b.data
            for column in used
        ]


class LevelClaim(_Claim):
    """Numbers of some rows are on one side of a level, or of what a guess without an attack scores.

    Attributes:
        rows: Names of the rows.
        side: `better`: on the better side of the level, or on it; `worse`: on the other.
        level: In the unit of the metric.
        baseline: In place of a level: a fact beside our numbers. The paper has none, so only `printed = false` goes
            with it.
    """

    relation: Literal["level"]
    rows: Patterns = ("*",)
    side: Literal["better", "worse"]
    level: float | None = None
    baseline: Literal["mean_color_psnr"] | None = None

    def comparisons(self, lines: Sequence[Line], columns: int) -> list[ClaimPart]:
        right = self.baseline if self.level is None else self.level
        if right is None:
            return []
        return [
            ClaimPart(At(line, column), right, at_most=self.side == "worse")
            for line in _matching(self.rows, lines)
            for column in self._used(columns)
        ]

    def problems(self, lines: Sequence[Line], columns: int) -> list[str]:
        if (self.level is None) == (self.baseline is None):
            return [f"the claim {self.text!r} needs a level or a baseline, and not both"]
        return super().problems(lines, columns)


Claim = RowsClaim | ColumnsClaim | MonotoneClaim | PeakClaim | CloseClaim | LevelClaim

_CLAIM: TypeAdapter[Claim] = TypeAdapter(Annotated[Claim, Field(discriminator="relation")])


def read_claims(tables: Sequence[Mapping[str, Any]], what: str) -> tuple[list[Claim], list[str]]:
    """Claims of `[[expect.claims]]`, and a sentence for each mistake.

    >>> read_claims([{"text": "t", "where": "w", "relation": "peak", "at": "x"}], "the recipe r")[1]
    ["the recipe r: claim 1: at must be a valid integer, got 'x'"]
    """
    claims, problems = list[Claim](), list[str]()
    for number, table in enumerate(tables, 1):
        try:
            claims.append(_CLAIM.validate_python(table))
        except ValidationError as error:
            problems += [f"{what}: claim {number}: {_said(one)}" for one in error.errors()]
    return claims, problems


def _said(error: Any) -> str:
    """One of pydantic's errors in a sentence."""
    relations = ("rows", "columns", "monotone", "peak", "close", "level")
    # the first part of the place is the relation itself, by which pydantic chose the model
    place = ".".join(str(part) for part in error["loc"] if part not in relations[1:] or error["loc"][0] != part)
    place = place.removeprefix("rows.") if error["loc"][:1] == ("rows",) else place
    if error["type"] == "extra_forbidden":
        return f"there is no option {place!r}"
    if error["type"] == "missing":
        return f"{place} is missing"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"relation must be one of {', '.join(map(repr, relations))}"
    words = error["msg"].removeprefix("Input should be ").split(", unable")[0]
    return f"{place} must be {words}, got {error['input']!r}"


def _matching(patterns: Sequence[str], lines: Sequence[Line]) -> list[Line]:
    """The rows whose name is like one of the patterns, in the item's order."""
    return [line for line in lines if any(fnmatchcase(line.name, pattern) for pattern in patterns)]
