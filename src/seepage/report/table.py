"""Format a result's rows and cases as the texts of a table, for the terminal, the report and the frontier."""

from collections.abc import Iterable, Sequence
from typing import Literal, Self

from seepage.audit.findings import leaked, worst
from seepage.audit.row import Case, Outcome, Result, Row
from seepage.base.schema import Share
from seepage.base.units import in_words
from seepage.base.words import plural
from seepage.measure.metrics import default_metrics
from seepage.report.formatting import NONE, count_of, duration, number, percent, signed

STATUSES = {
    "ok": "finished",
    "exhausted": "out of steps",
    "diverged": "diverged",
    "interrupted": "stopped at the deadline, still improving",
    "error": "failed",
    "inapplicable": "does not apply",
    "not_needed": "not needed",
    "not_tried": "not tried",
}


def plain_text(text: str) -> str:
    """A text of this module with only ASCII characters, for terminals that cannot show others.

    >>> plain_text(NONE), plain_text(signed(-2.0))
    ('-', '-2.0')
    """
    return text.replace(NONE, "-").replace("\N{MINUS SIGN}", "-")


class RowTexts:
    """One row as texts, with a dash where a value does not apply.

    Args:
        row: The row.
        further: Metrics beside those that every table has.
        mean_digits: Decimals of the mean PSNR and its interval.

    Attributes:
        recovered: Number of recovered examples, out of all.
        exact: Number of exactly recovered examples, out of all.
        median: Median PSNR in dB.
        mean: Mean PSNR in dB.
        interval: Lower and upper end of its 95 % interval; None where there is none.
        ssim: Mean SSIM.
        gain: Mean gain over the mean color, in dB.
        labels: Share of correctly inferred labels, or the error of values.
        time: Wall time, in a unit that suits its size.
        seconds: Wall time in seconds.
        outcome: The outcome in words, with what the score fitted.
        status: How the attack ended.
        known: Side information.
        more: The mean of each further metric.
    """

    def __init__(self, row: Row, further: Sequence[str] = (), *, mean_digits: int = 1) -> None:
        psnr = row.scores.get("psnr")
        self.row = row
        self.recovered = count_of(row.mean("recovered"), row.examples)
        self.exact = count_of(row.mean("exact"), row.examples)
        self.median = number(row.median("psnr"))
        self.mean = number(row.mean("psnr"), mean_digits)
        self.interval = None
        if psnr is not None and psnr.low is not None and psnr.high is not None:
            self.interval = number(psnr.low, mean_digits), number(psnr.high, mean_digits)
        self.ssim = number(row.mean("ssim"), 2)
        self.gain = signed(row.mean("gain_db"))
        self.labels = _labels(row)
        self.time = duration(row.cost.seconds)
        self.seconds = number(row.cost.seconds)
        self.outcome = _outcome(row)
        self.status = "at rest" if row.status == "ok" and row.cost.steps else STATUSES[row.status]
        self.known = ", ".join(row.side_information)
        self.more = [number(row.mean(name), 3) for name in further]


def _labels(row: Row) -> str:
    """Labels guessed right, of maps beside one class everywhere; of values the error beside the mean target's."""
    error, floor = row.mean("target_error"), row.baselines.get("mean_target", {}).get("target_error")
    if error is not None:
        return f"off by {in_words(error)}" + ("" if floor is None else f" (mean target: {in_words(floor)})")
    share, commonest = percent(row.mean("label_accuracy")), row.baselines.get("commonest", {}).get("label")
    return share if commonest is None or share == NONE else f"{share} of pixels (one class: {percent(commonest)})"


def _outcome(row: Row) -> str:
    if not row.scored and (row.certified_examples or row.misfit is not None):
        sure = f"{row.certified_examples} certified" if row.certified_examples else ""
        return ", ".join(filter(None, ("not scored", sure, row.misfit_words)))
    if row.certified_features:
        return f"{row.phrase}, {row.certified_features} of them certified"
    if row.identified_tokens:
        return row.certificate
    wrong = row.certified.wrong if row.certified is not None else None
    false = f", {plural(wrong, 'false certificate')}" if wrong else ""
    return f"{row.phrase}{f' ({row.fitted} fitted)' if row.fitted else ''}{false}"


def further_metrics(rows: Iterable[Row]) -> list[str]:
    """Metrics of these rows beside the default ones; each gets its own column."""
    names = dict.fromkeys(name for row in rows for name in row.scores)
    common = {metric.name for metric in default_metrics()} | _COMMON
    return [name for name in names if name not in common]


HEADINGS = {"rouge_1": "ROUGE-1", "rouge_2": "ROUGE-2", "lpips": "LPIPS", "exact_rows": "whole rows",
            "category_recall": "words", "number_recall": "numbers"}  # fmt: skip
"""What people call a metric, where that is not its name here."""

_COMMON = {"recovered", "exact", "gain_db", "label_accuracy", "psnr_nearest", "target_error",
           "token_recall", "token_precision"}  # fmt: skip
"""Scores of a row that have no column of their own among the further metrics."""


def is_muted(row: Row) -> bool:
    """Whether a table shows a row in a muted color: nothing was recovered, or the result was not scored."""
    return not (row.scored or row.identified_tokens) or row.outcome is Outcome.NOTHING_RECOVERED


