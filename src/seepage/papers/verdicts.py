"""Decide claims: on the paper's own printed numbers, and on ours with their intervals.

A comparison is decided by the 95 % interval of the difference. With two seeds or more it is Student's interval of the
mean difference over the seeds, each seed's numbers being of the same examples and weights. With one seed it runs
between the ends of the two numbers' own intervals over examples or batches. A number with neither decides nothing.

Two rules keep a claim from staying open where there is no effect. An order without a margin also fails where its
interval holds zero and excludes half of the paper's own difference. And where all that a claim compares by PSNR lies
below the mean color of the images, nothing was read: an order does not hold, or, where the failed searches stand in it
all the same, nobody can tell; nor can anybody where they are alike, as a claim of no effect has it.

PSNR counts up to `EXACT_DB`: at that, every value of an image of 8 bits is right, and rounding orders the rest. A
training loss counts up to `DIVERGED`: beyond, how far training went astray is no matter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

from seepage.papers.claims import At, Claim, ClaimPart
from seepage.papers.lines import Line
from seepage.papers.records import Record

Verdict = Literal["holds", "does not hold", "cannot tell"]

EXACT_DB = 60.0
"""PSNR in dB up to which numbers are distinguished. An error of half a step of 8 bits is 54 dB."""

DIVERGED = 10.0
"""Training loss in nats beyond which training has failed; guessing among 1,000 classes has 6.9."""

LEVEL = 0.95
"""Of the intervals."""

TOPS = {"psnr": EXACT_DB, "psnr_nearest": EXACT_DB, "psnr_quadrants": EXACT_DB, "loss": DIVERGED}
"""Up to where numbers of a metric are distinguished."""

_ROUNDING = 1e-9
"""Differences of printed numbers, such as 0.3 - 0.2, are off by this much at most."""


@dataclass(frozen=True)
class Number:
    """One number to compare.

    Attributes:
        mean: The number.
        low: Lower end of its interval; None where it has none.
        high: Upper end.
        seeds: Each seed's own number.
        metric: What it is, if that is not the row's own metric.
        better: Whether more of it is better, or less.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    seeds: Mapping[str, float] | None = None
    metric: str | None = None
    better: Literal["more", "less"] = "more"


@dataclass(frozen=True)
class Decided:
    """A comparison and what our numbers say of it.

    Attributes:
        comparison: What the claim says.
        found: Whether it does; None where our numbers do not tell.
        left: The number it is about; None where it was not measured.
        right: What that is compared with.
        low: Lower end of the interval of the difference, on the better side; None where there is none.
        high: Its upper end.
        data: The data set that was used.
        by: Margin that the claim requires.
        stands_in: Whether it is of another metric than the row's own, which could not be measured.
    """

    comparison: ClaimPart
    found: bool | None
    left: float | None = None
    right: float | None = None
    low: float | None = None
    high: float | None = None
    data: str = ""
    by: float = 0.0
    stands_in: bool = False

    @property
    def measured(self) -> bool:
        return self.left is not None and self.right is not None


@dataclass(frozen=True)
class Judged:
    """The verdict on one claim at one size.

    Attributes:
        claim: The claim.
        size: `small` or `paper`.
        parts: All of its comparisons.
        above_mean_color: Interval of the PSNR that it compares less the mean color's, in dB, on average over its cells;
            None where one of these is above, where it compares something else, or with fewer than two seeds.
    """

    claim: Claim
    size: str
    parts: tuple[Decided, ...]
    above_mean_color: tuple[float, float] | None = None

    @property
    def measured(self) -> int:
        """Number of its comparisons that have numbers."""
        return sum(part.measured for part in self.parts)

    @property
    def nothing_read(self) -> bool:
        """Whether all that it compares lies below the mean color of the images, on average by the interval."""
        return self.above_mean_color is not None and self.above_mean_color[1] < 0

    @property
    def verdict(self) -> Verdict | None:
        """None where none of its comparisons was measured."""
        found = [part.found for part in self.parts if part.measured]
        if not found:
            return None
        as_claimed = all(found)
        if self.nothing_read:
            # An order among failed searches is no order. That they are alike says nothing, and nor does that they are
            # not known to be.
            unlike = any(one is False for one in found) or not all(part.comparison.within for part in self.parts)
            return "does not hold" if unlike and not as_claimed else "cannot tell"
        if any(one is False for one in found):
            return "does not hold"
        return "holds" if as_claimed else "cannot tell"

    def count(self, found: bool | None) -> int:
        """Number of measured comparisons with this outcome."""
        return sum(part.measured and part.found is found for part in self.parts)

    @property
    def data(self) -> list[str]:
        """The data sets that it was tested on."""
        return list(dict.fromkeys(part.data for part in self.parts if part.measured and part.data))


