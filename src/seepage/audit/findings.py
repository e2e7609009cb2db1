"""One finding per attack, closed form, membership test, bound and measured epsilon of a result, each made here once.

Gate, comparison, evidence pack and its formats read `findings(result)`. Verdict, frontier and page quote rows, of which
`worst` alone says which one is meant.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Literal, TypeVar

from seepage.audit.outcome import PASSED_OVER
from seepage.audit.row import (
    MEMBERSHIP_SCORES,
    UNTRUE,
    BoundRow,
    Case,
    EpsilonRow,
    MembershipRow,
    Outcome,
    Result,
    Row,
)
from seepage.base.schema import Finding, JsonRecord

State = Literal["leaks", "quiet", "unjudged", "skipped", "unneeded", "untried", "open"]
"""State of a finding.

`leaks`: data were reconstructed, members identified, or a claim is contradicted. `quiet`: tried without success.
`unjudged`: guesses were returned, and there is no truth to compare them with. `skipped`: it does not apply.
`unneeded`: another attack shows as much. `untried`: it was requested and has no result, so that its success is not
known. `open`: the leakage of its case is not known, since nothing there could be scored, no attack applies, or the
failure of the attacks is no evidence of safety."""

Severity = Literal["error", "warning", "note"]

Measure = Literal["recovered", "exact", "identified", "certified", "contradicted"]

Kind = Literal["attack", "closed_form", "membership", "bound", "epsilon"]

BOUND_SCORES = {"bound_members_identified": "tpr", "bound_exact": "exact_share"}
"""Bounds in a condition of the gate, and what they bound."""

EPSILON_SCORES = ("empirical_epsilon", "fitted_epsilon", "contradicted")
"""Measurements of a defense's epsilon in a condition; `contradicted` is how many claims are."""


class AuditFinding(JsonRecord):
    """One finding.

    Attributes:
        kind: What looked.
        by: Its name: that of the attack or test, the bounded measure, `closed_form` or `epsilon`.
        title: Title of the case.
        case: Its name, which stays the same where the title is worded anew.
        state: What came of it.
        severity: `error`: exact copies, identified members or a contradicted claim; `warning`: recognizable copies,
            or no result; `note`: all else.
        words: The finding in words.
        ran: Whether it has a result.
        seconds: Wall time.
        options: Every option with its value.
        why: Why it has no result.
        numbers: Scores that a condition of the gate may ask for.
        counts: Measure to so many, of so many; None: of how many is not known.
    """

    kind: Kind
    by: str
    title: str
    case: str
    state: State
    severity: Severity
    words: str
    ran: bool = True
    seconds: float = 0.0
    options: str = ""
    why: str = ""
    numbers: dict[str, float] = {}
    counts: dict[Measure, tuple[int, int | None]] = {}

    @property
    def fingerprint(self) -> str:
        """Identifier, equal in all runs of the same attack on the same case, by which platforms match findings."""
        return sha256(f"{self.kind}\0{self.by}\0{self.case}".encode()).hexdigest()[:32]


def findings(result: Result) -> list[AuditFinding]:
    """All findings of a run in its order; cases that only show that the attacks work have none of attacks."""
    titles, found = result.titles, list[AuditFinding]()
    for case in result.judged:
        rows = result.rows_of(case)
        found += _opened(case, [_of_attack(row, case.heading) for row in rows])
        found += [_of_closed_form(case, rows)] if case.exposed_examples else []
    makers: list[tuple[Iterable[Any], Callable[[Any, str], AuditFinding]]] = [
        (result.judged_membership, _of_test),
        (result.epsilons, _of_epsilon),
        (result.bounds, _of_bound),
    ]
    return found + [make(row, titles.get(row.case, row.case)) for rows, make in makers for row in rows]


def reported(found: Iterable[AuditFinding]) -> list[AuditFinding]:
    """Those that a report lists one by one: no bounds, and no closed form that an attack shows as well."""
    return [one for one in found if one.kind != "bound" and (one.kind, one.state) != ("closed_form", "unneeded")]


Ranked = TypeVar("Ranked", Row, MembershipRow, EpsilonRow, Case)


