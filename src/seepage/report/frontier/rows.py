"""The rows of a frontier, and the Pareto-optimal ones among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    """One defense against one kind of attacker: the rows of an audit that are worst for it, and its price.

    Attributes:
        defense: Name and strength of the defense.
        attacker: `oblivious`, or `knows` if the attacker knows of the defense.
        case: Name of the audit case.
        best: The row of the attack that recovered most; None where none was scored.
        found: Scored attack to the number of examples that it recovered.
        test: The membership test that identified most; None where none was asked for, or none could be run.
        untested: Why membership was not tested, though it was asked for.
        reason: Why there is no score.
        zero: Whether there is no score because every update is zero everywhere.
        untried: Attacks without a result here, or on some batches, that had one without a defense; with the reason.
        failed: Why there is no accuracy.
        accuracy: Share of test examples classified correctly after federated training with the defense; what else it is
            a share of says `accuracy_of`.
        accuracy_of: `class`: test examples; `value`: variance of the targets; `map`: pixels; `token`: next tokens.
        accuracy_examples: Number of test examples.
        promise: The differential-privacy loss after that training, what it protects, its delta, rounds and doubts.
        seconds: Median time of one client's work in one round.
        bytes: Size of the update that it sends.
        bytes_plain: Size of an undefended update.
    """

    defense: str
    attacker: str
    case: str
    best: Row | None = None
    found: Mapping[str, int] = field(default_factory=dict)
    test: MembershipRow | None = None
    untested: str | None = None
    reason: str | None = None
    zero: bool = False
    untried: Mapping[str, str] = field(default_factory=dict)
    failed: str | None = None
    accuracy: float | None = None
    accuracy_of: Measure = "class"
    accuracy_examples: int | None = None
    promise: Guarantee | None = None
    seconds: float | None = None
    bytes: int | None = None
    bytes_plain: int | None = None

    @property
    def measure(self) -> str:
        """What `accuracy` is called."""
        return MEASURES[self.accuracy_of]

    @cached_property
    def recovered(self) -> Share | None:
        """Examples that the best attack recovered, with the interval of Clopper and Pearson, as if independent."""
        return None if self.best is None else Share.count(self.best.count("recovered") or 0, self.best.examples or 0)

    @property
    def identified(self) -> Share | None:
        """Members that the best test identified, at the level of the recipe's `[membership]`."""
        return None if self.test is None else self.test.members_identified

    @property
    def epsilon(self) -> float | None:
        """The differential-privacy loss."""
        return None if self.promise is None else self.promise.epsilon

    def record(self) -> dict[str, Any]:
        """As a JSON line, in which the numbers of both rows stand beside those of the price."""
        best, test, none = self.best, self.test, dict[str, Any]()
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("best", "test")}
        found = none if self.recovered is None else self.recovered.model_dump()
        hit = none if self.identified is None else self.identified.model_dump()
        other = none if test is None or test.others_identified is None else test.others_identified.model_dump()
        return {
            "schema": SCHEMA, **facts, "epsilon": self.epsilon,
            "promise": None if self.promise is None else self.promise.model_dump(mode="json"),
            "attack": best and best.attack, "recovered": found.get("hits"), "examples": found.get("of"),
            "recovered_low": found.get("low"), "recovered_high": found.get("high"),
            **{name: best and best.value(name) for name in ("ssim", "psnr_median", "gain_db")},
            "membership_test": test and test.test, "identified": hit.get("hits"), "members": hit.get("of"),
            "identified_low": hit.get("low"), "identified_high": hit.get("high"),
            "identified_level": test and test.level,
            "others_identified": other.get("hits"), "others": other.get("of"),
        }  # fmt: skip


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
        paid |= {"promise": promise, "accuracy_of": measure}
        known = entry.recipe.defense and "defense" in entry.recipe.knowledge.known
        for attacker, recipe in (("knows" if known else "oblivious", entry.recipe), ("knows", entry.known)):
            if recipe is not None:
                case = cases[recipe.case]
                own, tests = result.rows_of(case), [row for row in result.membership if row.case == case.name]
                scored = [row for row in own if row.scored]
                told = [row for row in tests if row.members_identified is not None]
                untested = case.membership_skipped or next((row.reason for row in tests if row.reason), None)
                found = _lacking(own, bare) | {
                    "best": worst(scored, "recovered") if scored else None,
                    "found": {row.attack: row.count("recovered") or 0 for row in scored},
                    "test": worst(told) if told else None,
                    "untested": None if told else untested,
                    "failed": price["reason"],
                }
                rows.append(DefenseRow(defense=entry.name, attacker=attacker, case=recipe.case, **found, **paid))
    return rows


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
        shares = [row.recovered.share for row in own if row.recovered is not None]
        if shares and own[0].accuracy is not None:
            known = any(row.attacker == "knows" and row.recovered is not None for row in own)
            found.append(Point(defense, own[0].accuracy, max(shares), known))
    return found


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other point dominates, by rising accuracy.

    >>> pareto([Point("a", 0.9, 1.0, True), Point("b", 0.8, 0.0, True), Point("c", 0.7, 0.5, True)])[0].defense
    'b'
    """
    left = [point for point in points if not any(other.beats(point) for other in points)]
    return sorted(left, key=lambda point: (point.accuracy, point.share))