# --- a case ------------------------------------------------------------------------------------------------------

CLOSED_FORM = "closed form"
"""What stands in the place of an attack where an update gives examples away exactly by itself."""


class CaseShare(Share):
    """A share of private examples.

    Attributes:
        closed_form: It is revealed in closed form, by the first update alone; else an attack reconstructed it.
    """

    closed_form: bool = False

    @classmethod
    def count(cls, hits: int, of: int, *, closed_form: bool = False) -> Self:
        """The share with its interval."""
        return super().count(hits, of).model_copy(update={"closed_form": closed_form})

    @property
    def words(self) -> str:
        """For people.

        >>> CaseShare.count(0, 8).words, CaseShare.count(4, 4, closed_form=True).words
        ('0 of 8 [0 %, 37 %]', '4 of 4 [40 %, 100 %] of the first update, in closed form')
        """
        whose = " of the first update, in closed form" if self.closed_form else ""
        return f"{self.hits:,} of {self.of:,} {self.range}{whose}"


Counted = Literal["recovered", "exact"]


def share_of(result: Result, case: Case, measure: Counted = "recovered") -> CaseShare | None:
    """The largest share of a case's examples that an attack reconstructed, or that is revealed in closed form.

    None where there was no truth to compare guesses with.
    """
    rows = [row for row in result.rows_of(case) if row.scored and row.examples]
    counts = [(row.count(measure), row.examples, False) for row in rows]
    away, of = case.closed_form
    of = of if case.counted else max([of, *(row.examples or 0 for row in rows)])
    counts += [(away, of, True)] if case.exposed_examples and (rows or case.baselines) else []
    whole = [CaseShare.count(hits, of, closed_form=closed) for hits, of, closed in counts if hits is not None and of]
    return max(whole, key=lambda one: one.hits / one.of, default=None)


def case_words(result: Result, case: Case, measure: Counted) -> str:
    """What was reconstructed of a case, for people: without a truth what proves itself."""
    share, rows = share_of(result, case, measure), result.rows_of(case)
    if share is not None and case.inconclusive is not None:
        return f"inconclusive ({share.words})"
    proving = [row for row in rows if row.certificate and (share is None or row.identified_tokens)]
    proof = worst(proving).certificate if proving and measure == "recovered" else ""
    if share is None and case.exposed_examples and not any(row.certified_examples for row in proving):
        given = f"{plural(case.exposed_examples, 'example')} revealed exactly in closed form"
        proof = given if measure == "recovered" else ""
    return "; ".join(filter(None, ("not scored" if share is None else share.words, proof)))


def _by(rows: Sequence[Row], best: Row | None, measure: Counted, share: CaseShare | None) -> list[str]:
    """Who has a share that is not nothing: the best attack, where it has as much, else the first that has."""
    if share is None or not share.hits:
        return [] if best is None else [best.attack]
    if share.closed_form:
        return [CLOSED_FORM]
    ordered = [*([] if best is None else [best]), *rows]
    return [row.attack for row in ordered if row.scored and row.examples and row.count(measure) == share.hits][:1]


class CaseTexts:
    """One case as texts, with the attack that recovered most of it.

    Args:
        result: The result.
        case: One of its cases.

    Attributes:
        title: The title, without what stands in brackets.
        attack: The best attack; `closed form` where the update gives more away by itself; both that recovered most and
            that of most exact ones, where these are two; a dash where none had a result.
        recovered: What was recovered, with its interval.
        exact: Number of exact ones.
        members: Members that the best membership test identified.
        seconds: Wall time of that attack.
        leaks: Whether anything of the examples, or who they are of, was found.
        known: What that attack was told.
    """

    def __init__(self, result: Result, case: Case) -> None:
        rows, tests = result.rows_of(case), [row for row in result.membership if row.case == case.name]
        share, exact, best = share_of(result, case), share_of(result, case, "exact"), worst(rows) if rows else None
        if not (best is not None and best.gave_result):
            best = None
        closed = share.closed_form if share else bool(case.exposed_examples) and not any(map(leaked, rows))
        self.case, self.title = case, case.brief
        by = [best.attack] if best is not None and not closed else []
        by = by and [*_by(rows, best, "recovered", share), *_by(rows, best, "exact", exact)]
        self.attack = CLOSED_FORM if closed else ", ".join(dict.fromkeys(by)) or (NONE if best is None else best.attack)
        unknown = "not recorded" if case.skipped else ", ".join(dict.fromkeys(row.phrase for row in rows))
        if share is not None or closed:
            self.recovered = case_words(result, case, "recovered")
        else:
            self.recovered = _outcome(best) if best is not None else unknown or "no attack"
        wrong = 0 if best is None or best.certified is None else best.certified.wrong or 0
        self.recovered += f"; {plural(wrong, 'false certificate')}" if wrong else ""
        self.exact = NONE if exact is None else f"{exact.hits:,}"
        tested = [row for row in tests if row.members_identified is not None]
        named = worst(tested).members_identified if tested else None
        self.members = NONE if named is None else f"{named.hits} of {named.of}"
        self.seconds = NONE if best is None or closed else number(best.cost.seconds)
        self.known = "" if best is None or closed else ", ".join(best.side_information)
        self.leaks = bool(case.exposed_examples) or any(map(leaked, rows)) or any(row.tells for row in tests)
