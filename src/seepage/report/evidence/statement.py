"""What is filed of a run beside its result: its findings, by whom, with what, for how long, and what was not tried."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from seepage.attacks.network.evidence import MULTIPLE
from seepage.audit.findings import AuditFinding, failed, findings, reported
from seepage.audit.gate import met, parse_condition
from seepage.audit.row import PASSED_OVER, Case, Outcome, Result, Row
from seepage.audit.verdict import caveat_lines, warning_lines
from seepage.base.manifest import FILE, RECORDED_FILES, JudgedFile, read_manifest
from seepage.base.registry import attacks as known_attacks
from seepage.base.registry import membership_tests
from seepage.base.schema import JsonRecord
from seepage.base.storage import read_json
from seepage.base.words import places_of, plural
from seepage.errors import SeepageError
from seepage.measure.metrics import METRICS
from seepage.report.evidence.frameworks import ThreatModel, asked, threat_model
from seepage.report.evidence.sign_off import what_to_sign
from seepage.report.formatting import duration
from seepage.report.leakage import open_exposed
from seepage.report.run import RunFolder
from seepage.report.table import CaseShare, share_of

OWN_CODE = "the auditor's own code"

LACKING = re.compile("not (tried|known|measured): ")
"""How the words of a part begin that has no finding: a list of what was not tried does not say it again."""

OUT_OF_SCOPE = [
    "a malicious server, which changes the model or picks the clients to learn more",
    "what the released model and its predictions reveal: this complements, and does not replace, tests of it",
    "attribute inference: what of a record that is known in part tells the rest",
    "properties of a client's data set, or which site an update is from",
    "the network, the machines, and the people",
]

BARRED = "that apply to no case as it was recorded"
"""Said of attacks that nobody asked for and that could have found nothing; the annex leaves these out."""

NOISE = "of the noise: whether its randomness is secure, and what floating-point numbers do to it"
"""What nobody looks at behind an epsilon."""

NO_RUN = {
    "skipped": "does not apply to",
    "open": "does not apply to",
    "unneeded": "not needed on",
    "untried": "failed or not tried on",
}
"""State of a finding of an attack that did not run, in words."""

AUDIT_AGAIN = [
    "the architecture, the loss or the way the input reaches the model changes",
    "the model has been trained on, or more rounds are sent: weights leak differently, and rounds add up",
    "batch size, local steps, learning rate or optimizer of the client change",
    "the defense, its strength or the code that applies it changes",
    "the client's data become of another kind, or the examples of one person become fewer",
    "an attack is published that this run lacks",
]
"""What ends the validity of a finding."""


def leaks_words(found: Sequence[AuditFinding]) -> str:
    """On how many cases an attack ran, and leaks, for people: what is not known is no zero.

    >>> facts = dict(kind="attack", by="x", title="", case="a", severity="note", words="")
    >>> leaks_words([AuditFinding(state="open", **facts)])
    'ran on 1 of 1, leaks: not known'
    >>> leaks_words([AuditFinding(state=state, **facts) for state in ("open", "quiet")])
    'ran on 2 of 2, leaks: 0; not known of 1'
    >>> leaks_words([AuditFinding(state=state, ran=False, **facts) for state in ("skipped", "untried")])
    'ran on none of 2 (does not apply to 1; failed or not tried on 1)'
    """
    ran = [one.state for one in found if one.ran]
    if not ran:
        states = [one.state for one in found]
        why = "; ".join(f"{words} {states.count(state)}" for state, words in NO_RUN.items() if state in states)
        return f"ran on none of {len(found)} ({why})"
    leaks, unknown = ran.count("leaks"), sum(state in ("unjudged", "open") for state in ran)
    known = f"{leaks}{f'; not known of {unknown}' if unknown else ''}" if leaks or unknown < len(ran) else "not known"
    return f"ran on {len(ran)} of {len(found)}, leaks: {known}"


class Evidence(JsonRecord):
    """What is filed of a run. `record` is the content of `evidence.json`, which stands beside the `result.json`.

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
        result: The result.
        findings: One per attack or membership test and case, closed form that no attack shows, and measured epsilon.
        sources: Each attack and membership test of the run, to where it was published; `OWN_CODE` for one's own.
        observations: Name of each case, to what the values of its update show, in words: likeness to a defense such as
            clipping, a number format, or a multiple of the gradient of the stated loss.
        judged_files: What was judged: the captured files, or those of the recording.
        threat_model: Who the attacker is.
        not_tried: What this run says nothing of.
        may_sign: What may be signed after this run, and what not.
        threshold: The condition of `--fail-if` that the command set, and whether it is met; None: it set none.
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
    result: Result
    findings: list[AuditFinding]
    sources: dict[str, str]
    observations: dict[str, list[str]]
    judged_files: list[JudgedFile]
    threat_model: ThreatModel
    not_tried: list[str]
    may_sign: str | None = None
    threshold: str | None = None
    audit_again: list[str]

    def record(self) -> dict[str, Any]:
        """The evidence as JSON, without the result, which stands in a file of its own."""
        risks = {"maximum_risk": self.maximum_risk, "average_risk": self.average_risk}
        facts = self.model_dump(mode="json", exclude={"result": True, "findings": {"__all__": {"numbers"}}})
        return {
            **facts,
            "verdict": self.result.verdict,
            "level": self.result.verdict_level,
            "summary": self.summary,
            "asked": self.asked,
            **{name: None if share is None else share.model_dump(mode="json") for name, share in risks.items()},
        }

    @cached_property
    def letters(self) -> dict[str, str]:
        """Name of each case to what it is called on the annex: A, B, ..."""
        return {case.name: _letter(place) for place, case in enumerate(self.result.cases)}

    @property
    def asked(self) -> list[tuple[str, str, str]]:
        """What public texts ask for: where, what, and who fills it in."""
        bounded = any(row.value is not None for row in self.result.bounds)
        return asked(bounded=bounded, epsilon=_has_epsilon(self.result))

    @property
    def cost(self) -> str:
        """What the attacks took and needed, for whoever weighs how likely they are."""
        ran = [one for one in self.findings if one.ran and one.kind in ("attack", "membership")]
        own = any(source == OWN_CODE for source in self.sources.values())
        on = ", ".join(filter(None, (self.environment.get(name) for name in ("device", "platform"))))
        needs = f"public software{' and ' + OWN_CODE if own else ' only'}"
        worst = max((one for one in ran if one.state == "leaks"), key=lambda one: one.seconds, default=None)
        longest = f", the longest that leaks {duration(worst.seconds)}" if worst else ""
        return f"all attacks {duration(sum(one.seconds for one in ran))}{longest}, on {on or 'a machine'}; {needs}"

    @property
    def summary(self) -> dict[str, str]:
        """The four parts of the verdict, in words."""
        return {part.title: part.words for part in self.result.summary}

    @property
    def warning_lines(self) -> list[str]:
        """The warnings in words, with the cases by their letters."""
        cases = self.result.cases
        lettered = [one.model_copy(update={"title": f"case {self.letters[one.name]}"}) for one in cases]
        return warning_lines(self.result.warnings, lettered)

    @property
    def caveats(self) -> list[str]:
        """Caveats on what was stated of the updates, each once, with its cases where these are not all."""
        return caveat_lines(self.result.cases)

    @cached_property
    def _recovered(self) -> list[CaseShare]:
        return [share for case in self.result.judged if (share := share_of(self.result, case)) is not None]

    @property
    def maximum_risk(self) -> CaseShare | None:
        """Of the case with most reconstructions: the share of its examples that the best attack recovered."""
        return max(self._recovered, key=lambda share: (share.hits / share.of, share.hits), default=None)

    @property
    def average_risk(self) -> CaseShare | None:
        """Over all cases: the examples that the best attack of each case recovered."""
        found = self._recovered
        return CaseShare.count(sum(one.hits for one in found), sum(one.of for one in found)) if found else None

    def risk_words(self, share: CaseShare | None) -> str:
        """A share of all cases for people: of nothing, where that says nothing, it is no finding."""
        if share is None:
            return f"not scored: {self.unscored}"
        doubtful = not share.hits and any(case.inconclusive is not None for case in self.result.judged)
        return f"inconclusive ({share.words})" if doubtful else share.words

    @property
    def reconstruction(self) -> str:
        """What the best attack recovered of a case; else what is certified or read in closed form; else why not."""
        if self.maximum_risk:
            return f"{self.risk_words(self.maximum_risk)}, by the best attack tried"
        part = next((one for one in self.result.summary if one.name == "reconstruction" and one.tried), None)
        return self.risk_words(None) if part is None else self.lettered(part.words)

    def lettered(self, words: str) -> str:
        """Words in which each case is called by its letter in place of its title."""
        for case in sorted(self.result.cases, key=lambda one: -len(one.heading)):
            words = re.sub(rf"(?<!\w){re.escape(case.heading)}(?!\w)", f"case {self.letters[case.name]}", words)
        return words

    @property
    def unscored(self) -> str:
        """Why no share can be given of any case, each reason once."""
        lacking = (case for case in self.result.judged if share_of(self.result, case) is None)
        return " and ".join(dict.fromkeys(_unscored(self.result.rows_of(case), case) for case in lacking))


