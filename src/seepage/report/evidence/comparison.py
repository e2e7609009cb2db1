"""What got worse between two runs: counts of recovered, exact and named examples, each with an interval."""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from seepage.audit.findings import Measure, findings
from seepage.audit.row import PASSED_OVER, Case, Outcome, Result
from seepage.base.manifest import refuse_changed
from seepage.base.schema import JsonRecord, parse
from seepage.base.storage import check_schema, read_json
from seepage.base.words import plural
from seepage.errors import SeepageError
from seepage.report.evidence.pack import is_pack, refuse_changed_pack
from seepage.report.table import CLOSED_FORM

LEVEL = 0.05
"""Chance that a comparison of two runs of the same thing calls anything worse."""

Kind = Literal["worse", "new leak", "lost", "not compared", "not needed", "more", "better", "less", "same"]
"""`worse` and `better`: beyond chance. `more` and `less`: within it. `new leak`: the attack did not apply to what was
sent before, and now it does. `lost`: the older run had a result and the newer has none. `not compared`: the newer run
has a result and the older one did not look, so nobody can say whether that is worse."""

Key = tuple[str, str, Measure]

TOLD = {
    "client": "client", "rate": "learning rate", "decayed": "weight decay", "batch_size": "batch size",
    "input_shape": "shape of an example", "classes": "classes", "target": "target",
}  # fmt: skip
"""Facts of a captured update that attacks take for given, and their names for people."""

SAME_FILES = {"model": "model", "model_options": "model's options"}
"""Further such facts where both runs attacked the same files: whatever sent them was one client."""

INFERRED = {
    "rate": "learning rate",
    "decayed": "weight decay",
    "batch_size": "batch size",
    "input_shape": "input shape",
}
"""Facts that may be inferred, and the name under which a case says so."""

SHOWN = 60
"""Characters of a fact that are shown."""


class Count(JsonRecord):
    """How many of how many.

    Attributes:
        hits: How many.
        of: Of how many; None where that is not known, as of certified guesses without a truth.
    """

    hits: int
    of: int | None = None

    def __str__(self) -> str:
        return f"{self.hits}" if self.of is None else f"{self.hits} of {self.of}"


class Change(JsonRecord):
    """One finding in two runs.

    Attributes:
        title: Title of the case in the newer run.
        rule: The attack, the membership test, or `epsilon`.
        measure: What is counted.
        kind: What became of it.
        old: The older count; None where there is none.
        new: The newer count; None where there is none.
        low: Lower end of the interval of the newer share less the older one; None where no shares are compared.
        high: Its upper end.
        lacking: Why one of the two counts is missing, such as `not tried in the older run`; None where both are there.
    """

    title: str
    rule: str
    measure: Measure
    kind: Kind
    old: Count | None
    new: Count | None
    low: float | None = None
    high: float | None = None
    lacking: str | None = None

    @property
    def words(self) -> str:
        """For people."""
        counts = " -> ".join(str(count) for count in (self.old, self.new) if count is not None)
        said = self.lacking
        if self.low is not None and self.high is not None:
            said = f"difference {100 * self.low:+.0f} to {100 * self.high:+.0f} points"
        return f"{self.rule} on {self.title}: {self.measure} {counts}{'' if said is None else f' ({said})'}"


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        changes: One per attack, case and measure.
        level: Chance that anything is called worse although nothing changed.
        remarks: What to know before believing it.
        caveats: What the attackers knew or were set otherwise: fewer finds may come of that alone.
    """

    changes: list[Change]
    level: float
    remarks: list[str]
    caveats: list[str] = field(default_factory=list)

    def of(self, *kinds: Kind) -> list[Change]:
        """The changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]

    @cached_property
    def worse(self) -> list[Change]:
        """What got worse: beyond chance, or where an attack that did not apply before does now."""
        return self.of("worse", "new leak")

    @cached_property
    def lost(self) -> list[Change]:
        """What the older run knew and the newer does not."""
        return self.of("lost")

    @cached_property
    def leaks_alone(self) -> list[Change]:
        """What leaks in the newer run where the older one did not look."""
        return [change for change in self.of("not compared") if change.new is not None and change.new.hits]

    @property
    def end(self) -> tuple[int, str]:
        """The exit code (1: worse, 2: nobody can tell) and what came of it, in a sentence or two."""
        new = len(self.of("not compared"))
        compared = len(self.changes) - len(self.lost) - new - len(self.of("not needed"))
        unknown = [
            f"{plural(len(changes), 'count')} {words} ({changes[0].words})"
            for changes, words in (
                (self.lost, "of the older run without a result in the newer one"),
                (self.leaks_alone, "of the newer run above 0 where the older one did not look"),
            )
            if changes
        ]
        if self.worse:
            lacking = f" Not compared: {', '.join(unknown)}." if unknown else ""
            return 1, f"WORSE in {len(self.worse)} of {compared} counts.{lacking}"
        if unknown:
            return 2, (
                f"CANNOT TELL: {', '.join(unknown)}; run the same attacks on the same cases on both sides, or, once "
                "somebody has looked at it, take the newer run as the baseline"
            )
        if self.caveats:
            return 2, (
                f"CANNOT TELL: none of {compared} compared counts rose, but the attackers knew or were set otherwise "
                f"({self.caveats[0]}), which may be why; give both the same, or, if that is intended, take the newer "
                "run as the baseline"
            )
        beside = f" {plural(new, 'count')} of the newer run, each 0, had nothing to be compared with." if new else ""
        return 0, (
            f"NOT WORSE: none of {compared} compared counts rose beyond chance ({100 * self.level:g} % for all of them "
            f"together).{beside} That is no proof of safety."
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": 1,
            "level": self.level,
            "summary": self.end[1],
            "worse": len(self.worse),
            "lost": len(self.lost),
            "leaks_alone": len(self.leaks_alone),
            "caveats": self.caveats,
            "remarks": self.remarks,
            "changes": [change.model_dump(mode="json") for change in self.changes],
        }


