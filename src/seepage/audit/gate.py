"""The gate of `--fail-if`: a condition on a score, and the rows that meet it."""

import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from seepage.audit.row import MEMBERSHIP_SCORES, SCORE_NAMES, EpsilonRow, Outcome, Result, Row
from seepage.core.schema import Summary
from seepage.errors import SeepageError, unknown

BOUND_SCORES = {"bound_psnr": "psnr_db", "bound_named": "tpr", "bound_exact": "exact_share"}
"""Bounds in a condition, and what they bound."""
EPSILON_SCORES = ("measured_epsilon", "fitted_epsilon", "contradicted")
"""Measurements of a defense's epsilon in a condition; `contradicted` is how many claims are."""
SHARES = frozenset(
    {"recovered", "exact", "certified", "label_accuracy", "named", "false", "token_recall", "token_precision"}
)
"""Scores that are shares; certified guesses are counted per private example."""
SIDE_SCORES = (*MEMBERSHIP_SCORES, *BOUND_SCORES, *EPSILON_SCORES)
"""Scores that no attack has."""

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

    def meets(self, value: float) -> bool:
        """Whether a value meets it.

        >>> Condition("psnr", ">", 20.0).meets(20.0)
        False
        """
        return _COMPARE[self.sign](value, self.limit)


def parse_condition(text: str, metrics: Collection[str] = (), scores: Collection[str] = ()) -> Condition:
    """A condition such as `psnr>20`.

    Args:
        text: The condition.
        metrics: Names of the metrics that the run measures. `NAME` means the mean of a metric; `NAME_median`,
            `NAME_low`, `NAME_high` and `NAME_n` can be used as well.
        scores: All scores that may be named where these are others than an audit's.

    Raises:
        SeepageError: If the text is not a condition or names no score.

    >>> str(parse_condition("psnr>20"))
    'psnr > 20'
    """
    match = _CONDITION.fullmatch("contradicted>0" if text.strip() == "contradicted" else text)
    if match is None:
        raise SeepageError(f"--fail-if takes SCORE>NUMBER such as 'psnr>20', got {text!r}")
    score, sign, limit = match.groups()
    metric, _, part = score.rpartition("_")
    known = scores or (*SCORE_NAMES, *SIDE_SCORES, *metrics)
    if score not in known and not (metric in metrics and part in Summary.model_fields):
        raise unknown("score in --fail-if", score, list(dict.fromkeys(known)))
    condition = Condition(score, sign, float(limit))
    if score in SHARES and not (condition.meets(0.0) or condition.meets(1.0)):
        raise SeepageError(f"--fail-if {condition} is never met, as {score} is a share, from 0 to 1; name a share")
    return condition


def violations(rows: Sequence[Row], condition: Condition) -> list[Row]:
    """Rows that meet a `--fail-if` condition.

    Raises:
        SeepageError: If no row meets it but a cell could not be recorded, an attack was not tried for want of time, or
            a cell has no row with that score: missing numbers must not let the gate pass. A cell with a zero update has
            nothing to leak and passes.
    """
    values = [(row, judged_value(row, condition.score)) for row in rows]
    found = [row for row, value in values if value is not None and condition.meets(value)]
    if found:
        return found
    lost = {row.cell: row.reason for row in rows if row.outcome is Outcome.NOT_RECORDED}
    if lost:
        raise SeepageError(
            f"--fail-if cannot be judged: {_first(lost)} could not be recorded "
            f"({next(iter(lost.values()))}); mend the recipe there, or take the case out of it"
        )
    untried = [row.attack for row in rows if row.outcome is Outcome.NOT_TRIED]
    if untried:
        raise SeepageError(
            f"--fail-if cannot be judged: {_first(dict.fromkeys(untried))} was not tried for want of time; give more "
            "with --minutes, or --all"
        )
    seen = {row.cell for row, value in values if value is not None or row.outcome is Outcome.ZERO_UPDATE}
    blind = dict.fromkeys(row.cell for row in rows if row.cell not in seen)
    if blind or not rows:
        where = f" in {_first(blind)}" if blind and len({row.cell for row in rows}) > 1 else ""
        raise SeepageError(
            f"--fail-if cannot be judged: no attack has the score {condition.score!r}{where}; "
            f"{_remedy(rows, condition)}"
        )
    return []


def _remedy(rows: Sequence[Row], condition: Condition) -> str:
    """What to do where no row of a case has the score of a condition."""
    if not any(row.gave_result for row in rows):
        return "add attacks that apply: none of these gave a result, and the table says why"
    if condition.score == "certified" and not any(row.scored for row in rows):
        return "add an attack that can certify its guesses and applies, such as linear or gauss_newton"
    return "score the run against the truth, name another score, or leave out cases that no attack applies to"


