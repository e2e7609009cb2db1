"""`evidence.json`: what was audited, by whom, with what, for how long, what came of it, and what was not tried."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field
from safetensors import SafetensorError, safe_open

from seepage.attacks.network.evidence import MULTIPLE
from seepage.audit.findings import AuditFinding, failed, findings, leaked, reported, worst
from seepage.audit.row import (
    PASSED_OVER,
    Case,
    Diagnostic,
    Outcome,
    Result,
    Row,
    counted_features,
    counted_guesses,
)
from seepage.audit.verdict import caveat_lines, warning_lines
from seepage.base.manifest import FILE, RECORDED_FILES, JudgedFile, read_manifest
from seepage.base.registry import attacks as known_attacks
from seepage.base.registry import membership_tests
from seepage.base.schema import JsonRecord, Share
from seepage.base.storage import read_json
from seepage.base.words import plural
from seepage.errors import SeepageError
from seepage.report.evidence.frameworks import Reference, ThreatModel, references, threat_model
from seepage.report.evidence.sign_off import what_to_sign
from seepage.report.formatting import NO_DATA, defense_words, model_words
from seepage.report.leakage import open_exposed
from seepage.report.page import accuracy_words
from seepage.report.run import RunFolder

OWN_CODE = "the auditor's own code"

CLOSED_FORM = "closed form"
"""What stands in the place of an attack where an update gives examples away exactly by itself."""

YEAR = re.compile(r"\b(?:19|20)\d\d\b")

UNTRIED_PARTS = {
    "reconstruction": "reconstruction of examples",
    "membership_inference": "membership inference",
    "upper_bound": "upper bounds for every attacker",
    "empirical_epsilon": "empirical epsilon of the defense that really runs",
}

LACKING = re.compile("not (tried|known|measured): ")
"""How the words of a part begin that has no finding: a list of what was not tried does not say it again."""

OUT_OF_SCOPE = [
    "a malicious server, which changes the model or picks the clients to learn more",
    "what the trained model remembers of its training data, and what its predictions reveal",
    "properties of a client's data set, or which site an update is from",
    "the network, the machines, and the people",
]

AUDIT_AGAIN = [
    "the architecture, the loss or the way the input reaches the model changes",
    "the model has been trained on: fresh and trained weights leak differently",
    "batch size, local steps, learning rate or optimizer of the client change",
    "the defense, its strength or the code that applies it changes",
    "the client's data become of another kind, or the examples of one person become fewer",
    "an attack is published that is not among those of this run, or seepage gets a new one",
]
"""What ends the validity of a finding."""


IN_RESULT: dict[str, Any] = {
    "cases": {"__all__": {"title_parts", "classes", "baselines", "refusals"}},
    "findings": {"__all__": {"numbers"}},
}
"""Lists that stand in the pack's `result.json`, of thousands of entries for a language model."""


def counted_given(n: int) -> str:
    """Examples that an update reveals without an attack, in words.

    >>> counted_given(1), counted_given(2)
    ('1 example revealed exactly in closed form', '2 examples revealed exactly in closed form')
    """
    return f"{plural(n, 'example')} revealed exactly in closed form"


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


