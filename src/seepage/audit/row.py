"""The types of an audit's result: one `Row` per attack and cell, and `Result`, the content of `result.json`.

The table in the terminal, the report, the gate, the frontier and the published tables all read `Result`. This module
does not import PyTorch, so that results can be read without it.

A score is a `Summary` under its metric's name, so that a new metric needs no new key. Files also keep the flat keys
of schema 1 (`psnr_median`, `error_v`, ...): `SCHEMA_1` maps each of them to its place in a row, `Row.record` writes
them, and files that contain only the flat keys can still be read.

The types of its parts are in `outcome`, `side_rows` and `cell` beside this, and can all be imported from here.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from seepage.audit.cell import Budget, Cell, Diagnostic, DrawnRounds, Thresholds, TunedRow, TunedTry
from seepage.audit.outcome import PASSED_OVER, TRACE_OF_TEXT, Outcome, Status, judge_outcome
from seepage.audit.side_rows import (
    MEMBERSHIP_SCORES,
    BoundRow,
    EpsilonRow,
    MembershipRow,
    Proportion,
    Side,
    SideName,
)
from seepage.core.schema import JsonRecord, Summary

__all__ = [
    "MEMBERSHIP_SCORES", "PASSED_OVER", "PROTOCOL", "SCHEMA_1", "SCORE_NAMES", "TRACE_OF_TEXT", "BoundRow", "Cell",
    "Certified",
    "Cost", "Diagnostic", "DrawnRounds", "EpsilonRow", "MembershipRow", "Outcome", "Proportion", "Result", "Row",
    "Side", "SideName", "Status", "Thresholds", "TunedRow", "TunedTry", "counted_features", "counted_guesses",
    "counted_tokens", "json_schema", "judge_outcome",
]  # fmt: skip

PROTOCOL = ("model", "client rule", "batch size", "update")
"""Facts that every attacker knows, because an honest-but-curious server observes them."""


class Certified(JsonRecord):
    """Number of guesses that an attack certifies as exact without knowing the truth; of inner features, of those.

    Attributes:
        n: Number of certified guesses: `vouched` in `result.json`.
        wrong: Number of certified guesses that match no private example; None without a truth: `false_certificates`.
    """

    n: int
    wrong: int | None = None


def counted_guesses(n: int) -> str:
    """Certified guesses of examples in words.

    >>> counted_guesses(1), counted_guesses(2)
    ('1 guess certified', '2 guesses certified')
    """
    return f"{n} guess{'' if n == 1 else 'es'} certified"


def counted_features(n: int) -> str:
    """Certified inner features in words.

    >>> counted_features(2)
    '2 inner features certified, which are no examples'
    """
    words = "feature certified, which is no example" if n == 1 else "features certified, which are no examples"
    return f"{n} inner {words}"


def counted_tokens(n: int, certified: int) -> str:
    """Named tokens in words.

    >>> counted_tokens(3, 2), counted_tokens(1, 1)
    ('3 tokens named, 2 of them certified', '1 token named, certified')
    """
    of_them = "certified" if certified == n == 1 else f"{certified:,} of them certified"
    return f"{n:,} token{'' if n == 1 else 's'} named, {of_them}"


FITS = 0.01
"""Relative difference of updates up to which guesses are said to reproduce the one that was sent."""


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
    """The result of one attack on one cell. A field is None where it does not apply.

    Attributes:
        cell: The cell's name.
        attack: The attack's name in this run.
        options: The attack's `repr`: every option with its value.
        status: The worst status of the batches with a result; if no batch has one, the worst of all.
        outcome: The code of the result.
        reason: Why some or all batches have no result.
        told: What the attacker knows: the protocol and the side information.
        told_extra: Side information: what the attacker knows beyond the protocol.
        examples: Number of private examples.
        returned: Number of guesses that the attack returned.
        space: Whether the guesses are examples (`input`), inputs of an inner layer (`feature`), or tokens that the
            examples hold (`token`), each once.
        alignment: How guesses were matched with examples, and what was fitted with the truth for it.
        scores: Metric to its summary; also `recovered` and `exact` (shares), `gain_db` (PSNR over that of the example's
            mean color), `psnr_nearest` (each example takes its most similar guess) `label_accuracy`; of values
            `target_error`. Of a set of tokens `token_recall`, the share of the examples' distinct tokens that are
            named, and `token_precision`, the share of the named ones that the examples hold, with the interval of
            Clopper and Pearson.
        baselines: Name of a guess without an attack, to metric, to its mean.
        visible: Null; in files of earlier versions the number of guesses that did not count as recovered and yet
            correlated with their example by more than 0.8.
        certified: Guesses that the attack certifies as exact; with the space `feature` or `token` they are no examples.
        inner: Relative error of each intermediate quantity that the attack estimates.
        objective: Mean value of the objective that the attack reached.
        objective_at_truth: Mean value of the objective at the private examples.
        misfit: Without a truth: how much the update that the guesses give differs from the sent one, relatively and up
            to one factor, where that could be computed. 0 is just that update, or a multiple.
        cost: Time and number of evaluations.
        notes: Notes of the attack about its own run.
    """

    cell: str
    attack: str
    options: str = ""
    status: Status = "ok"
    outcome: Outcome = Field(strict=False)
    reason: str | None = None
    told: list[str] = []
    told_extra: list[str] = []
    examples: int | None = None
    returned: int | None = None
    space: Literal["input", "feature", "token"] | None = None
    alignment: str | None = None
    scores: dict[str, Summary] = {}
    baselines: dict[str, dict[str, float]] = {}
    visible: int | None = None
    certified: Certified | None = None
    inner: dict[str, float] = {}
    objective: float | None = None
    objective_at_truth: float | None = None
    misfit: float | None = None
    cost: Cost = Cost()
    notes: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _from_schema_1(cls, found: Any) -> Any:
        return _nested(found) if isinstance(found, Mapping) else found

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
    def named_tokens(self) -> int:
        """Tokens that the attack names as ones that the examples hold, where it names any and no examples."""
        return self.returned or 0 if self.space == "token" else 0

    @property
    def certified_tokens(self) -> int:
        """Those of them that it certifies."""
        return self.certified.n if self.certified is not None and self.space == "token" else 0

    @property
    def certificate(self) -> str:
        """What the attack certifies, in words; empty where it certifies nothing.

        >>> Row(cell="a", attack="x", outcome="features_only", space="feature", certified={"n": 1}).certificate
        '1 inner feature certified, which is no example'
        """
        if self.certified_features:
            return counted_features(self.certified_features)
        if self.named_tokens:
            return counted_tokens(self.named_tokens, self.certified_tokens)
        return counted_guesses(self.certified_examples) if self.certified_examples else ""

    @property
    def fits(self) -> bool:
        """Whether the guesses give the update that was sent, as far as that could be computed."""
        return self.misfit is not None and self.misfit <= FITS

    @property
    def misfit_words(self) -> str:
        """Whether the guesses give the update that was sent, in a few words; empty where that is not known.

        >>> Row(cell="a", attack="x", outcome="not_scored", misfit=0.213).misfit_words
        'update off by 21 %'
        >>> Row(cell="a", attack="x", outcome="not_scored", misfit=1e-6).misfit_words
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
        """What the score fitted with the truth, such as `sign and scale`; empty where nothing was fitted."""
        return (self.alignment or "").partition("+")[2].replace("+", " and ")

    @property
    def phrase(self) -> str:
        """The outcome in words. If some examples are exact, their count is given, as more may be recovered.

        >>> Row(cell="a", attack="x", outcome="partly_exact", examples=4, scores={"exact": {"mean": 0.5}}).phrase
        '2/4 exact'
        """
        exact, named = self.count("exact"), self.scores.get("token_recall")
        if self.outcome is Outcome.TOKENS_NAMED and named is not None and named.n:
            return f"{round(named.mean * named.n):,} of {named.n:,} tokens named"
        if self.outcome is Outcome.PARTLY_EXACT and exact is not None:
            return f"{exact}/{self.examples} exact"
        return self.outcome.phrase

    def value(self, key: str) -> float | None:
        """The number with this name in the gate and in tables; None where the row does not have it.

        Names are the flat keys of schema 1, `METRIC` for a metric's mean, and `METRIC_median`, `METRIC_low`,
        `METRIC_high` and `METRIC_n`.
        """
        if key == "certified":
            return self._certified_share
        if key == "tokens_named":
            return self.named_tokens if self.space == "token" else None
        place = self._at(SCHEMA_1.get(key, (key,)))
        if place is None and key not in SCHEMA_1:
            place = self._of_metric(key)
        return place if isinstance(place, int | float) and not isinstance(place, bool) else None

    def _of_metric(self, key: str) -> float | None:
        metric, _, part = key.rpartition("_")
        if key in self.scores:
            return self.scores[key].mean
        return getattr(self.scores.get(metric), part, None) if part in Summary.model_fields else None

    @property
    def _certified_share(self) -> float | None:
        """Certified guesses per private example, `certified` of `result.json`; None where there is no truth."""
        if self.certified is None or self.certified.wrong is None or not self.examples or self.space == "token":
            return None
        return round(self.certified.n / self.examples, 4)

    def record(self) -> dict[str, Any]:
        """The row as written to `result.json`: the typed fields, and every flat key of schema 1."""
        plain = self.model_dump(mode="json", exclude={"certified", "cost", "outcome"})
        return {
            **plain,
            **{key: self._at(path) for key, path in SCHEMA_1.items()},
            "certified": self._certified_share,
            "outcome": self.phrase,
            "outcome_code": self.outcome.value,
            "zero_update": self.outcome is Outcome.ZERO_UPDATE,
            "nothing_recovered": self.outcome is Outcome.NOTHING_RECOVERED,
        }

    def _at(self, path: tuple[str, ...]) -> Any:
        """The value at a path of attributes and keys."""
        found: Any = self
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
        return found