def judged_value(row: Row, score: str) -> float | None:
    """A score of a row. Without a truth, `certified` counts all certified guesses: none is known to be wrong.

    Certified inner features are no certified examples, so they do not count.
    """
    if score == "certified" and not row.scored and row.certified is not None:
        return row.certified_examples / (row.examples or row.returned or row.certified.n or 1)
    return row.value(score)


class JudgedScore(NamedTuple):
    """A score that a condition is held against.

    Attributes:
        name: The attack, `closed form`, the test, the bound or the measurement.
        cell: The cell.
        value: The score.
    """

    name: str
    cell: str
    value: float


GIVEN_AWAY = ("recovered", "exact", "certified")
"""Scores that examples have which are given away exactly in closed form, whatever attacks were run."""


def met(result: Result, condition: Condition) -> list[JudgedScore]:
    """All of a result that meets a `--fail-if` condition.

    Cells that only show that the attacks work are not judged. What is given away in closed form counts like rows of an
    attack.

    Raises:
        SeepageError: As `violations` and `side_violations` do.
    """
    if condition.score in SIDE_SCORES:
        return side_violations(result, condition)
    given = [(cell.name, *cell.closed_form) for cell in result.judged if cell.given_away]
    found = [JudgedScore("closed form", cell, away / of) for cell, away, of in given if condition.score in GIVEN_AWAY]
    found = [one for one in found if condition.meets(one.value)]
    try:
        rows = violations(result.judged_rows, condition)
    except SeepageError:
        if found:
            return found  # one leak is enough
        raise
    judged = [(row, judged_value(row, condition.score)) for row in rows]
    return [*(JudgedScore(row.attack, row.cell, value) for row, value in judged if value is not None), *found]


def side_violations(result: Result, condition: Condition) -> list[JudgedScore]:
    """Membership tests, bounds and measured epsilons that meet a `--fail-if` condition on one of `SIDE_SCORES`.

    Raises:
        SeepageError: If none meets it, and none has that score or a case that was bounded or measured lacks it: missing
            numbers must not let the gate pass.
    """
    score = condition.score
    values, lacking, remedy = _side_values(result, score)
    found = [one for one in values if condition.meets(one.value)]
    if not found and (lacking or not values):
        where = f" in {_first(lacking)}" if lacking else ""
        raise SeepageError(f"--fail-if cannot be judged: there is no {score!r}{where}; {remedy}")
    return found


def _side_values(result: Result, score: str) -> tuple[list[JudgedScore], list[str], str]:
    """All values of a score, the cells that were asked for one and have none, and what to do about it."""
    if score in MEMBERSHIP_SCORES:
        pairs = [(row, row.value(score)) for row in result.membership]
        values = [JudgedScore(row.test, row.cell, value) for row, value in pairs if value is not None]
        asked = [*(row.cell for row in result.membership), *(c.name for c in result.cells if c.membership_skipped)]
        lacking = dict.fromkeys(cell for cell in asked if cell not in {one.cell for one in values})
        return values, list(lacking), "add --membership, or [membership] to the recipe, with enough data for it"
    if score in BOUND_SCORES:
        rows = [row for row in result.bounds if row.measure == BOUND_SCORES[score] and row.value is not None]
        values = [JudgedScore(row.words, row.cell, row.value) for row in rows if row.value is not None]
        lacking = dict.fromkeys(row.cell for row in result.bounds if row.cell not in {one.cell for one in values})
        return values, list(lacking), "add --bounds, and use a defense that can be bounded: the report says which"
    values = [
        JudgedScore("the defense", row.cell, number)
        for row in result.epsilons
        if row.measured is not None and (number := _epsilon(row, score)) is not None
    ]
    lacking = dict.fromkeys(row.cell for row in result.epsilons if row.cell not in {one.cell for one in values})
    return values, list(lacking), "add --prove, with a defense that can be called on canaries"


def _epsilon(row: EpsilonRow, score: str) -> float | None:
    found = {"measured_epsilon": row.measured, "fitted_epsilon": row.fitted, "contradicted": len(row.contradicted)}
    return found[score]


def _first(cells: Collection[str]) -> str:
    """The first few cell names, and the number of the others."""
    return f"{', '.join(list(cells)[:LISTED_CELLS])}{' and others' if len(cells) > LISTED_CELLS else ''}"
