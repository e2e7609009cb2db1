"""The gate of `--fail-if`: a condition on a score, and the findings that meet it."""

import math
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from seepage.audit.findings import BOUND_SCORES, EPSILON_SCORES, AuditFinding, Kind, findings
from seepage.audit.row import MEMBERSHIP_SCORES, SCORE_NAMES, Outcome, Result, Row
from seepage.base.schema import Summary
from seepage.errors import SeepageError, unknown

SHARES = frozenset(
    {
        "recovered",
        "exact",
        "certified",
        "label_accuracy",
        "members_identified",
        "others_identified",
        "token_recall",
        "token_precision",
        "exact_rows",
        "category_recall",
        "number_recall",
    }
)
"""Scores that are shares; certified guesses are counted per private example."""
FURTHER_SCORES = (*MEMBERSHIP_SCORES, *BOUND_SCORES, *EPSILON_SCORES)
"""Scores that no attack has."""

LISTED_CASES = 3
"""Number of cases that a message names; the rest are counted."""

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
        """Whether a value meets the condition.

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
    if match is None or math.isinf(float(match[3])):
        raise SeepageError(f"--fail-if takes SCORE>NUMBER such as 'psnr>20', got {text!r}")
    score, sign, limit = match.groups()
    metric, _, part = score.rpartition("_")
    known = scores or (*SCORE_NAMES, *FURTHER_SCORES, *metrics)
    if score not in known and not (metric in metrics and part in Summary.model_fields):
        raise unknown("score in --fail-if", score, list(dict.fromkeys(known)))
    condition = Condition(score, sign, float(limit))
    if score in SHARES and not (condition.meets(0.0) or condition.meets(1.0)):
        raise SeepageError(f"--fail-if {condition} is never met, as {score} is a share, from 0 to 1; name a share")
    return condition


class JudgedScore(NamedTuple):
    """A score that a condition is held against.

    Attributes:
        name: The attack, `closed form`, the test, the bound or the measurement.
        case: The case.
        value: The score.
    """

    name: str
    case: str
    value: float


REMEDIES: dict[Kind, tuple[Collection[str], str]] = {
    "membership": (MEMBERSHIP_SCORES, "add --membership, or [membership] to the recipe, with enough data for it"),
    "bound": (BOUND_SCORES, "add --bounds, and use a defense that can be bounded: the report says which"),
    "epsilon": (EPSILON_SCORES, "add --prove, with a defense that can be called on canaries"),
}
"""Scores that no attack has: what has them, and what to do where a case lacks them."""


def met(result: Result, condition: Condition) -> list[JudgedScore]:
    """All of a result that meets a `--fail-if` condition, what is revealed in closed form last.

    Cases that only show that the attacks work are not judged. What is revealed in closed form counts like rows of an
    attack.

    Raises:
        SeepageError: If nothing meets it, and a case that was asked for such a score has none: missing numbers must not
            let the gate pass. A case with a zero update has nothing to leak and passes.
    """
    own = next(((kind, remedy) for kind, (scores, remedy) in REMEDIES.items() if condition.score in scores), None)
    kinds = ("attack", "closed_form") if own is None else own[:1]
    listed = [one for one in findings(result) if one.kind in kinds]
    having = [(one, one.numbers[condition.score]) for one in listed if condition.score in one.numbers]
    hits = [JudgedScore(_name(one), one.case, value) for one, value in having if condition.meets(value)]
    if hits:
        return sorted(hits, key=lambda one: one.name == "closed form")
    seen = {one.case for one, _ in having if one.kind != "closed_form"}
    if own is None:
        _refuse_lost(result.judged_rows, condition, seen)
        return []
    kind, remedy = own
    asked = [one.case for one in listed]
    asked += [case.name for case in result.cases if kind == "membership" and case.membership_skipped]
    lacking = dict.fromkeys(case for case in asked if case not in seen)
    if lacking or not having:
        where = f" in {_first(lacking)}" if lacking else ""
        raise SeepageError(f"--fail-if cannot be judged: there is no {condition.score!r}{where}; {remedy}")
    return []


def _name(one: AuditFinding) -> str:
    return {"closed_form": "closed form", "bound": one.words, "epsilon": "the defense"}.get(one.kind, one.by)


def _refuse_lost(rows: Sequence[Row], condition: Condition, seen: set[str]) -> None:
    """Raise where a case could not be recorded, an attack was not tried for want of time, or a score is lacking.

    Args:
        rows: Rows of the judged cases, none of which meets the condition.
        condition: The condition.
        seen: Cases with a row that has the score.
    """
    lost = {row.case: row.reason for row in rows if row.outcome is Outcome.NOT_RECORDED}
    if lost:
        raise SeepageError(
            f"--fail-if cannot be judged: {_first(lost)} could not be recorded "
            f"({next(iter(lost.values()))}); mend the recipe there, or take the case out of it"
        )
    untried = [row.attack for row in rows if row.outcome is Outcome.NOT_TRIED]
    if untried:
        raise SeepageError(
            f"--fail-if cannot be judged: the time was over before {_first(dict.fromkeys(untried))} had a guess; the "
            "same command goes on from there, and --minutes gives it more"
        )
    seen = seen | {row.case for row in rows if row.outcome is Outcome.ZERO_UPDATE}
    blind = dict.fromkeys(row.case for row in rows if row.case not in seen)
    if blind or not rows:
        where = f" in {_first(blind)}" if blind and len({row.case for row in rows}) > 1 else ""
        raise SeepageError(
            f"--fail-if cannot be judged: no attack has the score {condition.score!r}{where}; "
            f"{_remedy(rows, condition)}"
        )


def _remedy(rows: Sequence[Row], condition: Condition) -> str:
    """The remedy where no row of a case has the score of a condition."""
    if not any(row.gave_result for row in rows):
        return "add attacks that apply: none of these gave a result, and the table says why"
    if condition.score == "certified" and any(row.outcome is Outcome.NOT_SCORED for row in rows):
        return (
            "no attack that ran can certify its guesses, and --details says why others do not apply; gate a "
            'simulated client of this model: seepage audit --model … --data … --fail-if "recovered>0"'
        )
    return "score the run against the truth, name another score, or leave out cases that no attack applies to"


def _first(cases: Collection[str]) -> str:
    """The first few case names, and the number of the others."""
    return f"{', '.join(list(cases)[:LISTED_CASES])}{' and others' if len(cases) > LISTED_CASES else ''}"
