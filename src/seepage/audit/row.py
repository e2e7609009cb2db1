"""The types of an audit's result: one `Row` per attack and cell, and `Result`, the content of `result.json`.

The table in the terminal, the report, the gate, the frontier and the published tables all read `Result`. This module
does not import PyTorch, so that results can be read without it.

A score is a `Summary` under its metric's name, so that a new metric needs no new key. Files also keep the flat keys
of schema 1 (`psnr_median`, `error_v`, ...): `SCHEMA_1` maps each of them to its place in a row, `Row.record` writes
them, and files that contain only the flat keys can still be read.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from seepage.core.schema import Guarantee, JsonRecord, Summary

Status = Literal["ok", "diverged", "interrupted", "exhausted", "inapplicable", "error"]
"""How an attack ended: the status of its reconstruction, `inapplicable`, or `error` for an exception in its code."""

PROTOCOL = ("model", "client rule", "batch size", "update")
"""Facts that every attacker knows, because an honest-but-curious server observes them."""


class Outcome(StrEnum):
    """The result of an attack as a code for comparisons; `Row.phrase` is the text for people."""

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
        """The outcome in words, for rows without a count."""
        return self.value.replace("_", " ")


class Certified(JsonRecord):
    """Number of guesses that an attack certifies as exact without knowing the truth.

    Attributes:
        n: Number of certified guesses.
        wrong: Number of certified guesses that match no private example; None without a truth.
    """

    n: int
    wrong: int | None = None


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
        space: Whether the guesses are examples (`input`) or inputs of an inner layer (`feature`).
        alignment: How guesses were matched with examples, and what was fitted with the truth for it.
        scores: Metric to its summary; also `recovered` and `exact` (shares), `gain_db` (PSNR over that of the example's
            mean color), `psnr_nearest` (each example takes its most similar guess) and `label_accuracy`.
        baselines: Name of a guess without an attack, to metric, to its mean.
        visible: Number of guesses that do not count as recovered but correlate with their example by more than 0.8.
        certified: Guesses that the attack certifies as exact.
        inner: Relative error of each intermediate quantity that the attack estimates.
        objective: Mean value of the objective that the attack reached.
        objective_at_truth: Mean value of the objective at the private examples.
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
        return self.status not in ("inapplicable", "error")

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
        exact = self.count("exact")
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
        """Certified guesses per private example; None without a truth, which is needed to count the wrong ones."""
        if self.certified is None or self.certified.wrong is None or not self.examples:
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
            place[part] = dict(place.get(part) or {})
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


TRACE_OF_TEXT = 0.5
"""ROUGE-1 from which text that does not count as recovered shows traces: half of its tokens."""


def judge_outcome(
    status: str,
    means: Mapping[str, float],
    *,
    zero_update: bool = False,
    returned: int | None = None,
    space: str | None = None,
) -> Outcome:
    """The outcome code of an attack's result.

    Args:
        status: How the attack ended.
        means: Means of `psnr` (of text: `rouge_1`), `exact`, `recovered` and `gain_db`; empty without a score.
        zero_update: Whether the attacked update is zero everywhere.
        returned: Number of guesses that the attack returned.
        space: Whether the guesses are examples (`input`) or inputs of an inner layer (`feature`).

    >>> judge_outcome("inapplicable", {}, zero_update=True).value
    'zero_update'
    >>> judge_outcome("ok", {"psnr": 70.0, "recovered": 1.0, "exact": 0.5}).value
    'partly_exact'
    """
    if status == "error":
        return Outcome.FAILED
    if status == "inapplicable":
        return Outcome.ZERO_UPDATE if zero_update else Outcome.INAPPLICABLE
    if "psnr" not in means and "rouge_1" not in means:
        if returned == 0:
            return Outcome.RETURNED_NOTHING
        return Outcome.FEATURES_ONLY if space == "feature" else Outcome.NOT_SCORED
    exact, recovered = means.get("exact"), means.get("recovered")
    if exact:
        return Outcome.EXACT if exact == recovered == 1 else Outcome.PARTLY_EXACT
    if recovered:
        return Outcome.RECOVERED if recovered == 1 else Outcome.PARTLY_RECOVERED
    return (
        Outcome.TRACES
        if means.get("gain_db", 0.0) > 0 or means.get("rouge_1", 0.0) > TRACE_OF_TEXT
        else Outcome.NOTHING_RECOVERED
    )


# --- membership --------------------------------------------------------------------------------------------------


class Proportion(JsonRecord):
    """A share with its 95 % interval by Clopper and Pearson.

    Attributes:
        hits: How many.
        of: Of how many.
        low: Lower end of the interval of `hits / of`.
        high: Its upper end.
    """

    hits: int
    of: int
    low: float
    high: float


class MembershipRow(JsonRecord):
    """The result of one membership test on one cell, over all of its batches. A field is None where it does not apply.

    Attributes:
        cell: The cell's name.
        test: The test's name.
        options: The test's `repr`.
        status: `ok`, `inapplicable`, or `error` for an exception in its code.
        reason: Why there is no result, and what to change.
        members: Number of candidates that were in a batch.
        others: Number of candidates that were not.
        auc: P(a member's statistic exceeds another's); 0.5 is chance.
        auc_low: Lower end of its 95 % bootstrap interval.
        auc_high: Its upper end.
        level: The share of others that may be named by mistake.
        named: Members with a p-value up to the level: the true positive rate.
        false: Others with a p-value up to the level: the false positive rate.
        named_per_mille: As `named` at the level 0.001, where there are calibration examples enough.
        false_per_mille: As `false` at that level.
        reference: Number of public examples that taught the test.
        calibration: Number of public examples that calibrated it.
        seconds: Wall time.
        cpu_seconds: Processor time.
    """

    cell: str
    test: str
    options: str = ""
    status: Literal["ok", "inapplicable", "error"] = "ok"
    reason: str | None = None
    members: int | None = None
    others: int | None = None
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    level: float | None = None
    named: Proportion | None = None
    false: Proportion | None = None
    named_per_mille: Proportion | None = None
    false_per_mille: Proportion | None = None
    reference: int | None = None
    calibration: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None

    def value(self, key: str) -> float | None:
        """The number with this name in the gate, one of `MEMBERSHIP_SCORES`; shares for `named` and `false`."""
        found = getattr(self, key)
        return found.hits / found.of if isinstance(found, Proportion) else found

    @property
    def tells(self) -> bool:
        """Whether it tells members from others: the interval of its area lies above chance."""
        return self.auc_low is not None and self.auc_low > 0.5

    @property
    def tpr(self) -> float | None:
        """Share of members that it names."""
        return self.value("named")


MEMBERSHIP_SCORES = ("auc", "auc_low", "auc_high", "named", "false")
"""Scores of membership tests, which `--fail-if` accepts."""


# --- bounds and measured privacy ---------------------------------------------------------------------------------


class BoundRow(JsonRecord):
    """A number that no attacker on one cell can exceed: the loosest over the cell's batches.

    Attributes:
        cell: The cell's name.
        measure: `psnr_db`, `exact_share`, `tpr`, `auc` or `rank`, bounded from above; `unseen_share`, from below.
        method: How it was found.
        value: The bound; None where none holds, and `reason` says why.
        low: Lower end of the 95 % interval of its own estimation.
        high: Its upper end.
        at: The false positive rate of `tpr`; the PSNR from which on a copy counts as exact, of `exact_share`.
        words: The bound in words.
        assumption: What it rests on.
        binds: Which attackers it binds.
        batches: Number of batches it was found for.
        beside: PSNR of the same batch's mean colors, from the mean squared error as `psnr_db` is; None for others.
        reason: Why there is no bound of a kind.
    """

    cell: str
    measure: str = ""
    method: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    at: float | None = None
    words: str = ""
    assumption: str = ""
    binds: str = ""
    batches: int = 0
    beside: float | None = None
    reason: str | None = None


class EpsilonRow(JsonRecord):
    """The measured privacy of one cell's defense, beside what is stated and computed. A field is None without a value.

    Attributes:
        cell: The cell's name.
        defense: The defense's `repr`.
        delta: The delta of all epsilons.
        rounds: Rounds that they are over.
        unit: What joins or leaves: a client's `update`, or one `example`.
        stated: What somebody stated.
        computed: What an accountant computed from the defense's options.
        measured: Lower bound that exceeds the true epsilon in 5 % of measurements at most, without assumptions.
        ceiling: The largest bound that so many calls could have given.
        fitted: Epsilon of Gaussian noise that was fitted to the outputs, where its tests pass: by assumption.
        fitted_low: Lower end of its 95 % interval.
        fitted_high: Its upper end.
        contradicted: Which claims the measurement contradicts, in words; empty: none.
        calls: Calls of the defense.
        seconds: Wall time.
        words: The measurement in words.
        reason: Why nothing was measured.
    """

    cell: str
    defense: str = ""
    delta: float | None = None
    rounds: int | None = None
    unit: str = ""
    stated: float | None = None
    computed: float | None = None
    measured: float | None = None
    ceiling: float | None = None
    fitted: float | None = None
    fitted_low: float | None = None
    fitted_high: float | None = None
    contradicted: list[str] = []
    calls: int = 0
    seconds: float | None = None
    words: str = ""
    reason: str | None = None


# --- the sides of a verdict --------------------------------------------------------------------------------------

SideName = Literal["came_back", "named", "cannot_exceed", "measured_epsilon"]
"""What a verdict says in its four parts."""


class Side(JsonRecord):
    """One side of a verdict: the worst of all cases, with its interval.

    Attributes:
        name: `came_back` (what attacks rebuilt), `named` (who was in it), `cannot_exceed` (upper bounds that hold for
            every attacker) or `measured_epsilon` (how private the defense is, by calling it).
        tried: Whether there is a finding; otherwise `words` says why not, and how to ask for it.
        words: The finding in words.
        cell: The case that it is about.
        value: The number of the finding.
        low: Lower end of its 95 % interval.
        high: Its upper end.
    """

    name: SideName
    tried: bool
    words: str
    cell: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def title(self) -> str:
        """The name for people."""
        return self.name.replace("_", " ")


# --- the cell ----------------------------------------------------------------------------------------------------


class DrawnRounds(JsonRecord):
    """Rounds whose batches are drawn from one data set."""

    count: int
    samples: int
    design: str | None = None
    optimizer: str | None = None
    lr: float | None = None


class Cell(JsonRecord):
    """The setting of one cell and facts about its update. A field is None where it is not known.

    Attributes:
        name: Name of the cell in rows and of its folders.
        title: Title for people.
        title_parts: The parts of which the title is composed.
        model: Name of the model.
        model_options: Options of the model.
        data: Name of the data set; of one's own its kind, such as `folder`, unless `score.names` asks for the name.
        data_source: Source of the data set.
        batch_size: Number of examples in one batch.
        batches: Number of attacked batches.
        rounds: How the batches were drawn, where they were drawn from one data set.
        training_steps: Number of training steps before the attacked round.
        history: Sentence about the initialization and training of the model.
        accuracy: Share of unseen examples that the model classifies correctly.
        accuracy_examples: Number of unseen examples.
        defense: The defense's `repr`; None where there is none or it is not known.
        client: The client rule's `repr`.
        classes: Names of the classes; of one's own data numbers, unless `score.names` asks for the names.
        parameters: Number of the model's parameters.
        baselines: Name of a guess without an attack, to metric, to its mean.
        federation: Facts of the federation that trained the model.
        inferred: Name of each fact that was inferred instead of stated, to the source it was inferred from.
        promise: The differential-privacy guarantee of the defense.
        exposure: One line on what the update reveals without an attack.
        skipped: Why the cell could not be recorded.
        membership_skipped: Why its membership could not be tested.
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
    membership_skipped: str | None = None

    @property
    def heading(self) -> str:
        """The title, or the name where there is none."""
        return self.title or self.name

    def baseline(self, name: str, metric: str) -> float | None:
        """The mean of a metric for a baseline guess; None where it was not measured."""
        return ((self.baselines or {}).get(name) or {}).get(metric)

    def record(self) -> dict[str, Any]:
        """The cell as written to `result.json`, without the fields that are not known."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


# --- the whole result --------------------------------------------------------------------------------------------


class Thresholds(JsonRecord):
    """The thresholds from which an example counts as recovered or exact, and the optional metrics.

    Attributes:
        recovered_ssim: SSIM from which an image can count as recovered.
        recovered_gain_db: PSNR in dB by which the guess must also exceed the example's mean color.
        exact_db: PSNR in dB over which an example counts as exact.
        lpips: Whether LPIPS was requested.
        metrics: Further requested metrics.
    """

    recovered_ssim: float = 0.6
    recovered_gain_db: float = 3.0
    exact_db: float = 40.0
    lpips: bool = False
    metrics: list[str] = []


class Diagnostic(JsonRecord):
    """One diagnostic: what a reader must know before believing a number.

    Attributes:
        cell: The cell it is about; None: the whole run.
        attack: The attack it is about; None: the whole cell.
        name: Short name that stays the same between versions.
        severity: `warning`: the number may mislead. `note`: good to know.
        message: What was seen and what it means.
        evidence: The measured numbers behind it.
        limit: What the finding does not show; may be empty.
        tensors: Parameters that would have to be withheld or noised to remove the leak.
    """

    cell: str | None = None
    attack: str | None = None
    name: str
    severity: str
    message: str
    evidence: dict[str, JsonValue] = {}
    limit: str = ""
    tensors: list[str] = []


class TunedTry(JsonRecord):
    """One combination of options that an attack was tried with.

    Attributes:
        options: Option to value.
        value: Mean of the metric over the tuning batches; None: the attack gave no result.
    """

    options: dict[str, JsonValue]
    value: float | None


class TunedRow(JsonRecord):
    """Options of one attack that were chosen on batches apart from the scored ones.

    Attributes:
        attack: The attack's name in this run.
        metric: What was compared: `psnr` in dB, of text `rouge_1`.
        chosen: Option to the value that was best; empty: no value gave a result, and the recipe's own stands.
        tried: Every combination, in order.
        batches: Batches of each case that they were tried on.
        run: Folder of the tuning run, within the run folder.
    """

    attack: str
    metric: str
    chosen: dict[str, JsonValue]
    tried: list[TunedTry]
    batches: int
    run: str

    @property
    def words(self) -> str:
        """One line for people."""
        batches = "1 other batch" if self.batches == 1 else f"{self.batches} other batches"
        where = f"of {len(self.tried)} tried on {batches}, none of whose examples is scored"
        if not self.chosen:
            return f"{self.attack} keeps its own options: none {where}, gave a result"
        said = ", ".join(f"{name} = {value}" for name, value in self.chosen.items())
        best = max(one.value for one in self.tried if one.value is not None)
        unit = f"{best:.1f} dB" if self.metric == "psnr" else f"{self.metric} {best:.2f}"
        return f"{self.attack}: {said}, the best {where} ({unit} there)"


class Result(JsonRecord):
    """The content of `result.json`.

    Attributes:
        schema_version: 1. Keys may be added to that version; none is removed or changes its meaning.
        run: The path of the run folder as it was given, or its name where that is absolute.
        verdict: Summary of the run in plain words.
        verdict_level: `exact`, `recognizable`, `traces` or `nothing`; without a truth `certified` or `unscored`.
        rows: One per attack and cell, in the recipe's order of attacks.
        cells: One per client setting.
        thresholds: The thresholds for "recovered" and "exact".
        membership: One per membership test and cell; empty where the recipe asks for none.
        sides: The sides of the verdict.
        bounds: What no attacker can exceed, one per cell and bound.
        epsilons: The measured privacy of each cell's defense.
        tuned: Options that were chosen on other batches than the scored ones, one per attack that took any.
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

    def rows_of(self, cell: Cell) -> list[Row]:
        """The rows of one cell, in the order of the file."""
        return [row for row in self.rows if row.cell == cell.name]

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
