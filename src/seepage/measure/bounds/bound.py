"""What a bound is: an upper bound for any attacker of a stated kind, and the sentence that it rests on."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Measure = Literal["psnr_db", "exact_share", "tpr", "auc", "rank", "unseen_share"]
"""What is bounded: the first five from above, what no attacker sees (`unseen_share`) from below."""

Method = Literal["van_trees", "rero", "membership", "rank", "count"]

SAME_DB = 100.0
"""A PSNR that no eye and no 16 bits tell from equality: a bound above it forbids nothing."""

WORDS: dict[Measure, str] = {
    "psnr_db": "PSNR of the batch's mean error",
    "exact_share": "examples reconstructed exactly",
    "tpr": "members identified",
    "auc": "area under the curve of a membership test",
    "rank": "numbers about the batch that can be read",
    "unseen_share": "energy that no attacker sees",
}


@dataclass(frozen=True)
class Bound:
    """An upper bound for any attacker of the stated kind.

    Attributes:
        measure: What is bounded.
        method: How it was found.
        value: The bound: decibels, a share from 0 to 1, or a count. `unseen_share` is a lower limit of what is
            hidden, all others are upper limits of what can be reached.
        interval: `(low, high)` 95 % interval of the bound's own estimation; both equal to `value` where it is computed
            and not estimated.
        assumption: What it rests on, one sentence.
        binds: Which attackers it binds.
        at: The false positive rate of a `tpr`, the PSNR from which on a picture counts as exact, or how many private
            numbers there are, for a `rank`; None for others.
        examples: The same for each example of the batch, where it is known.
        pixels: `[n, *shape]` share of each input value that is hidden, where it is known.

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
    examples: tuple[float, ...] = ()
    pixels: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def vacuous(self) -> bool:
        """Whether the bound excludes no attack."""
        if self.measure == "unseen_share":
            return self.value <= 0
        if self.measure == "rank":
            return self.at is not None and self.value >= self.at
        if self.measure == "psnr_db":
            return self.value >= SAME_DB
        return self.measure in ("tpr", "auc", "exact_share") and self.interval[1] >= 0.9995

    @property
    def line(self) -> str:
        """One line for a log."""
        words = WORDS[self.measure]
        if self.vacuous:
            return f"{words}: not bounded"
        if self.measure == "psnr_db":
            return f"{words}: at most {self.value:.1f} dB"
        if self.measure == "rank":
            return f"{words}: at most {self.value:,.0f}" + ("" if self.at is None else f" of {self.at:,.0f}")
        if self.measure == "auc":
            return f"{words}: at most {self.value:.3f}"
        share = f"{100 * self.value:.3g} %"
        if self.measure == "unseen_share":
            return f"{words}: at least {share}"
        if self.measure == "tpr":
            return f"{words}: at most {share} at {100 * (self.at or 0):g} % false alarms"
        return f"{words}: at most {share} on average (from {self.at:g} dB)"

    def table(self) -> dict[str, Any]:
        """The bound as JSON, without the map of pixels."""
        return {
            "line": self.line,
            "measure": self.measure,
            "method": self.method,
            "value": self.value,
            "interval": list(self.interval),
            "at": self.at,
            "assumption": self.assumption,
            "binds": self.binds,
            "examples": list(self.examples),
        }


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
        tightest = max if measure == "unseen_share" else min
        return tightest(found, key=lambda bound: bound.value, default=None)

    def table(self) -> dict[str, Any]:
        """The bounds as JSON."""
        return {"bounds": [bound.table() for bound in self.bounds], "reasons": list(self.reasons)}
