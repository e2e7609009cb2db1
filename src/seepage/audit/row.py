"""What an audit found, typed: one row per attack and cell, and the whole of `result.json`.

`Result` is the one schema that the table in the terminal, the report, the gate, the frontier and the published tables
read. It imports nothing heavy, so that a reader of results needs no PyTorch.

A score is a `Summary` under its metric's name, so that a new metric needs no new key. Files keep the flat keys that
they have had since schema 1 (`psnr_median`, `error_v`, ...) beside that: `SCHEMA_1` says where in a row each of them
stands, `Row.record` writes them, and a file that has them alone is read as well.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from seepage.core.schema import Guarantee, JsonRecord, Summary

Status = Literal["ok", "diverged", "interrupted", "exhausted", "inapplicable", "error"]
"""How an attack ended: as a reconstruction does, or not applicable, or with a fault in its code."""

PROTOCOL = ("model", "client rule", "batch size", "update")
"""What every attacker here knows: what an honest-but-curious server sees anyway."""


class Outcome(StrEnum):
    """What a row amounts to. Code compares these; `Row.phrase` says them to people."""

    EXACT = "exact"
    PARTLY_EXACT = "partly_exact"
    RECOVERED = "recovered"
    PARTLY_RECOVERED = "partly_recovered"
    TRACES = "traces"
    NOTHING_RECOVERED = "nothing_recovered"
    ZERO_UPDATE = "zero_update"
    FEATURES_ONLY = "features_only"
    RETURNED_NOTHING = "returned_nothing"
    NOT_SCORED = "not_scored"
    NOT_RECORDED = "not_recorded"
    INAPPLICABLE = "does_not_apply"
    FAILED = "failed"

    @property
    def phrase(self) -> str:
        """In words, where no count is known."""
        return self.value.replace("_", " ")


class Certified(JsonRecord):
    """Guesses that an attack vouches for without any truth.

    Attributes:
        n: How many.
        wrong: How many of them are no private example after all; None where no truth was at hand.
    """

    n: int
    wrong: int | None = None


class Cost(JsonRecord):
    """The work of an attack.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Processor time.
        rounds: Rounds that it read.
        steps: Steps of its longest search.
        evaluations: Gradients of the client's rule that it computed.
    """

    seconds: float | None = None
    cpu_seconds: float | None = None
    rounds: int | None = None
    steps: int | None = None
    evaluations: int | None = None


class Row(JsonRecord):
    """One attack on one cell. None where something does not apply.

    Attributes:
        cell: The cell's name.
        attack: The attack's name in this run.
        options: The attack's `repr`: every option with its value.
        status: The worst status of the batches that gave a result, or of all where none did.
        outcome: What it amounts to.
        reason: Why there is no result, on all or some batches.
        told: What the attacker knows: the protocol, and what it was told beyond that.
        told_extra: Side information: what it was told beyond the protocol.
        examples: Private examples.
        returned: Guesses that came back.
        space: Whether the guesses are examples or inputs of an inner layer.
        alignment: How guesses were matched with examples, and what was fitted with the truth for it.
        scores: Metric to its summary; also `recovered` and `exact` (shares), `gain_db` (PSNR over that of the example's
            mean color), `psnr_nearest` (each example takes its most similar guess) and `label_accuracy`.
        baselines: Guess without an attack, to metric, to its mean.
        visible: Guesses that do not count as recovered and correlate with their example by more than 0.8.
        certified: Guesses that the attack vouches for.
        inner: Relative error of each quantity that the attack finds on its way.
        objective: Mean objective reached.
        objective_at_truth: The objective at the private examples.
        cost: The work.
        notes: What the attack says about itself.
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
    space: Literal["input", "feature"] | None = None
    alignment: str | None = None
    scores: dict[str, Summary] = {}
    baselines: dict[str, dict[str, float]] = {}
    visible: int | None = None
    certified: Certified | None = None
    inner: dict[str, float] = {}
    objective: float | None = None
    objective_at_truth: float | None = None
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
        """Examples that `recovered` or `exact` is the share of."""
        found = self.mean(share)
        return None if found is None or self.examples is None else round(found * self.examples)

    @property
    def scored(self) -> bool:
        """Whether the attack was measured against a truth."""
        return "psnr" in self.scores

    @property
    def gave_result(self) -> bool:
        """Whether the attack applied and ended with a result, if only with no guess."""
        return self.status not in ("inapplicable", "error")

    @property
    def leaks(self) -> bool:
        """Whether any example came back, recognizably or exactly."""
        return bool(self.mean("recovered") or self.mean("exact"))

    @property
    def fitted(self) -> str:
        """What the score fitted with the truth, such as `sign and scale`; empty where nothing."""
        return (self.alignment or "").partition("+")[2].replace("+", " and ")

    @property
    def phrase(self) -> str:
        """The outcome for people. Where some are exact their count says so: more may be recovered than exact.

        >>> Row(cell="a", attack="x", outcome="partly_exact", examples=4, scores={"exact": {"mean": 0.5}}).phrase
        '2/4 exact'
        """
        exact = self.count("exact")
        if self.outcome is Outcome.PARTLY_EXACT and exact is not None:
            return f"{exact}/{self.examples} exact"
        return self.outcome.phrase

    def value(self, key: str) -> float | None:
        """A number by the name that the gate and tables know it under; None where the row has none.

        Names are the flat keys of schema 1, a metric for its mean, and `METRIC_median`, `METRIC_low`, `METRIC_high`
        and `METRIC_n`.
        """
        if key == "certified":
            return self._certified_share
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
        """Guesses vouched for by example, where a truth was at hand to count the wrong ones by."""
        if self.certified is None or self.certified.wrong is None or not self.examples:
            return None
        return round(self.certified.n / self.examples, 4)

    def record(self) -> dict[str, Any]:
        """As a table of `result.json`: the scores, and beside them every flat key of schema 1."""
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
        """What stands at a path of attributes and keys."""
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
"""Where in a row each flat key of schema 1 stands. A new metric adds nothing here."""

