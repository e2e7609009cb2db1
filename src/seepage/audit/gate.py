"""The gate of `--fail-if`: a condition on a score, and the rows that meet it."""

import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from seepage.audit.row import MEMBERSHIP_SCORES, SCORE_NAMES, MembershipRow, Outcome, Row
from seepage.core.schema import Summary
from seepage.errors import SeepageError, unknown

LISTED_CELLS = 3
"""Number of cells that a message names; the rest are counted."""

_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


class Condition(NamedTuple):
    """A score, a comparison and a limit, such as `psnr > 20`."""

    score: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.score} {self.sign} {self.limit:g}"


def parse_condition(text: str, metrics: Collection[str] = ()) -> Condition:
    """A condition such as `psnr>20`.

    Args:
        text: The condition.
        metrics: Names of the metrics that the run measures. `NAME` means the mean of a metric; `NAME_median`,
            `NAME_low`, `NAME_high` and `NAME_n` can be used as well.

    Raises:
        SeepageError: If the text is not a condition or names no score.

    >>> str(parse_condition("psnr>20"))
    'psnr > 20'
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SeepageError(f"--fail-if takes SCORE>NUMBER such as 'psnr>20', got {text!r}")
    score, sign, limit = match.groups()
    metric, _, part = score.rpartition("_")
    known = (*SCORE_NAMES, *MEMBERSHIP_SCORES, *metrics)
    if score not in known and not (metric in metrics and part in Summary.model_fields):
        raise unknown("score in --fail-if", score, list(dict.fromkeys(known)))
    return Condition(score, sign, float(limit))


def violations(rows: Sequence[Row], condition: Condition) -> list[Row]:
    """Rows that meet a `--fail-if` condition.

    Raises:
        SeepageError: If no row meets it but a cell could not be recorded or has no row with that score: missing
            numbers must not let the gate pass. A cell with a zero update has nothing to leak and passes.
    """
    values = [(row, row.value(condition.score)) for row in rows]
    compare = _COMPARE[condition.sign]
    found = [row for row, value in values if value is not None and compare(value, condition.limit)]
    if found:
        return found
    lost = {row.cell: row.reason for row in rows if row.outcome is Outcome.NOT_RECORDED}
    if lost:
        raise SeepageError(
            f"--fail-if cannot be judged: {_first(lost)} could not be recorded "
            f"({next(iter(lost.values()))}); mend the recipe there, or take the case out of it"
        )
    seen = {row.cell for row, value in values if value is not None or row.outcome is Outcome.ZERO_UPDATE}
    blind = dict.fromkeys(row.cell for row in rows if row.cell not in seen)
    if blind or not rows:
        raise SeepageError(
            f"--fail-if cannot be judged: no attack has the score {condition.score!r}"
            f"{f' in {_first(blind)}' if blind else ''}; "
            "score the run against the truth, name another score, or leave out cases that no attack applies to"
        )
    return []


def member_violations(rows: Sequence[MembershipRow], condition: Condition) -> list[MembershipRow]:
    """Membership tests that meet a `--fail-if` condition on one of their scores.

    Raises:
        SeepageError: If none meets it and none has that score: missing numbers must not let the gate pass.
    """
    values = [(row, row.value(condition.score)) for row in rows]
    found = [row for row, value in values if value is not None and _COMPARE[condition.sign](value, condition.limit)]
    if not found and all(value is None for _, value in values):
        raise SeepageError(
            f"--fail-if cannot be judged: no membership test has the score {condition.score!r}; add --membership, or "
            "[membership] to the recipe, with enough data for it"
        )
    return found


def _first(cells: Collection[str]) -> str:
    """The first few cell names, and the number of the others."""
    return f"{', '.join(list(cells)[:LISTED_CELLS])}{' and others' if len(cells) > LISTED_CELLS else ''}"