_BASELINES = ("mean_color", "grey", "random")

SCHEMA_1: dict[str, tuple[str, ...]] = {
    **{name: ("scores", name, "mean") for name in ("recovered", "exact", "psnr")},
    **{f"psnr_{part}": ("scores", "psnr", part) for part in ("median", "low", "high")},
    **{name: ("scores", name, "mean") for name in ("ssim", "lpips", "correlation", "cosine", "gain_db")},
    **{name: ("scores", name, "mean") for name in ("label_accuracy", "psnr_nearest")},
    **{f"{base}_{metric}": ("baselines", base, metric) for metric in ("psnr", "ssim") for base in _BASELINES},
    "error_v": ("inner", "v"),
    "error_h": ("inner", "h"),
    "vouched": ("certified", "n"),
    "false_certificates": ("certified", "wrong"),
    **{name: ("cost", name) for name in Cost.model_fields},
}
"""The path in a row of each flat key of schema 1. A new metric needs no entry here."""

SCORE_NAMES = (
    *(key for key, path in SCHEMA_1.items() if path[0] in ("scores", "baselines", "inner")), "visible", "certified",
    "tokens_named", "token_recall", "token_precision",
)  # fmt: skip
"""Flat keys of schema 1 that are scores; `--fail-if` accepts them in every run."""