class CaseEvidence(Case):
    """One audited setting: its facts, and what came of them.

    Attributes:
        letter: What it is called on the annex: A, B, ...
        stage: How far the model was trained, in words, and how well it does on unseen examples.
        examples: Private examples that were attacked.
        recovered: Those that the best attack here recovered recognizably or exactly; None without a truth.
        exact: Those that the best attack here reconstructed exactly; None without a truth.
        unscored: Why no share can be given; None where one is.
        certified: Most guesses that one attack certifies to fit what was sent as only a private example would; needs no
            truth.
        tokens: Distinct tokens of the texts that one attack names at the most, of all; None without a truth, or where
            none does.
        identified_tokens: Most tokens that one attack names; needs no truth.
        certified_features: Most inner features that one attack certifies, which are no examples; needs no truth.
        best: The attack that recovered or certified most; None where none did any.
        sent: Numbers in one update.
        private: Numbers in the private inputs behind one update.
        ratio: Sent numbers per private number: below 1, inputs without structure cannot all be in the update.
        labels: How many classes there are, and whether the attacker knew the labels; empty where none are known.
        observations: What the values of the update show, in words: likeness to a defense such as clipping, a number
            format, or a multiple of the gradient of the stated loss.
        judged_files: What was judged: the captured files, or those of the recording.
    """

    letter: str = ""
    stage: str | None = None
    examples: int | None
    recovered: CaseShare | None
    exact: CaseShare | None
    unscored: str | None = None
    certified: int
    certified_features: int = 0
    tokens: CaseShare | None = None
    identified_tokens: int = 0
    best: str | None
    sent: int | None
    private: int | None
    ratio: float | None
    labels: str = ""
    observations: list[str] = []
    judged_files: list[JudgedFile] = []

    @property
    def model_words(self) -> str:
        """The model with its size, for people."""
        return model_words(self.model or "not known", {}, self.parameters)

    @property
    def data_words(self) -> str:
        """The data with the place they come from, for people."""
        if self.data is None:
            return NO_DATA
        return f"{self.data} ({self.data_source})" if self.data_source else self.data

    @property
    def defense_words(self) -> str:
        """The defense, for people: of updates that somebody else recorded it is not known."""
        return defense_words(self.defense, self.data)

    @property
    def exact_words(self) -> str:
        """What was reconstructed exactly, for people."""
        if self.exact is None:
            return "not scored"
        return f"inconclusive ({self.exact.words})" if self.inconclusive is not None else self.exact.words

    @property
    def recovered_words(self) -> str:
        """What was reconstructed, for people: without a truth what is certified, and of what."""
        named = f"{self.tokens.words if self.tokens else f'{self.identified_tokens:,}'} distinct tokens identified"
        if self.inconclusive is not None and self.recovered is not None:
            return f"inconclusive ({self.recovered.words})"
        if self.recovered is not None:
            return f"{self.recovered.words}; {named}" if self.identified_tokens else self.recovered.words
        if self.certified:
            return f"not scored; {counted_guesses(self.certified)}"
        if self.exposed_examples:
            return f"not scored; {counted_given(self.exposed_examples)}"
        if self.identified_tokens:
            return named
        return f"not scored; {counted_features(self.certified_features)}" if self.certified_features else "not scored"


class AttackEvidence(JsonRecord):
    """One attack or membership test of the run; what came of it say the findings.

    Attributes:
        kind: Which of the two.
        name: Its name in this run.
        source: Where it was published; `OWN_CODE` for the auditor's own.
        year: Year of the latest publication in `source`.
    """

    kind: Literal["attack", "membership"]
    name: str
    source: str
    year: int | None


def leaks_words(found: Sequence[AuditFinding]) -> str:
    """On how many cases an attack leaks, for people: what is not known is no zero.

    >>> facts = dict(kind="attack", by="x", title="", case="a", severity="note", words="")
    >>> leaks_words([AuditFinding(state="open", **facts)])
    'not known'
    >>> leaks_words([AuditFinding(state=state, **facts) for state in ("open", "quiet")])
    '0; not known of 1'
    """
    ran = [one.state for one in found if one.ran]
    leaks, unknown = ran.count("leaks"), sum(state in ("unjudged", "open") for state in ran)
    if not leaks and unknown == len(ran):
        return "not known"
    return f"{leaks}{f'; not known of {unknown}' if unknown else ''}"


