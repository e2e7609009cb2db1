"""The rows of a frontier, and the Pareto-optimal ones among them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from seepage.audit.case import Measure
from seepage.audit.findings import worst
from seepage.audit.row import MembershipRow, Outcome, Result, Row
from seepage.base.schema import Guarantee, Share
from seepage.base.storage import SCHEMA
from seepage.report.frontier.sweep import SweepEntry

MEASURES: Mapping[Measure, str] = {
    "class": "accuracy",
    "value": "explained variance",
    "map": "pixel accuracy",
    "token": "next-token accuracy",
}
"""What is measured after training, by what it is a share of."""


@dataclass(frozen=True, kw_only=True)
class DefenseRow:
    """One defense against one kind of attacker: one line of `frontier.jsonl`. Fields that do not apply are None.

    Attributes:
        defense: Name and strength of the defense.
        attacker: `oblivious`, or `knows` if the attacker knows of the defense.
        case: Name of the audit case.
        attack: The attack that recovered most.
        recovered: Number of examples that it recovered.
        examples: Number of all examples.
        found: Scored attack to the number of examples that it recovered.
        recovered_low: Lower end of the 95 % interval (Clopper and Pearson) of the share recovered, as if examples were
            independent.
        recovered_high: Its upper end.
        ssim: Mean SSIM.
        psnr_median: Median PSNR in dB.
        gain_db: Mean PSNR in dB over that of each example's mean color.
        membership_test: The membership test that named most; None where none was asked for, or none could be run.
        identified: Number of members that it named, at the level of the recipe's `[membership]`.
        members: Number of members.
        identified_low: Lower end of the 95 % interval (Clopper and Pearson) of the share named, as if they were
            independent.
        identified_high: Its upper end.
        identified_level: Share of others that may be named by mistake.
        others_identified: Number of others that it named.
        others: Number of others.
        untested: Why membership was not tested, though it was asked for.
        reason: Why there is no score.
        zero: Whether there is no score because every update is zero everywhere.
        untried: Attacks without a result here, or on some batches, that had one without a defense; with the reason.
        failed: Why there is no accuracy.
        accuracy: Share of test examples classified correctly after federated training with the defense; what else it is
            a share of says `accuracy_of`.
        accuracy_of: `class`: test examples; `value`: variance of the targets; `map`: pixels; `token`: next tokens.
        accuracy_examples: Number of test examples.
        epsilon: The differential-privacy loss after that training.
        promise: What that epsilon protects, its delta, rounds and doubts.
        seconds: Median time of one client's work in one round.
        bytes: Size of the update that it sends.
        bytes_plain: Size of an undefended update.
    """

    defense: str
    attacker: str
    case: str
    attack: str | None = None
    recovered: int | None = None
    examples: int | None = None
    found: Mapping[str, int] = field(default_factory=dict)
    recovered_low: float | None = None
    recovered_high: float | None = None
    ssim: float | None = None
    psnr_median: float | None = None
    gain_db: float | None = None
    membership_test: str | None = None
    identified: int | None = None
    members: int | None = None
    identified_low: float | None = None
    identified_high: float | None = None
    identified_level: float | None = None
    others_identified: int | None = None
    others: int | None = None
    untested: str | None = None
    reason: str | None = None
    zero: bool = False
    untried: Mapping[str, str] = field(default_factory=dict)
    failed: str | None = None
    accuracy: float | None = None
    accuracy_of: Measure = "class"
    accuracy_examples: int | None = None
    epsilon: float | None = None
    promise: Guarantee | None = None
    seconds: float | None = None
    bytes: int | None = None
    bytes_plain: int | None = None

    @property
    def measure(self) -> str:
        """What `accuracy` is called."""
        return MEASURES[self.accuracy_of]

    @property
    def share(self) -> float | None:
        """Share of recovered examples."""
        return None if self.recovered is None or not self.examples else self.recovered / self.examples

    def record(self) -> dict[str, Any]:
        """As a JSON line."""
        promise = None if self.promise is None else self.promise.model_dump(mode="json")
        return {"schema": SCHEMA, **asdict(self), "promise": promise}


def rows_of(
    entries: Sequence[SweepEntry],
    prices: Sequence[Mapping[str, Any]],
    result: Result,
) -> list[DefenseRow]:
    """One row for each defense and kind of attacker.

    Args:
        entries: Defenses.
        prices: Cost of each defense.
        result: That of the audit.
    """
    rows, cases = [], {case.name: case for case in result.cases}
    measure = next((case.measure for case in result.cases if not case.skipped), "class")  # of the first recorded
    bare = {row.attack: row for row in result.rows if row.case == entries[0].recipe.case}
    for entry, price in zip(entries, prices, strict=True):
        promise = None if price["promise"] is None else Guarantee.model_validate(price["promise"])
        paid = {key: price[key] for key in ("accuracy", "accuracy_examples", "seconds", "bytes", "bytes_plain")}
        paid |= {"epsilon": None if promise is None else promise.epsilon, "promise": promise, "accuracy_of": measure}
        known = entry.recipe.defense and "defense" in entry.recipe.knowledge.known
        for attacker, recipe in (("knows" if known else "oblivious", entry.recipe), ("knows", entry.known)):
            if recipe is not None:
                case = cases[recipe.case]
                own, tests = result.rows_of(case), [row for row in result.membership if row.case == case.name]
                found = _best(own) | _lacking(own, bare) | {"failed": price["reason"]}
                found |= _members(tests, case.membership_skipped)
                rows.append(DefenseRow(defense=entry.name, attacker=attacker, case=recipe.case, **found, **paid))
    return rows


def _best(results: Sequence[Row]) -> dict[str, Any]:
    """The attack that recovered most."""
    scored = [row for row in results if row.scored]
    if not scored:
        return {}
    best = worst(scored, "recovered")
    count, examples = best.count("recovered") or 0, best.examples or 0
    share = Share.count(count, examples)
    return {
        "attack": best.attack,
        "recovered": count,
        "examples": examples,
        "found": {row.attack: row.count("recovered") or 0 for row in scored},
        "recovered_low": share.low,
        "recovered_high": share.high,
        **{key: best.value(key) for key in ("ssim", "psnr_median", "gain_db")},
    }


def _members(tests: Sequence[MembershipRow], untested: str | None) -> dict[str, Any]:
    """The membership test that named most members."""
    scored = [row for row in tests if row.members_identified is not None]
    if not scored:
        return {"untested": untested or next((row.reason for row in tests if row.reason), None)}
    best = worst(scored)
    assert best.members_identified is not None
    return {
        "membership_test": best.test,
        "identified": best.members_identified.hits,
        "members": best.members_identified.of,
        "identified_low": best.members_identified.low,
        "identified_high": best.members_identified.high,
        "identified_level": best.level,
        "others_identified": None if best.others_identified is None else best.others_identified.hits,
        "others": None if best.others_identified is None else best.others_identified.of,
    }


def _lacking(results: Sequence[Row], bare: Mapping[str, Row]) -> dict[str, Any]:
    """Why there is no score, and the attacks that gave results without the defense but not with it."""
    found = {"untried": {row.attack: str(row.reason) for row in results if _untried(row, bare)}}
    if any(row.scored for row in results):
        return found
    if results and all(row.outcome is Outcome.ZERO_UPDATE for row in results):
        return found | {"zero": True, "reason": "the update is zero everywhere: there is nothing to attack"}
    return found | {"reason": next((str(row.reason) for row in results if row.reason), "no attack gave a guess")}


def _untried(row: Row, bare: Mapping[str, Row]) -> bool:
    """Whether an attack lacks results, on all or some batches, although it applies without the defense."""
    if not row.reason or row.outcome is Outcome.ZERO_UPDATE:
        return False
    undefended = bare.get(row.attack)
    if row.status == "error" or undefended is None or undefended.case == row.case:
        return row.status == "error"
    return undefended.reason is None or (not row.scored and undefended.scored)


@dataclass(frozen=True)
class Point:
    """A defense with its accuracy and the share of examples that the best attack recovers despite it."""

    defense: str
    accuracy: float
    share: float
    known: bool

    def beats(self, other: "Point") -> bool:
        """Whether this point dominates another: no worse in both accuracy and recovery, and better in one."""
        no_worse = self.accuracy >= other.accuracy and self.share <= other.share
        return no_worse and (self.accuracy > other.accuracy or self.share < other.share)


def points_of(rows: Sequence[DefenseRow]) -> list[Point]:
    """A point for each defense with an accuracy and a score; `known` tells if an aware attacker was scored."""
    found = []
    for defense in dict.fromkeys(row.defense for row in rows):
        own = [row for row in rows if row.defense == defense]
        shares = [row.share for row in own if row.share is not None]
        if shares and own[0].accuracy is not None:
            known = any(row.attacker == "knows" and row.share is not None for row in own)
            found.append(Point(defense, own[0].accuracy, max(shares), known))
    return found


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other point dominates, by rising accuracy.

    >>> pareto([Point("a", 0.9, 1.0, True), Point("b", 0.8, 0.0, True), Point("c", 0.7, 0.5, True)])[0].defense
    'b'
    """
    left = [point for point in points if not any(other.beats(point) for other in points)]
    return sorted(left, key=lambda point: (point.accuracy, point.share))
