"""The types of an audit's result: one `Row` per attack and case, and `Result`, the content of `result.json`.

The table in the terminal, the report, the gate, the frontier and the published tables all read `Result`. This module
does not import PyTorch, so that results can be read without it.

A score is a `Summary` under its metric's name, so that a new metric needs no new key. `Row.numbers` names every number
of a row (`psnr_median`, `error_v`, ...), for the gate, tables and records.

The types of its parts are in `outcome`, `result_rows` and `case` beside this, and can all be imported from here.
"""

import json
import math
from collections.abc import Iterable
from html import escape
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from seepage.audit.case import Case, DrawnRounds, Thresholds
from seepage.audit.outcome import PASSED_OVER, TRACE_OF_TEXT, Outcome, Status, judge_outcome
from seepage.audit.result_rows import (
    MEMBERSHIP_SCORES,
    BoundRow,
    EpsilonRow,
    MembershipRow,
    SummaryName,
    SummaryPart,
)
from seepage.base.schema import Finding, JsonRecord, Summary
from seepage.base.words import plural

__all__ = [
    "MEMBERSHIP_SCORES", "NUMBER_NAMES", "PASSED_OVER", "PROTOCOL", "SCORE_NAMES", "TRACE_OF_TEXT", "BoundRow", "Case",
    "Certified", "Cost", "DrawnRounds", "EpsilonRow", "MembershipRow", "Outcome", "Result",
    "Row", "SummaryName", "SummaryPart", "Status", "Thresholds", "json_schema",
    "judge_outcome",
]  # fmt: skip

PROTOCOL = ("model", "client rule", "batch size", "update")
"""Facts that every attacker knows, because an honest-but-curious server observes them."""


class Certified(JsonRecord):
    """Number of guesses that an attack certifies as exact without knowing the truth; of inner features, of those.

    Attributes:
        n: Number of certified guesses, with or without a truth.
        wrong: Number of certified guesses that match no private example; None without a truth.
    """

    n: int
    wrong: int | None = None


UNTRUE = "the true examples do not give the update that was sent: something stated or inferred of the client is not so"
"""What `contradicted-by-truth` says, here and in a headline."""
FITS = 0.01
"""Relative difference of updates up to which guesses count as reproducing the one that was sent."""


def share_words(share: float) -> str:
    """A share of any size in percent.

    >>> share_words(0.213), share_words(3e-7)
    ('21 %', '0.00003 %')
    """
    digits = max(0, 1 - math.floor(math.log10(100 * share))) if share > 0 else 0
    text = f"{float(f'{100 * share:.2g}'):.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


class Cost(JsonRecord):
    """The cost of an attack.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Processor time.
        rounds: Number of rounds that it read.
        steps: Number of steps of its longest search.
        evaluations: Number of updates of the client's rule that it computed.
    """

    seconds: float | None = None
    cpu_seconds: float | None = None
    rounds: int | None = None
    steps: int | None = None
    evaluations: int | None = None