def worst(rows: Iterable[Ranked], first: Literal["exact", "recovered"] = "exact") -> Ranked:
    """The row that is worst for whose data it is, of equal ones the first.

    Of attacks: by the share of examples that it reconstructed exactly, and recognizably; without a truth by what it
    certifies or names, and how near its guesses come to the update that was sent; then by how many examples that was,
    and how good the median is. Of membership tests: by the share of members that it identifies, then the area under
    its curve. Of measured epsilons: whether a claim is contradicted, then the largest. Of cases: by the share of
    examples that the first update reveals in closed form, then their number.

    Args:
        rows: At least one, all of one kind.
        first: Which of an attack's two shares counts before the other.
    """
    return max(rows, key=lambda row: _rank(row, first))


def _rank(row: Row | MembershipRow | EpsilonRow | Case, first: str) -> tuple[float, ...]:
    if isinstance(row, MembershipRow):
        return row.tpr or 0.0, row.auc or 0.0
    if isinstance(row, EpsilonRow):
        return bool(row.contradicted), row.fitted or row.measured or 0.0
    if isinstance(row, Case):
        return row.closed_share, row.exposed_examples or 0
    exact, recovered = row.mean("exact") or 0.0, row.mean("recovered") or 0.0
    median = row.median("rouge_1" if row.of_text else "psnr")
    return (
        *((exact, recovered) if first == "exact" else (recovered, exact)),
        row.certified_examples,
        row.certified_features,
        row.mean("token_recall") or 0.0,
        row.identified_tokens,
        -math.inf if row.misfit is None else -row.misfit,
        row.examples or 0,
        row.mean("ssim") or -1.0,
        -math.inf if median is None else median,
        row.returned or 0,
    )


def leaked(row: Row) -> bool:
    """Whether an attack recovered any example, named its tokens, or certified one where no truth is at hand."""
    return row.leaks or row.identified_tokens > 0 or (not row.scored and row.certified_examples > 0)


def failed(row: Row) -> bool:
    """Whether an attack was asked for, may apply, and has no result: what it would have found is not known."""
    return row.status == "error" or row.outcome in (Outcome.FAILED, Outcome.NOT_RECORDED, Outcome.NOT_TRIED)


# --- where nothing was found: whether that says anything ---------------------------------------------------------

UNTRUSTED = {
    "failed": "{attack} failed",
    "diverged": "{attack} diverged",
    "confident-examples": "the model is already sure of examples, whose part of the update is next to nothing",
    "contradicted-by-truth": UNTRUE,
}
"""Warnings with which a count of nothing is no finding, in words for the headline."""

UNSHOWN = "nothing in this run shows that these attacks work here without the defense"


def inconclusive(rows: Sequence[Row], cases: Sequence[Case], flags: Sequence[Finding] = ()) -> dict[str, str]:
    """Cases whose attacks recovered nothing, to why that says nothing; the others are left out.

    Args:
        rows: All rows.
        cases: All cases.
        flags: The diagnostics of the run.

    >>> row = Row(case="a", attack="x", outcome="nothing_recovered", scores={"psnr": {"mean": 9.0}})
    >>> inconclusive([row], [Case(name="a", defense="noise")])["a"].partition(";")[0]
    'nothing in this run shows that these attacks work here without the defense'
    >>> inconclusive([row], [Case(name="a")])
    {}
    """
    found = {}
    for case in cases:
        own = [row for row in rows if row.case == case.name]
        given = any(row.leaks or row.identified_tokens or row.certified_examples for row in own)
        if case.control or not any(row.scored for row in own) or given or case.exposed_examples:
            continue
        flagged = [flag for flag in flags if flag.case == case.name and flag.severity == "warning"]
        # Where the same attacks read all of these examples without the defense, their loss is not what stops them.
        sure = {"confident-examples"} if case.defense and _reads_all(case, own, rows) else set()
        why = [UNTRUSTED[flag.name].format(attack=flag.attack) for flag in flagged if flag.name in {*UNTRUSTED} - sure]
        why += [f"{row.attack} was not tried for want of time" for row in own if row.outcome is Outcome.NOT_TRIED]
        why += [words] if case.defense and (words := _unshown(case, rows, cases)) else []
        if why:
            found[case.name] = "; ".join(dict.fromkeys(why))
    return found