def open_result(place: Path) -> Result:
    """The result of a run folder, of an evidence pack, or in a file.

    Raises:
        SeepageError: Where there is none, or it is damaged or was edited.
    """
    path = place / "result.json" if place.is_dir() else place
    if not path.exists():
        raise SeepageError(f"{path} does not exist; name a finished run, an evidence pack or a result.json")
    if place.is_dir() and is_pack(place):
        refuse_changed_pack(place)
    elif place.is_dir():
        refuse_changed(place, path.name)
    record = read_json(path)
    check_schema(record, path)
    return parse(Result, record, str(path))


def compare(old: Result, new: Result, *, level: float = LEVEL) -> Comparison:
    """Say what got worse, case by case and attack by attack.

    A share is worse where the interval of the difference of the two (Newcombe 1998, method 10, from two Wilson
    intervals) lies above 0. Each of the m shares that are compared is given the chance `level / m` (Bonferroni), so
    that two runs of the same thing with other seeds differ anywhere with the chance `level` at most, as far as the
    intervals hold. What has no share (certified guesses, contradicted claims) is worse where it is more. What only
    one of the two looked for is compared with nothing, and named with the reason.

    Args:
        old: The older run.
        new: The newer run.
        level: Chance that anything is called worse although nothing changed.

    Raises:
        SeepageError: Where the two counted by different thresholds, or have no case and attack in common.
    """
    if old.thresholds != new.thresholds:
        raise SeepageError("the two runs count by different thresholds; score both with the same --set score.…")
    unsure = [f"{case.heading}: that nothing was reconstructed says nothing: {case.inconclusive}" for case in new.judged
              if case.inconclusive is not None]  # fmt: skip
    old, new = _judged(old), _judged(new)
    before, after, remarks = _comparable(_counts(old), _counts(new))
    common = before.keys() & after.keys()
    # An attack that both tried, and that gave a result in one of them alone, is compared too: it is lost, or new.
    tried = [{(row.case, row.attack) for row in run.rows} for run in (old, new)]
    if not common and not tried[0] & tried[1]:
        raise SeepageError("the two runs have no case and attack in common; compare runs of the same recipe")
    _add_closed_forms(before, after, old, new)
    common = before.keys() & after.keys()
    shares = sum(before[key].of is not None and after[key].of is not None for key in common)
    titles = {**old.titles, **new.titles}
    changes = []
    for key in [*after, *(key for key in before if key not in after)]:
        case, rule, measure = key
        then, now = before.get(key), after.get(key)
        if then is not None and now is not None:
            kind, low, high = _judge(then, now, level / max(shares, 1))
            lacking = None
        else:
            lack = _lack(new if now is None else old, case, rule)
            kind, low, high = _alone(now, lack), None, None
            lacking = lack.value.format("newer" if now is None else "older")
        changes.append(
            Change(
                title=titles[case], rule=rule, measure=measure, kind=kind, old=then, new=now, low=low, high=high,
                lacking=lacking,
            )
        )  # fmt: skip
    remarks = [*unsure, *_remarks(old, new), *_dropped(old, new), *remarks]
    fewer = {change.title for change in changes if change.kind in ("better", "less")}
    return Comparison(changes, level, remarks, list(told_otherwise(old, new, fewer)))


def _judged(result: Result) -> Result:
    """A result without the cases that only show that the attacks work."""
    return result.model_copy(update={"cases": result.judged, "rows": result.judged_rows})