def judge(claim: Claim, lines: Sequence[Line], columns: int, records: Sequence[Record]) -> list[Judged]:
    """The verdicts on a claim from an item's records, one for each size in them, the paper's first."""
    found = []
    for size in ("paper", "small"):
        own = [record for record in records if record.size == size]
        if own:
            parts = [part for one in claim.comparisons(lines, columns) for part in _on_each_data(one, own, claim)]
            found.append(Judged(claim, size, tuple(_once(parts)), _above_mean_color(parts, own)))
    return found


def _once(parts: Sequence[Decided]) -> Iterator[Decided]:
    """The comparisons; one of a metric that stands in counts where no other one is of the same numbers."""

    def numbers(part: Decided) -> tuple[str, str, str]:  # facts are kept to four digits
        return f"{part.left or 0:.3g}", f"{part.right or 0:.3g}", part.data

    seen = {numbers(part) for part in parts if part.measured and not part.stands_in}
    for part in parts:
        if part.stands_in and numbers(part) in seen:
            yield Decided(part.comparison, None, data=part.data)
            continue
        seen.add(numbers(part))
        yield part


def _above_mean_color(parts: Sequence[Decided], records: Sequence[Record]) -> tuple[float, float] | None:
    """Student's interval, over the seeds, of the mean over all compared cells of PSNR less the mean color's, in dB.

    None where a cell lies above the mean color, in the mean over its seeds.
    """
    cells = dict[tuple[int, int, str], Record]()
    for part in parts:
        left, right = part.comparison.left, part.comparison.right
        if not isinstance(right, At) or not left.line.metric.startswith("psnr"):
            return None
        for at in (left, right) if part.measured else ():
            record = _record_at(at, records, part.data)
            if record is not None:
                cells[id(at.line), at.column, record.data] = record
    gains = [_gains(record) for record in cells.values()]
    shared = set.intersection(*map(set, gains)) if gains else set[str]()
    if len(shared) < 2 or any(sum(one[seed] for seed in shared) >= 0 for one in gains):
        return None
    return student([sum(one[seed] for one in gains) / len(gains) for seed in sorted(shared)])


def _gains(record: Record) -> dict[str, float]:
    """Each seed's PSNR less the mean color's, where both are known."""
    found = {}
    for seed, scores in record.facts.get("by_seed", {}).items():
        # The mean color's is of whole images.
        own = scores.get("psnr") if record.metric == "psnr_quadrants" else record.seeds.get(seed)
        psnr, mean_color = own, scores.get("mean_color_psnr")
        if psnr is not None and mean_color is not None:
            found[seed] = min(psnr, EXACT_DB) - mean_color
    return found


def _on_each_data(comparison: ClaimPart, records: Sequence[Record], claim: Claim) -> list[Decided]:
    """A comparison on each data set that was used; the paper's own sets alone, where they were."""
    used = _data_of(comparison.left.line, records) or [""]
    return [
        decide(
            comparison,
            lambda at, data=data: _ours(at, records, data, claim),  # type: ignore[misc]
            exact=claim.exact,
            cap=True,
            baseline=lambda at, data=data: _baseline(at, records, data, comparison.right),  # type: ignore[misc]
            data=data,
        )
        for data in used
    ]


def _data_of(line: Line, records: Sequence[Record]) -> list[str]:
    """Data sets with numbers of a row; packaged ones only where there is no other."""
    from seepage.federation.data import is_packaged

    found = list(dict.fromkeys(r.data for r in records if (r.row, r.paper_data) == (line.name, line.data)))
    return [data for data in found if not is_packaged(data)] or found