def evidence_of(run: RunFolder, *, subject: str = "", auditor: str = "") -> Evidence:
    """The evidence of a finished run.

    Args:
        run: The run.
        subject: What was audited; empty: the models and data sets of the run.
        auditor: Who audited; empty: said to be not stated.
    """
    result, uses = run.result, _uses(run)
    known_words = list(dict.fromkeys(word for row in result.rows for word in row.known))
    side_information = list(dict.fromkeys(word for row in result.rows for word in row.side_information))
    used = [known_attacks.get(_use(name, uses)) for name in run.attacks]
    learned_prior = any(entry is not None and entry.facts.get("learned_prior") for entry in used)
    models_on_data = sorted(
        {f"{one.model} on {one.data}" if one.data else one.model for one in result.cases if one.model}
    )
    facts = {"python": run.env.python, "torch": run.env.torch, "platform": run.env.platform, "device": run.env.device}
    sources = {name: _source(_use(name, uses), known_attacks) for name in run.attacks}
    sources |= {row.test: _source(row.test, membership_tests) for row in result.membership}
    found = reported(findings(result))
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
        result=result,
        findings=found,
        sources=sources,
        observations={case.name: _observations(run, case) for case in result.cases},
        judged_files=[file for case in result.cases for file in _judged(run, case)],
        threat_model=threat_model(known_words, side_information, learned_prior=learned_prior),
        not_tried=_not_tried(run, found),
        may_sign=what_to_sign(result),
        threshold=_threshold(run),
        audit_again=[*AUDIT_AGAIN, f"a year has passed: from {_year_after(run.env.started)} on in any case"],
    )