SCORE_NAMES = (
    *(key for key, path in SCHEMA_1.items() if path[0] in ("scores", "baselines", "inner")), "visible", "certified",
)  # fmt: skip
"""Flat keys of schema 1 that are scores: what `--fail-if` can always name."""

_BY_WORD = {word: outcome for outcome in Outcome for word in (outcome.value, outcome.phrase)}


def _nested(found: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the type wants it, from flat keys and from what stands in its place already."""
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
            continue  # the summaries are whole
        place = row
        for part in path[:-1]:
            place[part] = dict(place.get(part) or {})
            place = place[part]
        place.setdefault(path[-1], value)
    # A summary needs its mean: an interval alone says nothing.
    if "scores" not in found and "scores" in row:
        row["scores"] = {name: one for name, one in row["scores"].items() if "mean" in one}
    # A row of the first versions has the share of certified guesses and no count.
    examples = found.get("examples")
    if isinstance(share, int | float) and isinstance(examples, int) and found.get("vouched") is None:
        row["certified"] = {"wrong": found.get("false_certificates"), "n": round(share * examples)}
    if "outcome" in found:
        row["outcome"] = found.get("outcome_code") or _outcome_of(found)
    return row


def _outcome_of(found: Mapping[str, Any]) -> Outcome:
    """The outcome of a row that has no code: by its phrase, or by its numbers where the phrase holds a count."""
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


def judge_outcome(
    status: str,
    means: Mapping[str, float],
    *,
    zero_update: bool = False,
    returned: int | None = None,
    space: str | None = None,
) -> Outcome:
    """What an attack's result amounts to.

    Args:
        status: How the attack ended.
        means: Means of `psnr`, `exact`, `recovered` and `gain_db`; empty where there is no score.
        zero_update: Whether the attacked update is zero everywhere.
        returned: Guesses that came back.
        space: Where the guesses lie: `input` or `feature`.

    >>> judge_outcome("inapplicable", {}, zero_update=True).value
    'zero_update'
    >>> judge_outcome("ok", {"psnr": 70.0, "recovered": 1.0, "exact": 0.5}).value
    'partly_exact'
    """
    if status == "error":
        return Outcome.FAILED
    if status == "inapplicable":
        return Outcome.ZERO_UPDATE if zero_update else Outcome.INAPPLICABLE
    if "psnr" not in means:
        if returned == 0:
            return Outcome.RETURNED_NOTHING
        return Outcome.FEATURES_ONLY if space == "feature" else Outcome.NOT_SCORED
    exact, recovered = means.get("exact"), means.get("recovered")
    if exact:
        return Outcome.EXACT if exact == recovered == 1 else Outcome.PARTLY_EXACT
    if recovered:
        return Outcome.RECOVERED if recovered == 1 else Outcome.PARTLY_RECOVERED
    return Outcome.TRACES if means.get("gain_db", 0.0) > 0 else Outcome.NOTHING_RECOVERED


# --- the cell ----------------------------------------------------------------------------------------------------


class DrawnRounds(JsonRecord):
    """Rounds that draw their batches from one data set."""

    count: int
    samples: int
    design: str | None = None
    optimizer: str | None = None
    lr: float | None = None


class Cell(JsonRecord):
    """What one client did, and what is known about its update; None where that is not known.

    Attributes:
        name: The cell's name: of its folders, and in rows.
        title: For people.
        title_parts: What the title is made of, part by part.
        model: Name of the model.
        model_options: Its options.
        data: The data set.
        data_source: Where that is from.
        batch_size: Examples of one batch.
        batches: Batches that are attacked.
        rounds: How the batches were drawn, where they were drawn from one data set.
        training_steps: Steps that the model was trained for.
        history: How the model got where it is, in words.
        accuracy: Share of unseen examples that the model classifies right.
        accuracy_examples: Unseen examples.
        defense: The defense's `repr`; None: there is none, or it is not known.
        client: The client rule's `repr`.
        classes: Names of the classes.
        parameters: Number of the model's parameters.
        baselines: Guess without an attack, to metric, to its mean.
        federation: Facts of the federation that trained the model.
        inferred: What an attacker was not told and inferred, by name, with its source.
        promise: What the defense guarantees in differential privacy.
        exposure: What the update gives away without an attack, in one line.
        skipped: Why the cell could not be recorded.
    """

    schema_version: int = Field(default=1, alias="schema")
    name: str
    title: str = ""
    title_parts: list[str] = []
    model: str | None = None
    model_options: dict[str, JsonValue] = {}
    data: str | None = None
    data_source: str | None = None
    batch_size: int | None = None
    batches: int | None = None
    rounds: DrawnRounds | None = None
    training_steps: int | None = None
    history: str | None = None
    accuracy: float | None = None
    accuracy_examples: int | None = None
    defense: str | None = None
    client: str | None = None
    classes: list[JsonValue] = []
    parameters: int | None = None
    baselines: dict[str, dict[str, float | None]] | None = None
    federation: dict[str, JsonValue] | None = None
    inferred: dict[str, str] | None = None
    promise: Guarantee | None = None
    exposure: str | None = None
    skipped: str | None = None

    @property
    def heading(self) -> str:
        """The title, or the name where there is none."""
        return self.title or self.name

    def baseline(self, name: str, metric: str) -> float | None:
        """The mean of a metric for a guess without an attack; None where it was not measured."""
        return ((self.baselines or {}).get(name) or {}).get(metric)

    def record(self) -> dict[str, Any]:
        """As a table of `result.json`: what was found out, and nothing for the rest."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


# --- the whole result --------------------------------------------------------------------------------------------


class Thresholds(JsonRecord):
    """From where on an example counts as recovered or exact, and what else was measured.

    Attributes:
        recovered_ssim: SSIM from which an image can count as recovered.
        recovered_gain_db: Decibels over its own mean color that an example needs besides.
        exact_db: PSNR in dB over which an example counts as exact.
        lpips: Whether LPIPS was asked for.
        metrics: Further metrics that were asked for.
    """

    recovered_ssim: float = 0.6
    recovered_gain_db: float = 3.0
    exact_db: float = 40.0
    lpips: bool = False
    metrics: list[str] = []


class Diagnostic(JsonRecord):
    """One diagnostic: what a reader must know before believing a number.

    Attributes:
        cell: Where it was raised; None: about the whole run.
        attack: About which attack; None: about the cell.
        name: Stable short name.
        severity: `warning`: the number may mislead. `note`: good to know.
        message: What was seen and what it means.
        evidence: The measured numbers behind it.
        limit: What it does not show; empty where the message says all.
        tensors: Parameters that would have to be withheld or noised to close it.
    """

    cell: str | None = None
    attack: str | None = None
    name: str
    severity: str
    message: str
    evidence: dict[str, JsonValue] = {}
    limit: str = ""
    tensors: list[str] = []


class Result(JsonRecord):
    """The content of `result.json`.

    Attributes:
        schema_version: 1. Keys may be added to that version; none is removed or changes its meaning.
        run: The run folder, as it was named.
        verdict: The run in plain words.
        verdict_level: `exact`, `recognizable`, `traces` or `nothing`; without a truth `certified` or `unscored`.
        rows: One per attack and cell, cheapest attack first.
        cells: One per client setting.
        thresholds: What "recovered" and "exact" mean here.
    """

    schema_version: int = Field(default=1, alias="schema")
    run: str = ""
    verdict: str
    verdict_level: str
    rows: list[Row]
    cells: list[Cell]
    thresholds: Thresholds

    def rows_of(self, cell: Cell) -> list[Row]:
        """The rows of one cell, in order."""
        return [row for row in self.rows if row.cell == cell.name]

    @property
    def titles(self) -> dict[str, str]:
        """A cell's name to what a reader knows it by."""
        return {cell.name: cell.heading for cell in self.cells}

    def record(self) -> dict[str, Any]:
        """As the table that `result.json` holds."""
        return {
            "schema": self.schema_version,
            "run": self.run,
            "verdict": self.verdict,
            "verdict_level": self.verdict_level,
            "rows": [row.record() for row in self.rows],
            "cells": [cell.record() for cell in self.cells],
            "thresholds": self.thresholds.model_dump(mode="json"),
        }


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `result.json` as it is written: the models, and the flat keys of schema 1 in each row."""
    schema = Result.model_json_schema(by_alias=True)
    row = schema["$defs"]["Row"]
    number, count = {"type": ["number", "null"]}, {"type": ["integer", "null"]}
    counts = {"vouched", "false_certificates", "rounds", "steps", "evaluations"}
    flat = {
        key: {
            **(count if key in counts else number),
            "description": f"The same as {'.'.join(path)}, where there is one.",
        }
        for key, path in SCHEMA_1.items()
    }
    codes = row["properties"].pop("outcome")
    del row["properties"]["cost"]
    row["properties"] |= {
        **flat,
        "certified": {**number, "description": "Guesses that the attack vouches for, by example."},
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