def _record_at(at: At, records: Sequence[Record], data: str) -> Record | None:
    same = [r for r in records if (r.row, r.paper_data, r.column) == (at.line.name, at.line.data, at.column)]
    # rows of another data set, which a claim may compare across, have one of their own
    own = [r for r in same if r.data == data] or [r for r in same if r.data in _data_of(at.line, same)]
    return own[0] if own else None


def _ours(at: At, records: Sequence[Record], data: str, claim: Claim) -> Number | None:
    """Our number at a cell, or that of the metric in its place."""
    record = _record_at(at, records, data)
    if record is None:
        return None
    if record.value is not None:
        low, high = record.interval or _moved(record)
        seeds = {seed: value for seed, value in record.seeds.items() if value is not None}
        return Number(record.value, low, high, seeds, better=at.line.better)
    if claim.instead is None or record.facts.get(claim.instead) is None:
        return None
    by_seed = record.facts.get("by_seed", {}) if len(record.seeds) > 1 else dict.fromkeys(record.seeds, record.facts)
    known = {seed: scores.get(claim.instead) for seed, scores in by_seed.items()}
    seeds = {seed: value for seed, value in known.items() if value is not None}
    low, high = record.facts.get("intervals", {}).get(claim.instead, (None, None))
    return Number(record.facts[claim.instead], low, high, seeds, metric=claim.instead)


def _moved(record: Record) -> tuple[float | None, float | None]:
    """For older records of the best guess's PSNR, which have no interval of their own: that of one guess for one image.

    It is over the same examples and lies about another mean, so it is moved to the record's.
    """
    known = [record.facts.get(key) for key in ("psnr", "psnr_low", "psnr_high")]
    if record.metric != "psnr_nearest" or record.value is None or None in known or len(record.seeds) > 1:
        return None, None
    mean, low, high = (float(number) for number in known if number is not None)
    return record.value + low - mean, record.value + high - mean


def _baseline(at: At, records: Sequence[Record], data: str, name: object) -> Number | None:
    record = _record_at(at, records, data)
    value = None if record is None else record.facts.get(str(name))
    return None if value is None else Number(value, value, value, better=at.line.better)


def decide(
    comparison: ClaimPart,
    number: Callable[[At], Number | None],
    *,
    exact: bool,
    cap: bool,
    baseline: Callable[[At], Number | None] = lambda at: None,
    data: str = "",
) -> Decided:
    """Whether a comparison that a paper claims holds for our numbers.

    Args:
        comparison: The two numbers, their order and the least margin.
        number: Number at a place of the table; None: not measured.
        exact: Whether the numbers are exact, so that no interval over seeds is needed.
        cap: Whether metrics are cut at `TOPS`, beyond which differences do not matter.
        baseline: Number of the baseline at a place.
        data: Data set of the numbers.
    """
    left, right = number(comparison.left), comparison.right
    if isinstance(right, At):
        other = number(right)
    elif isinstance(right, str):
        other = baseline(comparison.left)
    else:
        other = Number(right, right, right)
    if left is None or other is None:
        return Decided(comparison, None, data=data)
    metric = left.metric or comparison.left.line.metric
    if left.metric and isinstance(right, float):  # a level is in the unit of the row's own metric
        return Decided(comparison, None, data=data)
    top = TOPS.get(metric, inf) if cap else inf
    low, high = _difference(left, other, top, exact)
    if left.better == "less" and low is not None and high is not None:
        low, high = -high, -low  # on the better side
    # So is a margin: where another metric is read, only the order counts.
    by = min(comparison.by, 0.0) if left.metric else comparison.by
    least = _half_of_papers(comparison) if cap and not exact and left.metric is None else 0.0
    found = _found(comparison, by, low, high, least)
    mine, others = (_over(one, _shared(left, other)) for one in (left, other))
    return Decided(comparison, found, mine, others, low, high, data, by, left.metric is not None)


def _over(number: Number, seeds: Sequence[str]) -> float:
    """The mean over some of its seeds; the number itself where it has none, or all of them are asked for."""
    own = number.seeds or {}
    if not own or not seeds or own.keys() == set(seeds):
        return number.mean
    return sum(own[seed] for seed in seeds) / len(seeds)


def _shared(left: Number, right: Number) -> list[str]:
    """The seeds by which a difference is taken, or those of the left number where the right one is a level."""
    own = (left.seeds or {}).keys()
    return sorted(own & right.seeds.keys() if right.seeds else own)