class Evidence(JsonRecord):
    """The content of `evidence.json`.

    Attributes:
        schema_version: 1.
        subject: What was audited, in the auditor's words.
        auditor: Who says so.
        run: Name of the run folder.
        started: When the run was started.
        seconds: Wall time of the run; of its last part, where it was interrupted and `resumed`.
        tool: `seepage` and its version.
        environment: Versions and machine.
        seed: The seed of all randomness.
        command: The command, where it was recorded.
        verdict: In plain words.
        level: `exact`, `recognizable`, `partial`, `nothing`, `certified`, `inconclusive` or `unscored`.
        warnings: The diagnostics by which a number may mislead.
        summary: The four parts of the verdict, in words.
        maximum_risk: Of the case with most reconstructions: the share of its examples that the best attack recovered.
        average_risk: Over all cases: the examples that the best attack of each case recovered.
        cases: One per audited setting.
        findings: One per attack or membership test and case, closed form that no attack shows, and measured epsilon.
        attacks: One per attack and membership test.
        threat_model: Who the attacker is.
        references: Entries of public catalogs that this evidence speaks of.
        thresholds: When an example counts as recovered or exact.
        not_tried: What this run says nothing of.
        may_sign: What may be signed after this run, and what not.
        audit_again: What ends the validity of this finding.
    """

    schema_version: Literal[1] = 1
    subject: str
    auditor: str
    run: str
    started: str | None
    seconds: float | None
    resumed: bool = False
    tool: str
    environment: dict[str, str]
    seed: int | None
    command: str | None
    verdict: str
    level: str
    warnings: list[Diagnostic] = Field(default_factory=list)
    summary: dict[str, str]
    maximum_risk: CaseShare | None
    average_risk: CaseShare | None
    cases: list[CaseEvidence]
    findings: list[AuditFinding]
    attacks: list[AttackEvidence]
    threat_model: ThreatModel
    references: list[Reference]
    thresholds: dict[str, float]
    not_tried: list[str]
    may_sign: str | None = None
    audit_again: list[str]

    def record(self) -> dict[str, Any]:
        """The evidence as JSON."""
        return self.model_dump(mode="json", exclude=IN_RESULT)

    @property
    def judged(self) -> list[CaseEvidence]:
        """The cases that were asked for, without those that only show that the attacks work."""
        return [case for case in self.cases if not case.control]

    @property
    def warning_lines(self) -> list[str]:
        """The warnings in words, with the cases by their letters."""
        return warning_lines(
            self.warnings, [one.model_copy(update={"title": f"case {one.letter}"}) for one in self.cases]
        )

    def of(self, attack: AttackEvidence) -> list[AuditFinding]:
        """The findings of one attack or test."""
        return [one for one in self.findings if (one.kind, one.by) == (attack.kind, attack.name)]

    def risk_words(self, share: CaseShare | None) -> str:
        """A share of all cases for people: of nothing, where that says nothing, it is no finding."""
        if share is None:
            return f"not scored: {self.unscored}"
        doubtful = not share.hits and any(case.inconclusive is not None for case in self.judged)
        return f"inconclusive ({share.words})" if doubtful else share.words

    def lettered(self, words: str) -> str:
        """Words in which each case is called by its letter in place of its title."""
        for case in sorted(self.cases, key=lambda one: -len(one.title)):
            words = re.sub(rf"(?<!\w){re.escape(case.title)}(?!\w)", f"case {case.letter}", words)
        return words

    @property
    def unscored(self) -> str:
        """Why no share can be given of any case, each reason once."""
        return " and ".join(dict.fromkeys(case.unscored for case in self.judged if case.unscored))

    @property
    def caveats(self) -> list[str]:
        """Caveats on what was stated of the updates, each once, with its cases where these are not all."""
        return caveat_lines(self.cases)


def evidence_of(run: RunFolder, *, subject: str = "", auditor: str = "") -> Evidence:
    """The evidence of a finished run.

    Args:
        run: The run.
        subject: What was audited; empty: the models and data sets of the run.
        auditor: Who audited; empty: said to be not stated.
    """
    result = run.result
    cases = [_case(run, case, _letter(place)) for place, case in enumerate(result.cases)]
    judged = [case for case in cases if not case.control]
    attack_records, audit_findings = _attacks(run), reported(findings(result))
    known_words = list(dict.fromkeys(word for row in result.rows for word in row.known))
    side_information = list(dict.fromkeys(word for row in result.rows for word in row.side_information))
    used = [known_attacks.get(_use(name, _uses(run))) for name in run.attacks]
    learned_prior = any(entry is not None and entry.facts.get("learned_prior") for entry in used)
    models_on_data = sorted(
        {f"{one.model} on {one.data}" if one.data else one.model for one in result.cases if one.model}
    )
    facts = {"python": run.env.python, "torch": run.env.torch, "platform": run.env.platform, "device": run.env.device}
    return Evidence(
        subject=subject or f"updates of {', '.join(models_on_data) or 'a captured model'}",
        auditor=auditor or "not stated",
        run=run.name,
        started=run.env.started,
        seconds=run.env.seconds,
        resumed=run.env.resumed,
        tool=f"seepage {run.env.seepage or 'of an unknown version'}",
        environment={name: value for name, value in facts.items() if value},
        seed=run.seed if type(run.seed) is int else None,
        command=run.shown_command,
        verdict=result.verdict,
        level=result.verdict_level,
        summary={part.title: part.words for part in result.summary},
        warnings=[flag for flag in run.flags if flag.severity == "warning"],
        maximum_risk=_maximum(judged),
        average_risk=_average(judged),
        cases=cases,
        findings=audit_findings,
        attacks=attack_records,
        threat_model=threat_model(known_words, side_information, learned_prior=learned_prior),
        references=references(
            membership=bool(result.membership),
            epsilon=bool(result.epsilons) or any(case.promise is not None for case in result.cases),
        ),
        thresholds={
            name: value
            for name in ("recovered_likeness", "recovered_gain_db", "exact_db")
            if (value := getattr(result.thresholds, name)) is not None
        },
        not_tried=_not_tried(run, attack_records, audit_findings),
        may_sign=what_to_sign(result),
        audit_again=[*AUDIT_AGAIN, f"a year has passed: from {_year_after(run.env.started)} on in any case"],
    )