_BY_WORD = {word: outcome for outcome in Outcome for word in (outcome.value, outcome.phrase)}


def _nested(found: Mapping[str, Any]) -> dict[str, Any]:
    """The nested form of a row, from its flat keys and from fields that are nested already."""
    row = {key: value for key, value in found.items() if key in Row.model_fields and key != "certified"}
    share = found.get("certified")
    if isinstance(share, Mapping | Certified):
        row["certified"], share = share, None
    for key, path in SCHEMA_1.items():
        value = found.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PydanticCustomError("damaged", "{words}", {"words": f"{key!r} cannot be {value!r:.40}"})
        if path[0] == "scores" and "scores" in found:
            continue  # the summaries are complete without the flat keys
        place = row
        for part in path[:-1]:
            inside = place.get(part) or {}
            if not isinstance(inside, Mapping):
                raise PydanticCustomError("damaged", "{words}", {"words": f"{part!r} cannot be {inside!r:.40}"})
            place[part] = dict(inside)
            place = place[part]
        place.setdefault(path[-1], value)
    # A summary without a mean is dropped: an interval alone is no score.
    if "scores" not in found and "scores" in row:
        row["scores"] = {name: one for name, one in row["scores"].items() if "mean" in one}
    # Rows of the first versions hold the share of certified guesses but not their number.
    examples = found.get("examples")
    if isinstance(share, int | float) and isinstance(examples, int) and found.get("vouched") is None:
        row["certified"] = {"wrong": found.get("false_certificates"), "n": round(share * examples)}
    if "outcome" in found:
        row["outcome"] = found.get("outcome_code") or _outcome_of(found)
    return row