def _add_closed_forms(before: dict[Key, Count], after: dict[Key, Count], old: Result, new: Result) -> None:
    """Add to `before` and `after` how many examples closed forms reveal, for cases in which both runs counted them."""
    then = {case.name: case for case in old.cases if case.exposed_examples is not None and case.exposed_of}
    for case in new.cases:
        if case.exposed_examples is not None and case.exposed_of and case.name in then:
            for counts, one in ((before, then[case.name]), (after, case)):
                away, of = one.closed_form
                counts[case.name, CLOSED_FORM, "exact"] = Count(hits=away, of=of)


def told_otherwise(old: Result, new: Result, fewer: Container[str] = ()) -> Iterator[str]:
    """What attackers of the cases in common knew or were set otherwise, in words.

    Of an audit the client is what it was made to be, so that only options and knowledge of the attacks count; of
    captured updates also what somebody stated of the client. What both runs inferred from different files is what two
    runs are made to compare; of the same files it contradicts one of them.

    Args:
        old: The older run.
        new: The newer run.
        fewer: Titles of cases in the newer run of which it found less. Of the same files fewer finds come of what was
            stated or inferred otherwise, also where an attacker knew more.
    """
    before = {case.name: case for case in old.cases}
    for now in new.cases:
        then = before.get(now.name)
        if then is None:
            continue
        same = then.data is None and now.data is None and bool(now.files) and then.files == now.files
        less = same and now.heading in fewer
        facts = TOLD if then.data is None and now.data is None else {}
        more = SAME_FILES | ({"inferred": "what was inferred"} if less else {}) if same else {}
        for name, words in {**facts, **more}.items():
            a, b = (_fact(case, name, then, now, same=same) for case in (then, now))
            if a != b:
                yield f"{words} of {now.heading}: {a[:SHOWN]} -> {b[:SHOWN]}"
        rows = {row.attack: row for row in old.rows_of(then)}
        for row in (row for row in new.rows_of(now) if row.attack in rows):
            one = rows[row.attack]
            if one.options != row.options:
                yield f"options of {row.attack} on {now.heading}: {one.options[:SHOWN]} -> {row.options[:SHOWN]}"
            other = {*one.known} ^ {*row.known} if less else {*one.known} - {*row.known}
            if other:
                yield f"knowledge of {row.attack} on {now.heading}: {', '.join(sorted(other))} in one run alone"


def _fact(case: Case, name: str, then: Case, now: Case, *, same: bool) -> str:
    """A fact as text; of different files without what both runs inferred, and no weight decay is nothing stated."""
    both = (then.inferred or {}).keys() & (now.inferred or {}).keys()
    value: Any = sorted(case.inferred or {}) if name == "inferred" else getattr(case, name)
    if name == "decayed":
        nothing = [not one.decayed or "weight decay" in (one.inferred or {}) for one in (then, now)]
        return "" if all(nothing) and not same else f"{value or 0:.6g} of each weight"
    if INFERRED.get(name) in both and not same:
        return ""
    if name == "client" and not same:
        for option in ["lr"] * ("learning rate" in both) + ["steps"] * ("local steps" in both):
            value = re.sub(rf"\b{option}=[^,)]*", "", value or "")
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def difference(old: Count, new: Count, chance: float) -> tuple[float, float]:
    """Interval of the newer share less the older one: Newcombe's method 10.

    Args:
        old: The older count.
        new: The newer count.
        chance: Chance that the truth lies below it, and the same that it lies above.

    >>> low, high = difference(Count(hits=0, of=8), Count(hits=8, of=8), 0.025)
    >>> round(low, 2), round(high, 2)
    (0.54, 1.0)
    """
    p1, low1, high1 = _wilson(old, chance)
    p2, low2, high2 = _wilson(new, chance)
    # The two intervals' arms add as those of independent errors do: d -+ sqrt(arm1^2 + arm2^2).
    d = p2 - p1
    return d - math.hypot(p2 - low2, high1 - p1), d + math.hypot(high2 - p2, p1 - low1)


def _wilson(count: Count, chance: float) -> tuple[float, float, float]:
    """A share and its interval by Wilson (1927): the p with |hits/n - p| = z sqrt(p (1 - p) / n)."""
    from scipy.stats import norm

    n = count.of or 1
    share, z = count.hits / n, float(norm.isf(chance))
    middle, arm = share + z**2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return share, (middle - arm) / (1 + z**2 / n), (middle + arm) / (1 + z**2 / n)


class Lack(Enum):
    """Why a run has no count of an attack on a case, in words that name the run."""

    NO_CASE = "the {} run has no such case"
    NOT_TRIED = "not tried in the {} run"
    FAILED = "failed in the {} run"
    DID_NOT_APPLY = "did not apply in the {} run"
    NOT_NEEDED = "not needed in the {} run, where every example was certified"
    ZERO_UPDATE = "the update of the {} run was zero everywhere"
    NOT_RECORDED = "could not be recorded in the {} run"
    NOT_COUNTED = "the {} run has no such count"