def _year_after(started: str | None) -> str:
    try:
        day = datetime.fromisoformat(started or "").date()
    except ValueError:
        day = datetime.now(UTC).date()
    # 29 February has no anniversary; the day before is as good.
    return day.replace(year=day.year + 1, day=min(day.day, 28) if day.month == 2 else day.day).isoformat()


# --- cases -------------------------------------------------------------------------------------------------------


def _letter(place: int) -> str:
    """A, B, ..., Z, AA, AB, ...

    >>> _letter(0), _letter(25), _letter(26), _letter(701), _letter(702)
    ('A', 'Z', 'AA', 'ZZ', 'AAA')
    """
    letters = ""
    while place >= 0:
        place, last = divmod(place, 26)
        letters, place = f"{chr(ord('A') + last)}{letters}", place - 1
    return letters


def _case(run: RunFolder, case: Case, letter: str) -> CaseEvidence:
    rows = [row for row in run.rows_of(case) if row.scored and row.examples]
    best = worst(run.rows_of(case), "recovered") if run.rows_of(case) else None
    sent, private = _sent(run.folder, case), _private(run.folder, case)
    return CaseEvidence(
        **dict(case) | {"title": case.heading},
        letter=letter,
        stage="; ".join(filter(None, (case.history, accuracy_words(case)))) or None,
        examples=next((row.examples for row in run.rows_of(case) if row.examples), None),
        recovered=_most(rows, "recovered", case),
        exact=_most(rows, "exact", case),
        unscored=None if rows or (case.exposed_examples and case.baselines) else _unscored(run.rows_of(case), case),
        certified=max((row.certified_examples for row in run.rows_of(case)), default=0),
        certified_features=max((row.certified_features for row in run.rows_of(case)), default=0),
        tokens=_tokens(run.rows_of(case)),
        identified_tokens=max((row.identified_tokens for row in run.rows_of(case)), default=0),
        best=best.attack if best is not None and leaked(best) else CLOSED_FORM if case.exposed_examples else None,
        sent=sent,
        private=private,
        ratio=None if not sent or not private else round(sent / private, 4),
        labels=_labels(run.rows_of(case), case),
        observations=_observations(run, case),
        judged_files=_judged(run, case),
    )


TARGETS = {"class": ("class", "classes"), "map": ("class at each pixel", "classes at each pixel")}
"""What is counted of the targets, for one of them and for several."""


def _labels(rows: Sequence[Row], case: Case) -> str:
    """How many classes, and how the attacker knew the labels. Which labels were read stays out: they are private."""
    if not case.classes or case.target not in TARGETS:
        return "values, no classes" if case.target == "value" else "next tokens, no classes" if case.baselines else ""
    known = sum("labels" in row.known for row in rows)
    how = "not known to the attacker"
    if known:
        how = "known to the attacker" if known == len(rows) else f"known to {known} of {len(rows)} attacks"
    elif "labels" in (case.inferred or {}):
        how = "not known to the attacker but inferred from the update"
    return f"of {len(case.classes):,} {TARGETS[case.target][len(case.classes) > 1]}, {how}"


def _observations(run: RunFolder, case: Case) -> list[str]:
    """What the update's values look like, and what attacks found it to be a multiple of; each once."""
    exposed = [one for one in open_exposed(run.folder) if one.case == case.name]
    looks = [f"the update {look}" for one in exposed for look in one.looks_like]
    notes = [note for row in run.rows_of(case) for note in row.notes if MULTIPLE in note]
    return list(dict.fromkeys([*looks, *(note for note in notes if note.startswith("the update"))]))