def _outcome_of(found: Mapping[str, Any]) -> Outcome:
    """The outcome of a row without a code: from its phrase, or from its numbers where the phrase contains a count."""
    if isinstance(found["outcome"], str) and found["outcome"] in _BY_WORD:
        return _BY_WORD[found["outcome"]]
    shares = {key: found[key] for key in ("psnr", "exact", "recovered", "gain_db") if found.get(key) is not None}
    return judge_outcome(
        str(found.get("status", "ok")),
        shares,
        zero_update=bool(found.get("zero_update")),
        returned=found.get("returned"),
        space=found.get("space"),
    )


class Result(JsonRecord):
    """The content of `result.json`.

    Attributes:
        schema_version: 1. Keys may be added to that version; none is removed or changes its meaning.
        run: The path of the run folder as it was given, or its name where that is absolute.
        verdict: Summary of the run in plain words.
        verdict_level: `exact`, `recognizable`, `traces` or `nothing`; `certified`, where a closed form gives an example
            away exactly or, without a truth, an attack certifies one; `inconclusive`, where nothing came back and that
            says nothing; or `unscored`.
        rows: One per attack and cell, in the recipe's order of attacks.
        cells: One per client setting.
        thresholds: The thresholds for "recovered" and "exact".
        membership: One per membership test and cell; empty where the recipe asks for none.
        sides: The sides of the verdict.
        bounds: What no attacker can exceed, one per cell and bound.
        epsilons: The measured privacy of each cell's defense.
        tuned: Options that were chosen on other batches than the scored ones, one per attack that took any.
        budget: The minutes of the run, where they were too few for something; else None.
        warnings: The diagnostics by which a number of this run may mislead; `flags.json` has the notes as well.
    """

    schema_version: int = Field(default=1, alias="schema")
    run: str = ""
    verdict: str
    verdict_level: str
    rows: list[Row]
    cells: list[Cell]
    thresholds: Thresholds
    membership: list[MembershipRow] = []
    sides: list[Side] = []
    bounds: list[BoundRow] = []
    epsilons: list[EpsilonRow] = []
    tuned: list[TunedRow] = []
    budget: Budget | None = None
    warnings: list[Diagnostic] = []

    @model_validator(mode="after")
    def _of_known_cells(self) -> "Result":
        """Whatever speaks of a cell speaks of one that is there."""
        known = {cell.name for cell in self.cells}
        parts = (self.rows, self.membership, self.bounds, self.epsilons)
        odd = next((row.cell for part in parts for row in part if row.cell not in known), None)
        if odd is not None:
            raise PydanticCustomError("damaged", "{words}", {"words": f"a row is of the unknown cell {odd!r:.40}"})
        return self

    def rows_of(self, cell: Cell) -> list[Row]:
        """The rows of one cell, in the order of the file."""
        return [row for row in self.rows if row.cell == cell.name]

    @property
    def judged(self) -> list[Cell]:
        """The cells that were asked for, without those that only show that the attacks work."""
        return [cell for cell in self.cells if not cell.control]

    @property
    def judged_rows(self) -> list[Row]:
        """Their rows."""
        names = {cell.name for cell in self.judged}
        return [row for row in self.rows if row.cell in names]

    @property
    def is_open(self) -> bool:
        """Whether nobody can say from this run what comes back. An update of zeros alone holds nothing."""
        empty = {row.outcome for row in self.judged_rows} == {Outcome.ZERO_UPDATE}
        return self.verdict_level in ("inconclusive", "unscored") and not empty

    @property
    def titles(self) -> dict[str, str]:
        """Cell name to its title."""
        return {cell.name: cell.heading for cell in self.cells}

    def record(self) -> dict[str, Any]:
        """The result as written to `result.json`."""
        return {
            "schema": self.schema_version,
            "run": self.run,
            "verdict": self.verdict,
            "verdict_level": self.verdict_level,
            "rows": [row.record() for row in self.rows],
            "cells": [cell.record() for cell in self.cells],
            "thresholds": self.thresholds.model_dump(mode="json"),
            "membership": [row.model_dump(mode="json") for row in self.membership],
            "sides": [side.model_dump(mode="json") for side in self.sides],
            "bounds": [row.model_dump(mode="json") for row in self.bounds],
            "epsilons": [row.model_dump(mode="json") for row in self.epsilons],
            "tuned": [row.model_dump(mode="json") for row in self.tuned],
            "budget": None if self.budget is None else self.budget.model_dump(mode="json"),
            "warnings": [flag.model_dump(mode="json") for flag in self.warnings],
        }