def _half_of_papers(comparison: ClaimPart) -> float:
    """Half of the difference that the paper prints for an order, on the better side; 0 where it prints none."""
    left, right = comparison.left, comparison.right
    if not isinstance(right, At) or comparison.within:
        return 0.0
    mine, other = left.line.paper_at(left.column), right.line.paper_at(right.column)
    if mine is None or other is None:
        return 0.0
    return (mine - other if left.line.better == "more" else other - mine) / 2


def _found(comparison: ClaimPart, by: float, low: float | None, high: float | None, least: float = 0.0) -> bool | None:
    """Whether an interval of the difference lies on the claim's side; None where it lies on both.

    Without a margin, an interval that holds zero and ends below `least` says that there is no effect of the size the
    paper has.
    """
    if low is None or high is None:
        return None
    if comparison.within:
        least, most = (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
        return True if most <= by + _ROUNDING else False if least > by + _ROUNDING else None
    if comparison.at_most:
        low, high = -high, -low
    if isinstance(comparison.right, At) and by == low == high == 0:
        return None  # both exact, or the same: neither is the better one
    if low >= by - _ROUNDING:
        return True
    return False if high < by - _ROUNDING or (low <= 0 <= high < least and by == 0) else None


def _by_seed(left: Number, right: Number, top: float) -> list[float]:
    """Left minus right, both counted up to `top`, of each seed that both have; of each of the left, less a level."""
    mine, other = left.seeds or {}, right.seeds or {}
    if not other:
        return [min(value, top) - min(right.mean, top) for value in mine.values()]
    return [min(mine[seed], top) - min(other[seed], top) for seed in sorted(mine.keys() & other.keys())]


def _difference(left: Number, right: Number, top: float, exact: bool) -> tuple[float | None, float | None]:
    """The interval of left minus right, both counted up to `top`."""
    if exact:
        difference = min(left.mean, top) - min(right.mean, top)
        return difference, difference
    differences = _by_seed(left, right, top)
    if len(differences) > 1 and right.seeds:
        return student(differences)
    if right.seeds and (left.seeds or {}).keys() != right.seeds.keys():
        return None, None  # of one shared seed no interval is kept, and the others are other batches
    a, b = _interval(left, top), _interval(right, top)
    if a is None or b is None:
        return None, None
    return a[0] - b[1], a[1] - b[0]


def _interval(number: Number, top: float) -> tuple[float, float] | None:
    if number.seeds and len(number.seeds) > 1:
        return student([min(value, top) for value in number.seeds.values()])
    if number.low is None or number.high is None:
        return None
    return min(number.low, top), min(number.high, top)


def student(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean of two numbers or more.

    With `m` the mean and `s` the deviation of `k` numbers: `m -+ t(k - 1) s / sqrt(k)`.

    >>> low, high = student([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    from scipy.stats import t

    count = len(values)
    mean = sum(values) / count
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * deviation / sqrt(count)
    return mean - half, mean + half


def in_words(judged: Judged) -> str:
    """The verdict as a reader sees it. In the small size, which is another experiment, it does not speak of the paper.

    With how many of the measured comparisons came out so, and how many could not be measured.
    """
    small = {"holds": "seen in small", "does not hold": "not seen in small", "cannot tell": "cannot tell in small"}
    verdict = judged.verdict
    if verdict is None:
        return "not tested"
    word = small[verdict] if judged.size == "small" else verdict
    missing = len(judged.parts) - judged.measured
    rest = f"; {missing} not measured" if missing else ""
    own = ", by seepage's own algorithm" if judged.claim.own else ""
    if judged.nothing_read and judged.above_mean_color is not None:
        low, high = (-end for end in judged.above_mean_color)
        order = "as claimed, but nothing is read" if verdict == "cannot tell" else "nothing is read"
        by = f"by {high:.1f} to {low:.1f} dB on average, 95 % interval"
        return f"{word}{own} ({order}: below the mean color {by}{rest})"
    counts = {"yes": judged.count(True), "no": judged.count(False), "open": judged.count(None)}
    return f"{word}{own} ({', '.join(f'{count} {what}' for what, count in counts.items() if count)}{rest})"