def _threshold(run: RunFolder) -> str | None:
    """The gate of the run's own command, with its answer."""
    try:
        words = shlex.split(run.env.command or "")
    except ValueError:  # a quotation that never ends is no command
        words = []
    given = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--fail-if"]
    given += [word.partition("=")[2] for word in words if word.startswith("--fail-if=")]
    if not given:
        return None
    try:
        condition = parse_condition(given[-1], tuple({*METRICS, *run.result.thresholds.metrics}))
        hits = met(run.result, condition)
    except SeepageError as error:
        return f"{given[-1]} is not accepted: cannot be judged ({error})"
    if not hits and run.result.is_open:
        return f"{condition} is not accepted: undecided, as nothing could be scored or is known to work"
    return f"{condition} is not accepted: it holds of {plural(len(hits), 'row') if hits else 'no row'}"


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


def _observations(run: RunFolder, case: Case) -> list[str]:
    """What the update's values look like, and what attacks found it to be a multiple of; each once."""
    exposed = [one for one in open_exposed(run.folder) if one.case == case.name]
    looks = [f"the update {look}" for one in exposed for look in one.looks_like]
    notes = [note for row in run.result.rows_of(case) for note in row.notes if MULTIPLE in note]
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


def _source(use: str, registry: Mapping[str, Any]) -> str:
    """Where an attack or test was published."""
    entry = registry.get(use)
    return OWN_CODE if entry is None else str(entry.facts.get("paper", "")) or "not published"


# --- not tried ---------------------------------------------------------------------------------------------------


def _not_tried(run: RunFolder, listed: Sequence[AuditFinding]) -> list[str]:
    result, uses = run.result, _uses(run)
    spoke = any(row.gave_result for row in result.rows)  # then what was reconstructed was tried, though it is not known
    lacking = [part for part in result.summary if not part.tried and not (spoke and part.name == "reconstruction")]
    lacking = [part for part in lacking if not part.words.startswith("no bound")]  # one was looked for, and none holds
    found = [f"{part.title}: {LACKING.sub('', part.words, 1)}" for part in lacking]
    reasons = [(case.heading, why) for case in result.cases for why in (case.inconclusive, case.skipped) if why]
    found += [f"{', '.join(where)}: {why}" for why, where in places_of(reasons).items()]
    titles = result.titles
    for row in filter(failed, result.judged_rows):
        how = "was not tried" if row.outcome is Outcome.NOT_TRIED else "failed"
        found.append(f"{row.attack} on {titles[row.case]} {how}: {row.reason}")
    passed_over = {row.attack for row in result.rows if row.status in PASSED_OVER}
    ran = {one.by for one in listed if one.ran}
    tried = list(dict.fromkeys([*run.attacks, *(row.test for row in result.membership)]))
    why_not = {row.attack: f": {row.reason}" for row in result.rows if row.reason}
    barred = [name for name in tried if name not in ran and name not in passed_over]
    found += [f"{name}: applies to no case of this run{why_not.get(name, '')}" for name in barred]
    used = {_use(name, uses) for name in tried}
    found += _unused("attacks", used, known_attacks, _refused(result))
    found += _unused("membership tests", used, membership_tests) if result.membership else []
    return [*found, *OUT_OF_SCOPE, *[NOISE] * _has_epsilon(result)]


def _has_epsilon(result: Result) -> bool:
    return bool(result.epsilons) or any(case.promise is not None for case in result.cases)


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
    said = f"{kind} {BARRED}, with what the attacker knew: {', '.join(barred)}"
    return [*found, said] if barred else found
