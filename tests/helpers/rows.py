"""Rows of a result for tests, by the flat names of their numbers: those of `Row.numbers`."""

from collections.abc import Sequence
from typing import Any

from seepage.audit.gate import Condition, JudgedScore, met
from seepage.audit.row import (
    NUMBER_NAMES,
    SCORE_NAMES,
    Case,
    Cost,
    Outcome,
    Result,
    Row,
    SummaryPart,
    Thresholds,
    judge_outcome,
)
from seepage.audit.verdict_summary import verdict_summary

GUESSES = ("mean_color", "grey", "random")


def row_of(**given: Any) -> Row:
    """A row. An outcome that is not given follows from its numbers; one in words is read as its code."""
    return Row.model_validate(nested(**given))


def nested(**given: Any) -> dict[str, Any]:
    """The same as `result.json` holds it."""
    row = {
        key: given.pop(key) for key in list(given) if key in Row.model_fields and key not in ("outcome", "certified")
    }
    words, zero = given.pop("outcome", ""), given.pop("zero_update", False)
    numbers = {key: given.pop(key, None) for key in NUMBER_NAMES}
    numbers = {key: number for key, number in numbers.items() if number is not None}
    scores = {key: {"mean": number} for key, number in numbers.items() if _is_score(key)}
    for part in ("median", "low", "high"):
        if "psnr" in scores and f"psnr_{part}" in numbers:
            scores["psnr"][part] = numbers[f"psnr_{part}"]
    row.setdefault("scores", scores)
    for guess in GUESSES:
        own = {metric: numbers[f"{guess}_{metric}"] for metric in ("psnr", "ssim") if f"{guess}_{metric}" in numbers}
        row["baselines"] = {**row.get("baselines", {}), **({guess: own} if own else {})}
    row.setdefault("inner", {key[6:]: number for key, number in numbers.items() if key.startswith("error_")})
    row.setdefault("cost", {key: number for key, number in numbers.items() if key in Cost.model_fields})
    if "certified_guesses" in numbers:
        row["certified"] = {"n": numbers["certified_guesses"], "wrong": numbers.get("false_certificates")}
    known = {"examples": numbers.get("examples"), "returned": numbers.get("returned")} | row
    means = {key: one["mean"] for key, one in row["scores"].items()}
    said = judge_outcome(
        row.get("status", "ok"), means, zero_update=zero, returned=known["returned"], space=row.get("space")
    )
    code = words.replace(" ", "_") if isinstance(words, str) else words
    return {**given, **row, "outcome": code if code in {one.value for one in Outcome} else said.value}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A written row with all of its numbers by name, None where it has none, and its outcome in words."""
    known = Row.model_validate(row)
    return {**row, **dict.fromkeys(NUMBER_NAMES), **known.numbers(), "outcome": known.phrase}


def put(row: dict[str, Any], **changes: Any) -> None:
    """Change a written row in place, by the names of its numbers."""
    left = {key: value for key, value in flat(row).items() if key not in ("scores", "baselines", "inner", "cost")}
    row.update(nested(**{**left, "outcome": "", **changes}))


def _is_score(key: str) -> bool:
    further = ("certified", "tokens_identified")
    own = key in SCORE_NAMES and key not in further and not key.startswith(("psnr_", "error_"))
    return (own or key == "psnr_nearest") and not key.startswith(GUESSES)


def result_of(rows: Sequence[Row], cases: Sequence[Case] | None = None, **more: Any) -> Result:
    """A result of these rows, whose cases are bare ones unless they are given."""
    cases = [Case(name=name) for name in dict.fromkeys(row.case for row in rows)] if cases is None else cases
    more = {"verdict": "", "verdict_level": "", "thresholds": Thresholds()} | more
    return Result(rows=list(rows), cases=list(cases), **more)


def violations(rows: Sequence[Row], condition: Condition) -> list[JudgedScore]:
    """What of these rows alone meets a condition."""
    return met(result_of(rows), condition)


def parts_of(rows: Sequence[Row], cases: Sequence[Case]) -> list[SummaryPart]:
    """The parts of the verdict on them."""
    return verdict_summary(result_of(rows, cases))