def _reads_all(case: Case, own: Sequence[Row], rows: Sequence[Row]) -> bool:
    """Whether an attack that was tried on a defended case recovers each example of the same case undefended."""
    tried = {row.attack for row in own if row.scored}
    return any(row.mean("recovered") == 1 for row in rows if row.case == case.undefended and row.attack in tried)


def _unshown(case: Case, rows: Sequence[Row], cases: Sequence[Case]) -> str:
    """That nothing shows that the attacks on a defended case would work without the defense; empty where that is shown.

    An attack that does not apply behind the defense is one that it stops; one that failed or was passed over is not.
    """
    tried = {row.attack for row in rows if row.case == case.name and row.status not in ("error", *PASSED_OVER)}
    twin = case.undefended
    elsewhere = [row for row in rows if row.case == twin] if twin is not None else rows
    if tried & {row.attack for row in elsewhere if row.leaks or row.identified_tokens}:
        return ""
    compared = {one.name for one in cases if not one.defense} if twin is None else {twin}
    if any(row.scored and row.case in compared for row in rows):
        return "these attacks recover nothing without the defense either; raise attack.steps or lower batch.size"
    return f"{UNSHOWN}; leave out --no-undefended, or put undefended = true into the recipe"


# --- one maker for each kind -------------------------------------------------------------------------------------


def _of_attack(row: Row, case: str) -> AuditFinding:
    """The finding of an attack; an error where examples were reconstructed exactly. `case` is the title of its case."""
    if failed(row):
        state: State = "untried"
    elif row.outcome is Outcome.NOT_NEEDED:
        state = "unneeded"
    elif row.outcome is Outcome.ZERO_UPDATE:
        state = "quiet"  # there is nothing in it
    elif not row.gave_result:
        state = "skipped"
    elif leaked(row):
        state = "leaks"
    else:
        state = "unjudged" if not row.scored and row.returned != 0 else "quiet"
    exact = bool(row.mean("exact")) or (not row.scored and state == "leaks")
    severity: Severity = "note" if state not in ("leaks", "untried") else "error" if exact else "warning"
    return AuditFinding(
        kind="attack", by=row.attack, title=case, case=row.case, state=state, severity=severity, words=_words(row),
        ran=row.gave_result, seconds=row.cost.seconds or 0.0, options=row.options, why=row.reason or row.phrase,
        numbers=_numbers(row), counts=_counts(row),
    )  # fmt: skip


def _numbers(row: Row) -> dict[str, float]:
    """A row's numbers. Without a truth `certified` counts all certified guesses: none is known to be wrong.

    Certified inner features are no certified examples, so they do not count.
    """
    found = row.numbers()
    if not row.scored and row.certified is not None:
        found["certified"] = row.certified_examples / (row.examples or row.returned or row.certified.n or 1)
    return found


def _counts(row: Row) -> dict[Measure, tuple[int, int | None]]:
    """Name to (hits, of) of an attack's counts; empty without a result."""
    found: dict[Measure, tuple[int, int | None]] = {}
    if not row.gave_result:
        return found
    shares: tuple[Measure, ...] = ("recovered", "exact")
    for measure in shares if row.scored and row.examples else ():
        if (hits := row.count(measure)) is not None:
            found[measure] = hits, row.examples
    if row.certified is not None or not row.scored:
        found["certified"] = row.certified_examples, None
    if row.identified_tokens:
        share = row.scores.get("token_recall")
        found["identified"] = (
            (round(share.mean * share.n), share.n) if share and share.n else (row.identified_tokens, None)
        )
    return found