def _judged(run: RunFolder, case: Case) -> list[JudgedFile]:
    """The captured files, as the run noted them; else those of the recording that lies in its folder."""
    noted = [one for one in run.env.files if one.case == case.name]
    if noted or not (run.folder / FILE).exists():
        return noted
    known = read_manifest(run.folder).files
    found = ((f"observed/{case.name}/{path}", f"observed/{path}", what) for path, what in RECORDED_FILES.items())
    places = ((next((one for one in two if one in known), None), what) for *two, what in found)
    return [
        JudgedFile(case=case.name, what=what, name=path, sha256=known[path].sha256)
        for path, what in places
        if path is not None
    ]


def _unscored(rows: Sequence[Row], case: Case) -> str:
    """Why no row of a case is scored: whether the truth was at hand is seen by what was measured of it beforehand."""
    spoke = [row for row in rows if row.gave_result]
    if not spoke:
        return "no attack gave a result"
    if all(row.outcome is Outcome.TOKENS_IDENTIFIED for row in spoke):
        return "a set of tokens alone was reconstructed"
    if all(row.outcome is Outcome.FEATURES_ONLY for row in spoke):
        return "inner features alone were reconstructed"
    if all(row.outcome in (Outcome.FEATURES_ONLY, Outcome.MIXTURE_ONLY) for row in spoke):
        return "inner features were found mixed, and not separated"
    return "no guess could be scored" if case.baselines else "no truth was at hand"


def _most(rows: Sequence[Row], share: str, case: Case) -> CaseShare | None:
    """The largest share of examples that an attack reconstructed, or that is revealed in closed form."""
    counts = [(row.count(share), row.examples, False) for row in rows]
    counts += [(*case.closed_form, True)] if case.exposed_examples and (rows or case.baselines) else []
    whole = [CaseShare.count(hits, of, closed_form=closed) for hits, of, closed in counts if hits is not None and of]
    return max(whole, key=lambda one: one.hits / one.of, default=None)


def _tokens(rows: Sequence[Row]) -> CaseShare | None:
    """Named tokens that are right, of all distinct ones, by the attack that names most of them."""
    shares = [row.scores["token_recall"] for row in rows if "token_recall" in row.scores]
    most = max((share for share in shares if share.n), key=lambda share: share.mean, default=None)
    return None if most is None or most.n is None else CaseShare.count(round(most.mean * most.n), most.n)


def _maximum(cases: Sequence[CaseEvidence]) -> CaseShare | None:
    scored = [case.recovered for case in cases if case.recovered is not None]
    return max(scored, key=lambda share: (share.hits / share.of, share.hits), default=None)


def _average(cases: Sequence[CaseEvidence]) -> CaseShare | None:
    scored = [case.recovered for case in cases if case.recovered is not None]
    return CaseShare.count(sum(one.hits for one in scored), sum(one.of for one in scored)) if scored else None


def _observed(folder: Path, case: Case) -> Path | None:
    """The folder of a case's updates within the run; None where they lie elsewhere, as those that others captured."""
    for place in (folder / "observed" / case.name, folder / "observed"):
        if (place / "knowledge.json").is_file():
            return place
    return None


def _sent(folder: Path, case: Case) -> int | None:
    """Numbers in the first round's update, by the head of its file alone; else the model's parameters."""
    place = _observed(folder, case)
    files = sorted((place / "rounds").glob("*.safetensors")) if place is not None else []
    if not files:
        return case.parameters
    try:
        with safe_open(files[0], framework="numpy") as opened:
            names = [name for name in opened.keys() if name.startswith("update/")]  # noqa: SIM118
            return sum(math.prod(opened.get_slice(name).get_shape()) for name in names) or case.parameters
    except (OSError, SafetensorError):
        return case.parameters


def _private(folder: Path, case: Case) -> int | None:
    """Numbers in the inputs of one batch."""
    place = _observed(folder, case)
    if place is None or not case.batch_size:
        return None
    shape = read_json(place / "knowledge.json").get("input_shape")
    whole = isinstance(shape, list) and all(type(side) is int and side > 0 for side in shape)
    return case.batch_size * math.prod(shape) if whole else None


# --- attacks -----------------------------------------------------------------------------------------------------