def _lack(result: Result, case: str, rule: str) -> Lack:
    """Why a run has no count of an attack, a membership test or a measured epsilon on a case."""
    if case not in result.titles:
        return Lack.NO_CASE
    row = next((row for row in result.rows if (row.case, row.attack) == (case, rule)), None)
    if row is None:
        tests = {(test.case, test.test) for test in result.membership}
        tests |= {(one.case, "epsilon") for one in result.epsilons}
        return Lack.NOT_COUNTED if (case, rule) in tests else Lack.NOT_TRIED
    if row.outcome in (Outcome.ZERO_UPDATE, Outcome.NOT_RECORDED, *map(Outcome, PASSED_OVER)):
        return Lack[row.outcome.name]
    return {"error": Lack.FAILED, "inapplicable": Lack.DID_NOT_APPLY}.get(row.status, Lack.NOT_COUNTED)


def _alone(new: Count | None, lack: Lack) -> Kind:
    """The kind of a change of which one run has no count."""
    if lack is Lack.NOT_NEEDED:
        return "not needed"  # by a certificate for every example, whose own count is compared
    if new is None:
        return "lost"
    # The older run looked, and what was sent gave the attack nothing: that is a count of nothing.
    looked = lack in (Lack.DID_NOT_APPLY, Lack.ZERO_UPDATE)
    return ("new leak" if new.hits else "same") if looked else "not compared"


def _judge(old: Count, new: Count, chance: float) -> tuple[Kind, float | None, float | None]:
    if old.of is None or new.of is None:
        return ("worse" if new.hits > old.hits else "better" if new.hits < old.hits else "same"), None, None
    low, high = difference(old, new, chance)
    if low > 0 or high < 0:
        return ("worse" if low > 0 else "better"), low, high
    # Cross-multiplied: shares of different numbers are compared without rounding.
    more = new.hits * old.of - old.hits * new.of
    return ("more" if more > 0 else "less" if more < 0 else "same"), low, high


def _counts(result: Result) -> dict[Key, Count]:
    """All counts of a run, by case, attack and measure, but for closed forms, which are compared where both looked."""
    return {
        (one.case, one.by, measure): Count(hits=hits, of=of)
        for one in findings(result)
        if one.kind != "closed_form"
        for measure, (hits, of) in one.counts.items()
    }


def _comparable(old: dict[Key, Count], new: dict[Key, Count]) -> tuple[dict[Key, Count], dict[Key, Count], list[str]]:
    """Counts of two runs that say the same of an attack: scores where both have them, else certified guesses.

    One of them may have been scored since, or the other not yet.
    """
    both: set[tuple[str, str]] = set()
    alone: set[tuple[str, str]] = set()
    for case, attack, measure in old.keys() | new.keys():
        if measure != "certified":
            continue
        scored = [(case, attack, "recovered") in counts for counts in (old, new)]
        certified = [(case, attack, "certified") in counts for counts in (old, new)]
        # A run without any count of this attack is none that has certified guesses alone.
        scored = [a for a, b in zip(scored, certified, strict=True) if a or b]
        if all(scored):
            both.add((case, attack))
        elif any(scored) and all(certified):
            alone.add((case, attack))

    def kept(counts: dict[Key, Count]) -> dict[Key, Count]:
        return {
            (case, attack, measure): count
            for (case, attack, measure), count in counts.items()
            if not (measure == "certified" and (case, attack) in both)
            and not (measure in ("recovered", "exact") and (case, attack) in alone)
        }

    words = "one run alone was scored against a truth, so certified guesses are compared; score both to compare shares"
    return kept(old), kept(new), [words] * bool(alone)


def _remarks(old: Result, new: Result) -> list[str]:
    before = {case.name: case.heading for case in old.cases}
    return [
        f"{case.name} was {before[case.name]!r} and is {case.heading!r}: another setting under the same name"
        for case in new.cases
        if before.get(case.name, case.heading) != case.heading
    ]


def _dropped(old: Result, new: Result) -> list[str]:
    """A remark on attacks of the older run that gave no result there and that the newer one did not try."""
    tried = {(row.case, row.attack) for row in new.rows}
    silent = [row for row in old.rows if not row.gave_result and (row.case, row.attack) not in tried]
    names = ", ".join(f"{row.attack} on {old.titles.get(row.case, row.case)}" for row in silent)
    return [f"without a result in the older run, and not tried in the newer one: {names}"] if silent else []


def by_kind(changes: Iterable[Change]) -> Mapping[Kind, list[Change]]:
    """Changes by kind, in the order of their weight, without those that are the same."""
    order: tuple[Kind, ...] = ("worse", "new leak", "lost", "not compared", "not needed", "more", "better", "less")
    listed = list(changes)
    return {kind: found for kind in order if (found := [change for change in listed if change.kind == kind])}
