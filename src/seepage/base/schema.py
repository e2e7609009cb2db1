"""Tables of JSON as typed records: what a file holds is checked once, and a damaged file is one sentence."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from seepage.errors import SeepageError


class JsonRecord(BaseModel):
    """What one table of a JSON file holds. Types are exact (no number from a text); unknown keys are passed over."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", populate_by_name=True)


class Finding(JsonRecord):
    """One thing that was seen without an attack, or that a reader must know before believing a number.

    Code asks for `name`; `message` is for people and is never compared or taken apart.

    Attributes:
        case: The case it is about; None: the whole run.
        attack: The attack it is about; None: the whole case.
        name: Short name that stays the same between versions, such as `noised` or `objective-limits`.
        message: What was seen and what it means, for a reader who knows federated learning but not attacks.
        severity: `warning`: a number may mislead. `note`: good to know.
        evidence: The measured numbers behind it, by name.
        limit: What it does not show; empty where the message says all.
        tensors: Parameters that would have to be withheld or noised to close it.
    """

    case: str | None = None
    attack: str | None = None
    name: str
    message: str
    severity: Literal["note", "warning"] = "note"
    evidence: Mapping[str, Any] = {}
    limit: str = ""
    tensors: Sequence[str] = ()

    def of(self, case: str, attack: str | None = None) -> Self:
        """The same, of this case and attack."""
        return self.model_copy(update={"case": case, "attack": attack})


class Share(JsonRecord):
    """So many of so many, with the 95 % interval of Clopper and Pearson (1934), which is exact.

    Attributes:
        hits: How many.
        of: Of how many.
        low: Lower end of the interval of `hits / of`.
        high: Its upper end.

    >>> found = Share.count(6, 8)
    >>> found.share, f"{found.low:.3f} to {found.high:.3f}"
    (0.75, '0.349 to 0.968')
    """

    hits: int
    of: int
    low: float
    high: float

    @classmethod
    def count(cls, hits: int, of: int) -> Self:
        """The share with its interval, to eight digits.

        Raises:
            SeepageError: Where these are no hits of at least one trial.
        """
        from scipy.stats import binomtest

        if not 0 <= hits <= of or not of:
            raise SeepageError(f"a share is of at least one trial, got {hits} of {of}; count again")
        found = binomtest(hits, of).proportion_ci(0.95, method="exact")
        return cls(hits=hits, of=of, low=round(float(found.low), 8), high=round(float(found.high), 8))

    @property
    def share(self) -> float:
        """Hits per trial."""
        return self.hits / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the interval."""
        return self.low, self.high

    @property
    def range(self) -> str:
        """Both ends in words, such as `[40 %, 100 %]`."""
        return f"[{100 * self.low:.0f} %, {100 * self.high:.0f} %]"


LARGEST = 1e30
"""Size of a number of a summary: nothing that is measured is larger."""


class Summary(JsonRecord):
    """One metric over all examples of a case.

    Attributes:
        mean: Mean over the examples.
        median: The value that half of the examples or more reach.
        low: Lower end of the 95 % interval of the mean, by bootstrap, of a count by Clopper and Pearson; None for a
            single example, or where none was made.
        high: Its upper end.
        n: Examples that have a value.
    """

    mean: float
    median: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @field_validator("mean", "median", "low", "high")
    @classmethod
    def _bounded(cls, number: float | None) -> float | None:
        """Sums and roundings of what is measured are finite."""
        if number is not None and LARGEST < abs(number) < math.inf:
            raise ValueError(f"a number of a summary is at most {LARGEST:g}, and not {number:g}")
        return number

    def rounded(self, digits: int) -> "Summary":
        """A copy with numbers rounded to so many decimals.

        >>> Summary(mean=0.123456, n=2).rounded(4)
        Summary(mean=0.1235, median=None, low=None, high=None, n=2)
        """
        found = {key: getattr(self, key) for key in ("median", "low", "high")}
        ends = {key: None if number is None else round(number, digits) for key, number in found.items()}
        return self.model_copy(update={"mean": round(self.mean, digits), **ends})


class Guarantee(JsonRecord):
    """What the defense guarantees in differential privacy towards the server, which sees who takes part.

    Attributes:
        epsilon: None where none holds or none could be counted.
        delta: The chance that it does not hold.
        unit: What it protects: one `example`, or one `update` of a client.
        rounds: Rounds that were counted.
        accountant: Who counted epsilon, and how rounds compose; data sets are neighbors where one unit joins or leaves.
        caveats: Why not to trust it, one sentence each.
    """

    epsilon: float | None = None
    delta: float | None = None
    unit: str = ""
    rounds: int | None = None
    accountant: str = ""
    caveats: tuple[str, ...] = ()

    @field_validator("caveats", mode="before")
    @classmethod
    def _as_tuple(cls, found: Any) -> Any:
        return tuple(found) if isinstance(found, list) else found

    @property
    def phrase(self) -> str:
        """In words."""
        if self.epsilon is None or self.delta is None:
            return f"no epsilon: {self.caveats[0]}" if self.caveats else "no epsilon"
        unit = "example" if self.unit == "example" else "client's update"
        over = f"over {self.rounds} round{'' if self.rounds == 1 else 's'}"
        return f"epsilon = {self.epsilon:.3g} at delta = {self.delta:g} for each {unit}, {over}"

    @property
    def terms(self) -> str:
        """What the phrase rests on, in words.

        >>> Guarantee(epsilon=1.0, delta=1e-5, unit="example", rounds=1, accountant="by hand").terms
        'unit of privacy: one example, which joins or leaves; accountant and composition: by hand; caveats: none found'
        """
        accountant = self.accountant or "not recorded"
        return (
            f"unit of privacy: one {self.unit}, which joins or leaves; accountant and composition: {accountant}; "
            f"caveats: {'; '.join(self.caveats) or 'none found'}"
        )


T = TypeVar("T", bound=JsonRecord)


def parse(kind: type[T], found: object, where: str) -> T:
    """A record from what was read.

    Args:
        kind: The type of the record.
        found: What was read.
        where: The file, for the message.

    Raises:
        SeepageError: Where a key is missing or its value is not what it must be.

    >>> class Point(JsonRecord):
    ...     x: float
    >>> parse(Point, {"x": 17, "newer": 1}, "here")
    Point(x=17.0)
    """
    with _told(where):
        return kind.model_validate(found)


def parse_all(kind: type[T], found: object, where: str) -> list[T]:
    """A list of records from what was read; see `parse`."""
    if not isinstance(found, list):
        raise SeepageError(f"{where} is damaged: it must hold a list of {kind.__name__.lower()}s; make the run again")
    with _told(where):
        return TypeAdapter(list[kind]).validate_python(found)  # type: ignore[valid-type]


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Turn pydantic's report of all mistakes into one sentence about the first."""
    try:
        yield
    except ValidationError as error:
        words = describe_damage(error.errors(include_url=False)[0])
        raise SeepageError(f"{where} is damaged: {words}; make the run again") from None


def describe_damage(mistake: Any) -> str:
    """One of pydantic's mistakes in words, by the innermost key that has a name."""
    place, value = mistake["loc"], f"{mistake['input']!r:.40}"
    name = next((part for part in reversed(place) if isinstance(part, str)), "")
    match mistake["type"]:
        case "missing":
            return f"it lacks {name!r}" if len(place) == 1 else f"an entry lacks {name!r}"
        case "model_type":
            return f"{value} is no table"
        case "list_type":
            return f"it must hold a list of {name}, not {value}"
        case "damaged":
            return str(mistake["msg"])
    return f"{name!r} cannot be {value}"