def _words(row: Row) -> str:
    """An attack's result in words: outcome, counts, PSNR beside the baselines, certificates, side information."""
    if not row.gave_result:
        return f"{row.phrase}: {row.reason or 'no reason was recorded'}"
    parts = [row.phrase]
    recovered, exact, psnr = row.count("recovered"), row.count("exact"), row.median("psnr")
    if recovered is not None:
        parts.append(f"{recovered} of {row.examples} examples recovered, {exact or 0} exactly")
    if psnr is not None:
        known = {"mean_color": "mean color" if "ssim" in row.scores else "own mean", "typical": "mean of other rows"}
        beside = [(what, row.baselines.get(name, {}).get("psnr")) for name, what in known.items()]
        closer = "".join(f", {what} {one:.1f} dB" for what, one in beside if one is not None)
        parts.append(f"median PSNR {psnr:.1f} dB{closer}")
    if row.certified is not None and not row.scored and "token_recall" not in row.scores:
        parts.append(f"{row.certificate or 'no guess certified'}, without a truth")
    if row.side_information:
        parts.append(f"known beyond the protocol: {', '.join(row.side_information)}")
    return "; ".join(parts)


def _opened(case: Case, found: list[AuditFinding]) -> list[AuditFinding]:
    """Findings on the attacks of a case, where nothing is known of it as open ones."""
    states, change = {one.state for one in found}, tuple[State, ...]()
    if case.inconclusive is not None:
        change, why = ("quiet", "unjudged"), f"inconclusive: {case.inconclusive}"
    elif case.exposed_examples or states & {"leaks", "quiet"}:
        return found
    else:
        change, why = ("unjudged",) if "unjudged" in states else ("skipped",), "nothing is known of this case"
    return [
        one.model_copy(update={"state": "open", "severity": "warning", "words": f"{one.words}; {why}"})
        if one.state in change
        else one
        for one in found
    ]


def _of_closed_form(case: Case, rows: Iterable[Row]) -> AuditFinding:
    """What an update reveals with no attack run; not needed where an attack shows as much."""
    (away, of), shown = case.closed_form, any(row.mean("exact") or row.certified_examples for row in rows)
    return AuditFinding(
        kind="closed_form",
        by="closed_form",
        title=case.heading,
        case=case.name,
        state="unneeded" if shown else "leaks",
        severity="error",
        words=f"{away} of {of} examples can be read exactly from the update, in closed form, with no attack",
        numbers=dict.fromkeys(("recovered", "exact", "certified"), away / of),
        counts={"exact": (away, of)},
    )


def _of_test(row: MembershipRow, case: str) -> AuditFinding:
    """The finding of a membership test; `case` is the title of its case."""
    values = {name: row.value(name) for name in MEMBERSHIP_SCORES}
    if row.status != "ok" or row.members_identified is None or row.others_identified is None:
        state: State = "skipped" if row.status == "inapplicable" else "untried"
        severity: Severity = "note" if state == "skipped" else "warning"
        words = row.reason or row.status
    else:
        state, severity = ("leaks", "error") if row.tells else ("quiet", "note")
        words = f"identifies {row.words}"
    return AuditFinding(
        kind="membership", by=row.test, title=case, case=row.case, state=state, severity=severity, words=words,
        ran=row.status == "ok", seconds=row.seconds or 0.0, options=row.options, why=row.reason or row.status,
        numbers={name: value for name, value in values.items() if value is not None},
        counts={} if (hit := row.members_identified) is None else {"identified": (hit.hits, hit.of)},
    )  # fmt: skip


def _of_epsilon(row: EpsilonRow, case: str) -> AuditFinding:
    none, wrong = row.measured is None, len(row.contradicted)
    numbers = zip(EPSILON_SCORES, (row.measured, row.fitted, wrong), strict=True)
    return AuditFinding(
        kind="epsilon",
        by="epsilon",
        title=case,
        case=row.case,
        state="untried" if none else "leaks" if wrong else "quiet",
        severity="warning" if none else "error" if wrong else "note",
        words=row.reason or "not measured" if none else "; ".join([row.words, *row.contradicted]),
        ran=not none,
        seconds=row.seconds or 0.0,
        numbers={} if none else {name: number for name, number in numbers if number is not None},
        counts={} if none else {"contradicted": (wrong, None)},
    )


def _of_bound(row: BoundRow, case: str) -> AuditFinding:
    scores = [score for score, measure in BOUND_SCORES.items() if measure == row.measure]
    return AuditFinding(
        kind="bound",
        by=row.measure,
        title=case,
        case=row.case,
        state="quiet",
        severity="note",
        words=row.words or row.reason or "",
        ran=row.value is not None,
        numbers={} if row.value is None else dict.fromkeys(scores, row.value),
    )
