"""Rows of a result beside those of attacks: membership inference, bounds, empirical epsilon, the verdict's parts."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from seepage.base.schema import JsonRecord, Share

# --- membership --------------------------------------------------------------------------------------------------


BY_CHANCE = 0.005
"""Largest chance that a test is given to identify so many more members than others where it tells nothing."""


class MembershipRow(JsonRecord):
    """The result of one membership test on one case, over all of its batches. A field is None where it does not apply.

    Attributes:
        case: The case's name.
        test: The test's name.
        options: The test's `repr`.
        status: `ok`, `inapplicable`, or `error` for an exception in its code.
        reason: Why there is no result, and what to change.
        refusal: The name of what is in the way where it is inapplicable.
        members: Number of candidates that were in a batch.
        others: Number of candidates that were not.
        auc: P(a member's statistic exceeds another's); 0.5 is chance.
        auc_low: Lower end of its 95 % bootstrap interval.
        auc_high: Its upper end.
        level: The false positive rate that is allowed.
        members_identified: Members with a p-value up to the level: the true positive rate.
        others_identified: Others with a p-value up to the level: the false positive rate.
        members_identified_per_mille: As `members_identified` at the level 0.001, where there are enough
            calibration examples.
        others_identified_per_mille: As `others_identified` at that level.
        reference: Number of public examples that taught the test.
        calibration: Number of public examples that calibrated it.
        seconds: Wall time.
        cpu_seconds: Processor time.
    """

    case: str
    test: str
    options: str = ""
    status: Literal["ok", "inapplicable", "error"] = "ok"
    reason: str | None = None
    refusal: str | None = None
    members: int | None = None
    others: int | None = None
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    level: float | None = None
    members_identified: Share | None = None
    others_identified: Share | None = None
    members_identified_per_mille: Share | None = None
    others_identified_per_mille: Share | None = None
    reference: int | None = None
    calibration: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None

    def value(self, key: str) -> float | None:
        """The score that the gate calls `key`, one of `MEMBERSHIP_SCORES`; of a count, its share."""
        found = getattr(self, key)
        return found.share if isinstance(found, Share) else found

    @property
    def words(self) -> str:
        """How many it identifies, with intervals; there must be a result."""
        hit, false = self.members_identified, self.others_identified
        assert hit is not None
        assert false is not None
        return (
            f"{hit.hits} of {hit.of} members {hit.range}, and {false.hits} of {false.of} others {false.range} at a "
            f"false positive rate of {100 * (self.level or 0.0):g} %"
        )

    @property
    def tells(self) -> bool:
        """Whether it tells members from others: its area lies above chance with its interval, or it identifies more.

        A few members may stand out where most do not, which an area hides: then more members than others are
        identified, by Fisher's exact test, one-sided.

        >>> few, none = Share.count(30, 1000), Share.count(8, 1000)
        >>> MembershipRow(case="a", test="x", auc_low=0.49, members_identified=few, others_identified=none).tells
        True
        """
        return (self.auc_low or 0.0) > 0.5 or self.identifies

    @property
    def identifies(self) -> bool:
        """Whether it identifies more members than chance does, and does not tell by its area alone."""
        return _by_chance([self]) <= BY_CHANCE

    @property
    def tpr(self) -> float | None:
        """True positive rate: the share of members that it identifies."""
        return self.value("members_identified")


def tells_members(rows: Iterable[MembershipRow]) -> bool:
    """Whether a membership test tells members from others, in a case or over all its cases together."""
    tests: dict[str, list[MembershipRow]] = {}
    for row in rows:
        tests.setdefault(row.test, []).append(row)
    return any(_by_chance(own) <= BY_CHANCE or any(row.tells for row in own) for own in tests.values())


def identifies_members(rows: Sequence[MembershipRow]) -> bool:
    """Whether members are identified, in one case or over all together; else they are distinguished as a whole."""
    return tells_members(rows) and (any(row.identifies for row in rows) or not any(row.tells for row in rows))


def open_membership(rows: Iterable[MembershipRow]) -> bool:
    """Whether tests that do not tell members may do so all the same.

    More members than others were identified, and so few that chance does as much; or candidates are so few that an area
    of 1 lies within the interval, as of a test that tells all members.
    """
    hits = [(row.members_identified, row.others_identified, row.auc_high or 0.0) for row in rows]
    return any(
        top >= 1 or (hit is not None and false is not None and hit.share > false.share) for hit, false, top in hits
    )


def _by_chance(rows: Iterable[MembershipRow]) -> float:
    """P(so many of all whom a test identifies are members), where who is a member does not matter.

    That is a sum of hypergeometric counts, one for each case (Fisher's exact test of one case, of several its strata).
    """
    from numpy import arange, convolve, ones
    from scipy.stats import hypergeom

    chance, members = ones(1), 0
    for row in rows:
        hit, false = row.members_identified, row.others_identified
        if hit is not None and false is not None:
            found = hit.hits + false.hits
            chance = convolve(chance, hypergeom.pmf(arange(found + 1), hit.of + false.of, found, hit.of))
            members += hit.hits
    return float(chance[members:].sum())


MEMBERSHIP_SCORES = ("auc", "auc_low", "auc_high", "members_identified", "others_identified")
"""Scores of membership tests, which `--fail-if` accepts."""


# --- bounds and measured privacy ---------------------------------------------------------------------------------


class BoundRow(JsonRecord):
    """An upper bound for any attacker on one case: the loosest over the case's batches.

    Attributes:
        case: The case's name.
        measure: `exact_share`, `tpr` or `auc`.
        method: How it was found.
        value: The bound; None where none holds, and `reason` says why.
        low: Lower end of the 95 % interval of its own estimation.
        high: Its upper end.
        at: The false positive rate of `tpr`; the PSNR from which on a copy counts as exact, of `exact_share`.
        words: The bound in words.
        assumption: What it rests on.
        binds: Which attackers it binds.
        batches: Number of batches it was found for.
        reason: Why there is no bound of a kind.
    """

    case: str
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
    reason: str | None = None


class EpsilonRow(JsonRecord):
    """The measured privacy of one case's defense, beside what is stated and computed. A field is None without a value.

    Attributes:
        case: The case's name.
        defense: The defense's `repr`.
        delta: The delta of all epsilons.
        rounds: Rounds that they are over.
        unit: What joins or leaves: a client's `update`, or one `example`.
        stated: The claimed epsilon.
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

    case: str
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

    @property
    def short_of(self) -> str:
        """That the calls could not have contradicted a claim without an assumption; empty where they could.

        >>> EpsilonRow(case="a", stated=10.0, ceiling=7.06, calls=12000).short_of
        'The stated epsilon is 10 and 12,000 calls could show 7.06 at the most: without assumptions they cannot \
contradict it'
        """
        claims = [("stated", self.stated), ("computed", self.computed)]
        beyond = [(what, value) for what, value in claims if value is not None and value >= (self.ceiling or math.inf)]
        return "" if not beyond or self.contradicted else ceiling_words(*beyond[0], self.ceiling or 0.0, self.calls)


def ceiling_words(what: str, claimed: float, ceiling: float, calls: int) -> str:
    """That so many calls of a defense cannot contradict a claimed epsilon without an assumption."""
    return (
        f"The {what} epsilon is {claimed:.3g} and {calls:,} calls could show {ceiling:.3g} at the most: without "
        "assumptions they cannot contradict it"
    )


# --- the parts of a verdict --------------------------------------------------------------------------------------

SummaryName = Literal["reconstruction", "membership_inference", "upper_bound", "empirical_epsilon"]
"""What a verdict says in its four parts."""


class SummaryPart(JsonRecord):
    """One part of a verdict: the worst of all cases, with its interval.

    Attributes:
        name: `reconstruction` (examples that attacks found), `membership_inference` (who was identified as a member),
            `upper_bound` (limits that hold for every attacker) or `empirical_epsilon` (a lower bound on the epsilon of
            the defense, found by calling it).
        tried: Whether there is a finding; otherwise `words` says why not, and how to ask for it.
        words: The finding in words.
        case: The case that it is about.
        value: The number of the finding.
        low: Lower end of its 95 % interval.
        high: Its upper end.
    """

    name: SummaryName
    tried: bool
    words: str
    case: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def title(self) -> str:
        """The name for people."""
        return {"membership_inference": "membership", "empirical_epsilon": "measured epsilon"}.get(
            self.name, self.name.replace("_", " ")
        )
