"""How an attack ended, as a code for comparisons and in words for people."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

Status = Literal[
    "ok", "diverged", "interrupted", "exhausted", "inapplicable", "not_needed", "not_tried", "error"
]  # fmt: skip
"""How an attack ended: the status of its reconstruction (`interrupted`: stopped at the deadline, still improving),
`inapplicable`, `not_needed` where another attack had certified every example, `not_tried` where the deadline came
before there was anything to show, or `error` for an exception in its code."""

PASSED_OVER: tuple[Status, ...] = ("not_needed", "not_tried")
"""Statuses of attacks that were asked for and came to no guess for want of need or time."""


class Outcome(StrEnum):
    """The result of an attack as a code for comparisons; `Row.phrase` is the text for people."""

    EXACT = "exact"
    PARTLY_EXACT = "partly_exact"
    RECOVERED = "recovered"
    PARTLY_RECOVERED = "partly_recovered"
    PARTIAL = "partial"
    NOTHING_RECOVERED = "nothing_recovered"
    ZERO_UPDATE = "zero_update"
    FEATURES_ONLY = "features_only"
    MIXTURE_ONLY = "mixture_only"
    TOKENS_IDENTIFIED = "tokens_identified"
    RETURNED_NOTHING = "returned_nothing"
    NOT_SCORED = "not_scored"
    NOT_RECORDED = "not_recorded"
    INAPPLICABLE = "does_not_apply"
    NOT_NEEDED = "not_needed"
    NOT_TRIED = "not_tried"
    FAILED = "failed"

    @property
    def phrase(self) -> str:
        """The outcome in words, for rows without a count."""
        return "tokens identified" if self is Outcome.TOKENS_IDENTIFIED else self.value.replace("_", " ")


_WITHOUT_SCORE = {"feature": Outcome.FEATURES_ONLY, "token": Outcome.TOKENS_IDENTIFIED}
"""Outcome of a reconstruction whose guesses are no examples, by its space."""

TRACE_OF_TEXT = 0.5
"""ROUGE-1 from which text that does not count as recovered is partly recovered: half of its tokens."""


def judge_outcome(
    status: str,
    means: Mapping[str, float],
    *,
    zero_update: bool = False,
    returned: int | None = None,
    space: str | None = None,
    certified: int = 0,
) -> Outcome:
    """The outcome code of an attack's result.

    Args:
        status: How the attack ended.
        means: Means of `psnr` (of text: `rouge_1`), `exact`, `recovered` and `gain_db`; empty without a score.
        zero_update: Whether the attacked update is zero everywhere.
        returned: Number of guesses that the attack returned.
        space: Whether the guesses are examples (`input`), inputs of an inner layer (`feature`) or tokens that the
            examples hold (`token`).
        certified: How many of them the attack certifies. Inner features that are none of them may be any mixture.

    >>> judge_outcome("inapplicable", {}, zero_update=True).value
    'zero_update'
    >>> judge_outcome("ok", {"psnr": 70.0, "recovered": 1.0, "exact": 0.5}).value
    'partly_exact'
    """
    if status == "error":
        return Outcome.FAILED
    if status in PASSED_OVER:
        return Outcome(status)
    if status == "inapplicable":
        return Outcome.ZERO_UPDATE if zero_update else Outcome.INAPPLICABLE
    if "psnr" not in means and "rouge_1" not in means:
        if returned == 0:
            return Outcome.RETURNED_NOTHING
        if space == "feature" and not certified:
            return Outcome.MIXTURE_ONLY
        return _WITHOUT_SCORE.get(space or "", Outcome.NOT_SCORED)
    exact, recovered = means.get("exact"), means.get("recovered")
    if exact:
        return Outcome.EXACT if exact == recovered == 1 else Outcome.PARTLY_EXACT
    if recovered:
        return Outcome.RECOVERED if recovered == 1 else Outcome.PARTLY_RECOVERED
    return (
        Outcome.PARTIAL
        if means.get("gain_db", 0.0) > 0 or means.get("rouge_1", 0.0) > TRACE_OF_TEXT
        else Outcome.NOTHING_RECOVERED
    )