class Row(JsonRecord):
    """The result of one attack on one case. A field is None where it does not apply.

    Attributes:
        case: The case's name.
        attack: The attack's name in this run.
        options: The attack's `repr`: every option with its value.
        status: The worst status of the batches with a result; if no batch has one, the worst of all.
        outcome: The code of the result.
        reason: Why some or all batches have no result.
        refusal: The name of what is in the way of the first batch that the attack does not apply to.
        known: What the attacker knows: the protocol and the side information.
        side_information: Side information: what the attacker knows beyond the protocol.
        examples: Number of private examples.
        returned: Number of guesses that the attack returned.
        space: Whether the guesses are examples (`input`), inputs of an inner layer (`feature`), or tokens that the
            examples hold (`token`), each once.
        alignment: How guesses were matched with examples, and what was fitted with the truth for it.
        scores: Metric to its summary; also `recovered` and `exact` (shares), `gain_db` (PSNR over that of the example's
            mean color), `psnr_nearest` (each example takes its most similar guess) `label_accuracy`; of values
            `target_error`. Of a set of tokens `token_recall`, the share of the examples' distinct tokens that are
            named, and `token_precision`, the share of the named ones that the examples hold, with the interval of
            Clopper and Pearson. Of a table with words `exact_rows`, `category_recall` and `number_recall`.
        baselines: Name of a guess without an attack, to metric, to its mean.
        certified: Guesses that the attack certifies as exact; None where it cannot certify any. With the space
            `feature` or `token` they are no examples.
        inner: Relative error of each intermediate quantity that the attack estimates.
        objective: Mean value of the objective that the attack reached.
        objective_at_truth: Mean value of the objective at the private examples.
        misfit: Without a truth: how much the update that the guesses give differs from the sent one, relatively and up
            to one factor, where that could be computed. 0 is just that update, or a multiple.
        cost: Time and number of evaluations.
        notes: Notes of the attack about its own run.
    """

    case: str
    attack: str
    options: str = ""
    status: Status = "ok"
    outcome: Outcome = Field(strict=False)
    reason: str | None = None
    refusal: str | None = None
    known: list[str] = []
    side_information: list[str] = []
    examples: int | None = None
    returned: int | None = None
    space: Literal["input", "feature", "token"] | None = None
    alignment: str | None = None
    scores: dict[str, Summary] = {}
    baselines: dict[str, dict[str, float]] = {}
    certified: Certified | None = None
    inner: dict[str, float] = {}
    objective: float | None = None
    objective_at_truth: float | None = None
    misfit: float | None = None
    cost: Cost = Cost()
    notes: list[str] = []

    @model_validator(mode="after")
    def _shares(self) -> "Row":
        """Shares of the examples are from 0 to 1."""
        for name in ("recovered", "exact"):
            if name in self.scores and not 0 <= self.scores[name].mean <= 1:
                raise ValueError(f"{name} is a share of the examples, from 0 to 1, and not {self.scores[name].mean:g}")
        return self

    def mean(self, metric: str) -> float | None:
        """Mean of a metric over the examples."""
        return self.scores[metric].mean if metric in self.scores else None

    def median(self, metric: str) -> float | None:
        """Median of a metric over the examples."""
        return self.scores[metric].median if metric in self.scores else None

    def count(self, share: str) -> int | None:
        """Number of examples behind the share `recovered` or `exact`."""
        found = self.mean(share)
        return None if found is None or self.examples is None else round(found * self.examples)

    @property
    def scored(self) -> bool:
        """Whether the attack was scored against a truth."""
        return "psnr" in self.scores or self.of_text

    @property
    def of_text(self) -> bool:
        """Whether the examples are texts."""
        return "rouge_1" in self.scores

    @property
    def gave_result(self) -> bool:
        """Whether the attack applied and returned a result, even one without guesses."""
        return self.status not in ("inapplicable", *PASSED_OVER, "error")

    @property
    def certified_examples(self) -> int:
        """Guesses of examples that the attack certifies. What it certifies of features or tokens is no example."""
        return self.certified.n if self.certified is not None and self.space not in ("feature", "token") else 0

    @property
    def certified_features(self) -> int:
        """Inner features that the attack certifies: what a layer was given, from which no attack made an example."""
        return self.certified.n if self.certified is not None and self.space == "feature" else 0

    @property
    def identified_tokens(self) -> int:
        """Tokens that the attack names as ones that the examples hold, where it names any and no examples."""
        return self.returned or 0 if self.space == "token" else 0

    @property
    def certified_tokens(self) -> int:
        """Those of them that it certifies."""
        return self.certified.n if self.certified is not None and self.space == "token" else 0

    @property
    def certificate(self) -> str:
        """The attack's certificate in words; empty where it certifies nothing.

        >>> Row(case="a", attack="x", outcome="features_only", space="feature", certified={"n": 1}).certificate
        '1 inner feature certified, which is no example'
        """
        if n := self.certified_features:
            words = "feature certified, which is no example" if n == 1 else "features certified, which are no examples"
            return f"{n} inner {words}"
        if self.identified_tokens and (precision := self.mean("token_precision")) is not None:
            wrong = self.identified_tokens - round(precision * self.identified_tokens)
            return f"{self.phrase}, {f'{wrong:,}' if wrong else 'none'} wrong"
        if self.identified_tokens:
            both = self.certified_tokens == self.identified_tokens == 1
            of_them = "certified" if both else f"{self.certified_tokens:,} of them certified"
            return f"{plural(self.identified_tokens, 'token')} identified, {of_them}"
        return f"{plural(self.certified_examples, 'guess')} certified" if self.certified_examples else ""

    @property
    def fits(self) -> bool:
        """Whether the guesses give the update that was sent, as far as that could be computed."""
        return self.misfit is not None and self.misfit <= FITS

    @property
    def misfit_words(self) -> str:
        """Whether the guesses give the update that was sent, in a few words; empty where that is not known.

        >>> Row(case="a", attack="x", outcome="not_scored", misfit=0.213).misfit_words
        'update off by 21 %'
        >>> Row(case="a", attack="x", outcome="not_scored", misfit=1e-6).misfit_words
        'update reproduced to 0.0001 %'
        """
        if self.misfit is None:
            return ""
        return f"update {'reproduced to' if self.fits else 'off by'} {share_words(self.misfit)}"

    @property
    def leaks(self) -> bool:
        """Whether any example was recovered, recognizably or exactly."""
        return bool(self.mean("recovered") or self.mean("exact"))

    @property
    def fitted(self) -> str:
        """Quantities that the score fitted with the truth, such as `sign and scale`; empty for none."""
        return (self.alignment or "").partition("+")[2].replace("+", " and ")

    @property
    def phrase(self) -> str:
        """The outcome in words. If some examples are exact, their count is given, as more may be recovered.

        >>> Row(case="a", attack="x", outcome="partly_exact", examples=4, scores={"exact": {"mean": 0.5}}).phrase
        '2/4 exact'
        """
        exact, named = self.count("exact"), self.scores.get("token_recall")
        if self.outcome is Outcome.TOKENS_IDENTIFIED and named is not None and named.n:
            return f"{round(named.mean * named.n):,} of {named.n:,} tokens identified"
        if self.outcome is Outcome.PARTLY_EXACT and exact is not None:
            return f"{exact}/{self.examples} exact"
        return self.outcome.phrase

    def numbers(self) -> dict[str, float]:
        """Every number of the row, by the name that it has in the gate, in tables and in records.

        `METRIC` is a metric's mean beside `METRIC_median`, `METRIC_low`, `METRIC_high` and `METRIC_n`; `GUESS_METRIC`
        what a guess without an attack scores; `error_QUANTITY` an inner error; `certified_guesses` the number of
        guesses with a certificate, `false_certificates` those of them that are wrong, and `certified` their
        share of the examples.

        >>> row = Row(case="a", attack="x", outcome="exact", scores={"psnr": {"mean": 50.0, "n": 2}})
        >>> row.numbers()
        {'psnr': 50.0, 'psnr_n': 2}
        """
        found: dict[str, float | None] = {}
        for metric, summary in self.scores.items():
            found[metric] = summary.mean
            found |= {f"{metric}_{part}": getattr(summary, part) for part in ("median", "low", "high", "n")}
        for guess, means in self.baselines.items():
            found |= {f"{guess}_{metric}": mean for metric, mean in means.items()}
        found |= {f"error_{quantity}": error for quantity, error in self.inner.items()}
        if self.certified is not None:
            found |= {"certified_guesses": self.certified.n, "false_certificates": self.certified.wrong}
        found |= {
            "certified": self._certified_share,
            "tokens_identified": self.identified_tokens if self.of_tokens else None,
        }
        found |= {name: getattr(self, name) for name in _PLAIN} | dict(self.cost)
        return {name: number for name, number in found.items() if number is not None}

    def value(self, name: str) -> float | None:
        """One of `numbers`; None where the row does not have it."""
        return self.numbers().get(name)

    @property
    def of_tokens(self) -> bool:
        """Whether its guesses are tokens and no examples."""
        return self.space == "token"

    @property
    def _certified_share(self) -> float | None:
        """Certified guesses per private example, false ones counted in; None where there is no truth."""
        if self.certified is None or self.certified.wrong is None or not self.examples or self.of_tokens:
            return None
        return round(self.certified.n / self.examples, 4)


