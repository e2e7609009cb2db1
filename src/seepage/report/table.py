"""Format a result row as the texts of a table, for the terminal, the report and the frontier."""

from collections.abc import Iterable, Sequence

from seepage.audit.row import Outcome, Row
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


HEADINGS = {"rouge_1": "ROUGE-1", "rouge_2": "ROUGE-2", "lpips": "LPIPS"}
"""What people call a metric, where that is not its name here."""

_COMMON = {"recovered", "exact", "gain_db", "label_accuracy", "psnr_nearest", "target_error",
           "token_recall", "token_precision"}  # fmt: skip
"""Scores of a row that have no column of their own among the further metrics."""


def matrix_entry(row: Row | None) -> tuple[str, str, int, str | None]:
    """One attack on one case in the overview matrix.

    Args:
        row: Its row; None: the attack was not run there.

    Returns:
        A count, words, a shade from 0 (nothing) to 4 (all), and why there is no result.
    """
    if row is None:
        return NONE, "not run", 0, None
    share, recall = row.mean("recovered"), row.mean("token_recall")
    if share is None and row.certified_examples:
        return f"{row.certified_examples}", "certified", 4, None
    if row.identified_tokens:
        return f"{row.identified_tokens:,}", "tokens identified", 4 if recall is None else 1 + int(recall * 3), None
    if share is None:
        return NONE, _outcome(row), 0, row.reason
    return count_of(share, row.examples), row.phrase, min(4, 1 + int(share * 3)) if share else 0, None


def is_muted(row: Row) -> bool:
    """Whether a table shows a row in a muted color: nothing was recovered, or the result was not scored."""
    return not (row.scored or row.identified_tokens) or row.outcome is Outcome.NOTHING_RECOVERED
