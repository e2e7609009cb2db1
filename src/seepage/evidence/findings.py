"""One finding per attack and case, per membership test and per epsilon: what the exported formats are made of."""

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

from seepage.audit.row import Cell, EpsilonRow, MembershipRow, Outcome, Result, Row
from seepage.evidence.statement import CLOSED_FORM, failed, leaked, unjudged

State = Literal["leaks", "quiet", "unjudged", "skipped", "unneeded", "untried", "open"]
"""`leaks`: data came back, members were named, or a claim is contradicted. `quiet`: tried, and nothing. `unjudged`:
guesses came back, and no truth is at hand to compare them with. `skipped`: it does not apply. `unneeded`: another
attack had certified every example. `untried`: it was asked for and has no result, so what it would have found is not
known. `open`: nobody knows what comes back in its case, since nothing there could be scored, no attack applies, or it
says nothing that nothing came back."""

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Found:
    """One finding.

    Attributes:
        rule: What looked: an attack, a membership test, or `epsilon`.
        kind: `attack`, `membership` or `epsilon`.
        case: Title of the case.
        cell: Its name, which stays the same where the title is worded anew.
        state: What came of it.
        severity: `error`: exact copies, named members or a contradicted claim; `warning`: recognizable copies, or no
            result; `note`: all else.
        words: The finding in words.
        seconds: Wall time.
    """

    rule: str
    kind: Literal["attack", "membership", "epsilon"]
    case: str
    cell: str
    state: State
    severity: Severity
    words: str
    seconds: float

    @property
    def fingerprint(self) -> str:
        """The same in every run of the same attack on the same case, so that a platform knows it again."""
        return sha256(f"{self.kind}\0{self.rule}\0{self.cell}".encode()).hexdigest()[:32]


def findings(result: Result) -> list[Found]:
    """All findings of a run, in its order."""
    titles = result.titles
    found = []
    for cell in result.judged:
        rows = result.rows_of(cell)
        own = [_of_attack(row, cell.heading) for row in rows]
        shown = any(row.mean("exact") or row.certified_examples for row in rows)
        found += _opened(cell, own) + ([] if shown or not cell.given_away else [_of_closed_form(cell)])
    found += [_of_test(row, titles[row.cell]) for row in result.membership]
    return found + [_of_epsilon(row, titles[row.cell]) for row in result.epsilons]


def _opened(cell: Cell, found: list[Found]) -> list[Found]:
    """Findings on the attacks of a case, where nothing is known of it as open ones."""
    states, change = {one.state for one in found}, tuple[State, ...]()
    if cell.inconclusive is not None:
        change, why = ("quiet", "unjudged"), f"inconclusive: {cell.inconclusive}"
    elif cell.given_away or states & {"leaks", "quiet"}:
        return found
    else:
        change, why = ("unjudged",) if "unjudged" in states else ("skipped",), "nothing is known of this case"
    return [
        replace(one, state="open", severity="warning", words=f"{one.words}; {why}") if one.state in change else one
        for one in found
    ]


def _of_closed_form(cell: Cell) -> Found:
    """What an update gives away with no attack run: a finding of its own where no attack shows as much."""
    away, of = cell.closed_form
    words = f"{away} of {of} examples are given away exactly, in closed form, with no attack"
    return Found(CLOSED_FORM.replace(" ", "_"), "attack", cell.heading, cell.name, "leaks", "error", words, 0.0)


def _of_attack(row: Row, case: str) -> Found:
    if failed(row):
        state: State = "untried"
    elif row.outcome is Outcome.NOT_NEEDED:
        state = "unneeded"
    elif row.outcome is Outcome.ZERO_UPDATE:
        state = "quiet"  # there is nothing in it
    elif not row.gave_result:
        state = "skipped"
    else:
        state = "leaks" if leaked(row) else "unjudged" if unjudged(row) else "quiet"
    exact = bool(row.mean("exact")) or (not row.scored and state == "leaks")
    severity: Severity = "note"
    if state in ("leaks", "untried"):
        severity = "error" if exact else "warning"
    return Found(row.attack, "attack", case, row.cell, state, severity, _words(row), row.cost.seconds or 0.0)


def _words(row: Row) -> str:
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
    if row.told_extra:
        parts.append(f"told beyond the protocol: {', '.join(row.told_extra)}")
    return "; ".join(parts)


def _of_test(row: MembershipRow, case: str) -> Found:
    if row.status != "ok" or row.named is None or row.false is None:
        state: State = "skipped" if row.status == "inapplicable" else "untried"
        severity: Severity = "note" if state == "skipped" else "warning"
        words = row.reason or row.status
    else:
        state, severity = ("leaks", "error") if row.tells else ("quiet", "note")
        words = (
            f"{row.named.hits} of {row.named.of} members named, and {row.false.hits} of {row.false.of} others, "
            f"at a level of {100 * (row.level or 0.0):g} %"
        )
    return Found(row.test, "membership", case, row.cell, state, severity, words, row.seconds or 0.0)


def _of_epsilon(row: EpsilonRow, case: str) -> Found:
    seconds = row.seconds or 0.0
    if row.measured is None:
        return Found("epsilon", "epsilon", case, row.cell, "untried", "warning", row.reason or "not measured", seconds)
    wrong = bool(row.contradicted)
    words = "; ".join([row.words, *row.contradicted])
    state: State = "leaks" if wrong else "quiet"
    return Found("epsilon", "epsilon", case, row.cell, state, "error" if wrong else "note", words, seconds)
