"""What a bound is: an upper bound for any attacker of a stated kind, and the sentence that it rests on."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Measure = Literal["exact_share", "tpr", "auc"]
"""What is bounded, from above."""

Method = Literal["rero", "membership"]

WORDS: dict[Measure, str] = {
    "exact_share": "examples reconstructed exactly",
    "tpr": "members identified",
    "auc": "area under the curve of a membership test",
}


@dataclass(frozen=True)
class Bound:
    """An upper bound for any attacker of the stated kind.

    Attributes:
        measure: What is bounded.
        method: How it was found.
        value: The bound, from 0 to 1.
        interval: `(low, high)` 95 % interval of the bound's own estimation; both equal to `value` where it is computed
            and not estimated.
        assumption: What it rests on, one sentence.
        binds: Which attackers it binds.
        at: The false positive rate of a `tpr`, the PSNR from which on a picture counts as exact; None for others.

    >>> Bound("tpr", "membership", 0.04, (0.04, 0.04), "clip 1.", "all", at=0.01).line
    'members identified: at most 4 % at 1 % false alarms'
    """

    measure: Measure
    method: Method
    value: float
    interval: tuple[float, float]
    assumption: str
    binds: str
    at: float | None = None

    @property
    def vacuous(self) -> bool:
        """Whether the bound excludes no attack."""
        return self.interval[1] >= 0.9995

    @property
    def line(self) -> str:
        """One line for a log."""
        words = WORDS[self.measure]
        if self.vacuous:
            return f"{words}: not bounded"
        if self.measure == "auc":
            return f"{words}: at most {self.value:.3f}"
        share = f"{100 * self.value:.3g} %"
        if self.measure == "tpr":
            return f"{words}: at most {share} at {100 * (self.at or 0):g} % false alarms"
        return f"{words}: at most {share} on average (from {self.at:g} dB)"

    def table(self) -> dict[str, Any]:
        """The bound as JSON."""
        return {"line": self.line, **asdict(self)}


@dataclass(frozen=True)
class UpperBounds:
    """All bounds that hold for one update, and why others do not.

    Attributes:
        bounds: Those that hold.
        reasons: Why a kind of bound is not there, one sentence each.
    """

    bounds: tuple[Bound, ...]
    reasons: tuple[str, ...] = ()

    def of(self, measure: Measure) -> Bound | None:
        """The tightest bound on a measure; None where none holds."""
        found = [bound for bound in self.bounds if bound.measure == measure]
        return min(found, key=lambda bound: bound.value, default=None)

    def table(self) -> dict[str, Any]:
        """The bounds as JSON."""
        return {"bounds": [bound.table() for bound in self.bounds], "reasons": list(self.reasons)}