CERTIFICATES = {
    "vouched": "Number of guesses that the attack certifies as exact, with or without a truth; of inner features where "
    "`space` is `feature`, of tokens where it is `token`. Null where it cannot certify any.",
    "certified": "The share: `vouched` by the number of private examples, from 0 to 1, false ones counted in. Null "
    "without a truth, whatever `vouched` says, where the attack cannot certify any, and of tokens.",
    "false_certificates": "Number of the certified guesses that match no private example. Null without a truth.",
}
"""What the flat keys of certificates mean, two of which need a truth."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `result.json` as it is written: the models, and the flat keys of schema 1 in each row."""
    schema = Result.model_json_schema(by_alias=True)
    row = schema["$defs"]["Row"]
    number, count = {"type": ["number", "null"]}, {"type": ["integer", "null"]}
    counts = {"vouched", "false_certificates", "rounds", "steps", "evaluations"}
    flat = {
        key: {
            **(count if key in counts else number),
            "description": CERTIFICATES.get(key, f"The same as {'.'.join(path)}, where there is one."),
        }
        for key, path in SCHEMA_1.items()
    }
    codes = row["properties"].pop("outcome")
    del row["properties"]["cost"]
    row["properties"] |= {
        **flat,
        "certified": {**number, "description": CERTIFICATES["certified"]},
        "outcome": {"type": "string", "description": "The outcome for people, such as '2/4 exact'."},
        "outcome_code": codes,
        "zero_update": {"type": "boolean"},
        "nothing_recovered": {"type": "boolean"},
    }
    row["required"] = sorted(row["properties"])
    schema["required"] = sorted(schema["properties"])
    for unused in ("Certified", "Cost"):
        schema["$defs"].pop(unused, None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "result.schema.json", **schema}


if __name__ == "__main__":  # python -m seepage.audit.row > docs/result.schema.json
    print(json.dumps(json_schema(), indent=2))
