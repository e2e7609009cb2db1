"""One row of a table of a paper, or one line of a figure, as `[[expect.rows]]` describes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from seepage.errors import SeepageError, short


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a table, or one line of a figure.

    Args:
        name: For readers.
        paper: The paper's numbers, NaN where it prints none; empty: it prints none at all. One whose last digits are
            zeros is written as a string, so that the book shows it as the paper does.
        attack: Which attack of the result; one for all columns or one for each.
        case: Which of its cases; likewise.
        metric: A key of a result row, or `case.KEY` of a case.
        data: The data set; empty: what the recipe says.
        better: Whether an attack that reads more has more of the metric, or less.
    """

    name: str
    paper: Sequence[Any] = ()
    attack: str | Sequence[str] = ""
    case: str | Sequence[str] = "case"
    metric: str = "psnr"
    data: str = ""
    better: Literal["more", "less"] = "more"

    def __post_init__(self) -> None:
        if not all(map(_is_number, self.paper)):
            raise SeepageError(f"paper must be a list of numbers, got {short(list(self.paper))}")

    def attack_at(self, column: int) -> str:
        return self.attack if isinstance(self.attack, str) else self.attack[column]

    def case_at(self, column: int) -> str:
        return self.case if isinstance(self.case, str) else self.case[column]

    def paper_at(self, column: int) -> float | None:
        """The paper's number, or None."""
        value = float(self.paper[column]) if column < len(self.paper) else math.nan
        return None if math.isnan(value) else value

    def printed_at(self, column: int) -> str:
        """The paper's number with its own digits, two decimals at least.

        >>> line = Line(name="CPA", paper=["0.610", 0.0082, 9.9, 7300, float("nan")])
        >>> [line.printed_at(column) for column in range(5)]
        ['0.610', '0.0082', '9.90', '7,300', '-']
        """
        value = self.paper_at(column)
        if value is None:
            return "-"
        given = self.paper[column]
        if isinstance(given, str):
            return given
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        decimals = len(f"{Decimal(str(given)):f}".partition(".")[2].rstrip("0"))
        return f"{value:.{max(2, decimals)}f}"


def _is_number(given: Any) -> bool:
    if isinstance(given, str):
        try:
            return math.isfinite(float(given))
        except ValueError:
            return False
    return isinstance(given, int | float) and not isinstance(given, bool)