def _uses(run: RunFolder) -> dict[str, str]:
    """An attack's name in the run to its registered name, as far as recipe or request tell."""
    tables: list[Any] = []
    try:
        recipe = run.tables
        tables += [recipe.get("attack"), *(case.get("attack") for case in recipe.get("case", ()))]
        if run.recipe is None and (run.folder / "attack.json").exists():
            tables.append(read_json(run.folder / "attack.json").get("attacks"))
    except (AttributeError, TypeError, SeepageError):
        return {}
    parts = [part for table in tables if isinstance(table, list) for part in table if isinstance(part, Mapping)]
    return {str(part.get("label") or part.get("use")): str(part.get("use")) for part in parts}


def _use(name: str, uses: Mapping[str, str]) -> str:
    """The registered name behind a name in the run, such as `dlg` behind the second one, `dlg-2`."""
    return uses.get(name) or uses.get(re.sub(r"-\d+$", "", name)) or name


def _published(
    kind: Literal["attack", "membership"], name: str, use: str, registry: Mapping[str, Any]
) -> AttackEvidence:
    entry = registry.get(use)
    source = str(entry.facts.get("paper", "")) if entry is not None else OWN_CODE
    years = [int(year) for year in YEAR.findall(source)]
    return AttackEvidence(kind=kind, name=name, source=source or "not published", year=max(years, default=None))


def _attacks(run: RunFolder) -> list[AttackEvidence]:
    """One entry for each attack, then for each membership test."""
    uses, tests = _uses(run), dict.fromkeys(row.test for row in run.result.membership)
    return [
        *(_published("attack", name, _use(name, uses), known_attacks) for name in run.attacks),
        *(_published("membership", name, name, membership_tests) for name in tests),
    ]


# --- not tried ---------------------------------------------------------------------------------------------------


def _not_tried(run: RunFolder, tried: Sequence[AttackEvidence], listed: Sequence[AuditFinding]) -> list[str]:
    result, uses = run.result, _uses(run)
    spoke = any(row.gave_result for row in result.rows)  # then what was reconstructed was tried, though it is not known
    lacking = [part for part in result.summary if not part.tried and not (spoke and part.name == "reconstruction")]
    lacking = [part for part in lacking if not part.words.startswith("no bound")]  # one was looked for, and none holds
    found = [f"{UNTRIED_PARTS.get(part.name, part.title)}: {LACKING.sub('', part.words, 1)}" for part in lacking]
    found += [f"{case.heading}: {case.inconclusive}" for case in result.cases if case.inconclusive is not None]
    found += [f"{case.heading}: {case.skipped}" for case in result.cases if case.skipped]
    titles = result.titles
    for row in filter(failed, result.judged_rows):
        how = "was not tried" if row.outcome is Outcome.NOT_TRIED else "failed"
        found.append(f"{row.attack} on {titles[row.case]} {how}: {row.reason}")
    passed_over = {row.attack for row in result.rows if row.status in PASSED_OVER}
    ran = {(one.kind, one.by) for one in listed if one.ran}
    barred = [one for one in tried if (one.kind, one.name) not in ran and one.name not in passed_over]
    reasons = {row.attack: row.reason for row in result.rows if row.reason}
    found += [f"{one.name}: applies to no case of this run{_because(reasons.get(one.name))}" for one in barred]
    used = {_use(one.name, uses) for one in tried}
    found += _unused("attacks", used, known_attacks, _refused(result))
    found += _unused("membership tests", used, membership_tests) if result.membership else []
    return [*found, *OUT_OF_SCOPE]


def _because(reason: str | None) -> str:
    return "" if reason is None else f": {reason}"


def _refused(result: Result) -> set[str]:
    """Attacks that nobody asked for and that can say nothing of any case, as far as every case was looked at."""
    refused = [case.refusals for case in result.cases if not case.skipped]
    looked = [set(one) for one in refused if one is not None]
    return set.intersection(*looked) if looked and len(looked) == len(refused) else set()


def _unused(kind: str, used: Iterable[str], registry: Mapping[str, Any], refused: Iterable[str] = ()) -> list[str]:
    """The names that a run did not ask for; those that cannot apply apart."""
    left = set(registry) - set(used)
    names, barred = sorted(left - set(refused)), sorted(left & set(refused))
    which = "that this run did not ask for, and that may apply" if barred else "that this run did not ask for"
    found = [f"{kind} of seepage {which}: {', '.join(names)}"] if names else []
    said = f"{kind} that apply to no case as it was recorded, with what the attacker knew: {', '.join(barred)}"
    return [*found, said] if barred else found


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `evidence.json`."""
    schema = Evidence.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "evidence.schema.json", **schema}