SCORE_NAMES = (
    "recovered", "exact", "psnr", "psnr_median", "psnr_low", "psnr_high", "ssim", "lpips", "correlation", "cosine",
    "gain_db", "label_accuracy", "psnr_nearest",
    *(f"{guess}_{metric}" for metric in ("psnr", "ssim") for guess in ("mean_color", "grey", "random")),
    "error_v", "error_h", "certified", "tokens_identified", "token_recall", "token_precision",
    "exact_rows", "category_recall", "number_recall",
)  # fmt: skip
"""Names of scores that `--fail-if` accepts in every run."""

_PLAIN = ("examples", "returned", "objective", "objective_at_truth", "misfit")

NUMBER_NAMES = (*SCORE_NAMES, "certified_guesses", "false_certificates", *Cost.model_fields, *_PLAIN)
"""Names of `Row.numbers` that a row may have in every run."""


NO_COUNT = "-"


def _shares(row: Row) -> tuple[float, ...]:
    return row.mean("recovered") or 0.0, row.mean("exact") or 0.0, row.certified_examples, row.gave_result


def _html(rows: Iterable[tuple[str, ...]]) -> str:
    lines = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


class Result(JsonRecord):
    """The content of `result.json`.

    Attributes:
        schema_version: 1. Keys may be added to that version; none is removed or changes its meaning.
        run: The path of the run folder as it was given, or its name where that is absolute.
        verdict: Summary of the run in plain words.
        verdict_level: `exact`, `recognizable`, `partial` or `nothing`; `certified`, where a closed form gives an
            example away exactly or, without a truth, an attack certifies one; `inconclusive`, where nothing was
            reconstructed and that says nothing; or `unscored`.
        rows: One per attack and case, in the recipe's order of attacks.
        cases: One per client setting.
        thresholds: The thresholds for "recovered" and "exact".
        membership: One per membership test and case; empty where the recipe asks for none.
        summary: The four parts of the verdict, each with its interval.
        bounds: Upper bounds for every attacker, one per case and bound.
        epsilons: The measured privacy of each case's defense.
        warnings: The diagnostics by which a number of this run may mislead; `flags.json` has the notes as well.
    """

    schema_version: int = Field(default=1, alias="schema")
    run: str = ""
    verdict: str
    verdict_level: str
    rows: list[Row]
    cases: list[Case]
    thresholds: Thresholds
    membership: list[MembershipRow] = []
    summary: list[SummaryPart] = []
    bounds: list[BoundRow] = []
    epsilons: list[EpsilonRow] = []
    warnings: list[Finding] = []

    @model_validator(mode="after")
    def _of_known_cases(self) -> "Result":
        """Whatever speaks of a case speaks of one that is there."""
        known = {case.name for case in self.cases}
        parts = (self.rows, self.membership, self.bounds, self.epsilons)
        odd = next((row.case for part in parts for row in part if row.case not in known), None)
        if odd is not None:
            raise PydanticCustomError("damaged", "{words}", {"words": f"a row is of the unknown case {odd!r:.40}"})
        return self

    def __repr__(self) -> str:
        return f"<Result: {self.verdict}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, its parts, and each case with the attack that recovered most."""
        found = [(case, max(self.rows_of(case), key=_shares, default=None)) for case in self.cases]
        lines = [
            (case.heading, row.attack, NO_COUNT if row.count("recovered") is None else
             f"{row.count('recovered')} of {row.examples}", row.phrase)
            for case, row in found if row is not None
        ]  # fmt: skip
        parts = [(part.title, part.words) for part in self.summary]
        tables = (_html(parts), _html([("case", "best attack", "recovered", "outcome"), *lines]))
        return f"<p><b>{escape(self.verdict)}</b></p>{''.join(tables)}"

    def rows_of(self, case: Case) -> list[Row]:
        """The rows of one case, in the order of the file."""
        return [row for row in self.rows if row.case == case.name]

    @property
    def judged(self) -> list[Case]:
        """The cases that were asked for, without those that only show that the attacks work."""
        return [case for case in self.cases if not case.control]

    @property
    def judged_rows(self) -> list[Row]:
        """Their rows."""
        names = {case.name for case in self.judged}
        return [row for row in self.rows if row.case in names]

    @property
    def judged_membership(self) -> list[MembershipRow]:
        """Their membership tests."""
        names = {case.name for case in self.judged}
        return [row for row in self.membership if row.case in names]

    @property
    def is_open(self) -> bool:
        """Whether a case's leakage is not known from this run. An update of zeros alone leaks nothing."""
        empty = {row.outcome for row in self.judged_rows} == {Outcome.ZERO_UPDATE}
        return self.verdict_level in ("inconclusive", "unscored") and not empty

    @property
    def titles(self) -> dict[str, str]:
        """Case name to its title."""
        return {case.name: case.heading for case in self.cases}

    def record(self) -> dict[str, Any]:
        """The result as written to `result.json`."""
        return self.model_dump(mode="json", by_alias=True) | {"cases": [case.record() for case in self.cases]}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `result.json` as it is written: a result and its rows have all of their keys."""
    schema = Result.model_json_schema(by_alias=True)
    for table in (schema, schema["$defs"]["Row"]):
        table["required"] = sorted(table["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "result.schema.json", **schema}


if __name__ == "__main__":  # python -m seepage.audit.row > docs/result.schema.json
    print(json.dumps(json_schema(), indent=2))
