"""The sides of a verdict: what came back, who was named, what none can exceed, and how private a defense measures.

Each side states the worst of all cases with its interval, or that it was not tried and how to ask for it.
"""

from collections.abc import Mapping, Sequence

from seepage.audit.row import Cell, MembershipRow, Row, Side
from seepage.metrics.membership import Rate


def sides(rows: Sequence[Row], members: Sequence[MembershipRow], cells: Sequence[Cell]) -> list[Side]:
    """All sides of a run, in the order in which they are shown.

    Args:
        rows: The attacks' rows.
        members: The membership tests' rows.
        cells: All cells.
    """
    headings = {cell.name: cell.heading for cell in cells}
    return [came_back(rows, headings), named(members, headings)]


def came_back(rows: Sequence[Row], headings: Mapping[str, str]) -> Side:
    """The largest share of private examples that an attack rebuilt.

    Exact ones count where there are any, else recognizable ones. The interval is Clopper and Pearson's, which takes
    the examples for independent; those of one batch are not quite.

    >>> row = Row(cell="a", attack="x", outcome="exact", examples=4, scores={"exact": {"mean": 1.0}, "psnr":
    ...     {"mean": 99.0}, "recovered": {"mean": 1.0}})
    >>> came_back([row], {"a": "net"}).words
    '4 of 4 examples exactly [40 %, 100 %], by x on net'
    """
    scored = [row for row in rows if row.scored and row.examples]
    certified = [row for row in rows if row.certified is not None and row.certified.n]
    if not scored and certified:
        best = max(certified, key=lambda row: row.certified.n if row.certified else 0)
        assert best.certified is not None
        words = f"{best.certified.n} guesses certified, by {best.attack} on {headings[best.cell]}; no truth at hand"
        return Side(name="came_back", tried=True, words=words, cell=best.cell)
    if not scored:
        why = "no guess could be scored" if any(row.gave_result for row in rows) else "no attack gave a result"
        return Side(name="came_back", tried=False, words=f"not known: {why}")
    worst = max(scored, key=lambda row: (row.mean("exact") or 0.0, row.mean("recovered") or 0.0))
    exact = bool(worst.mean("exact"))
    assert worst.examples is not None
    rate = Rate(worst.count("exact" if exact else "recovered") or 0, worst.examples)
    low, high = rate.interval
    how = "exactly" if exact else "recognizably"
    by = f", by {worst.attack} on {headings[worst.cell]}" if rate.hits else ", by any attack in any case"
    words = f"{rate.hits} of {rate.trials} examples {how} {_range(low, high)}{by}"
    return Side(name="came_back", tried=True, words=words, cell=worst.cell, value=rate.share, low=low, high=high)


def named(members: Sequence[MembershipRow], headings: Mapping[str, str]) -> Side:
    """The largest share of members that a membership test named.

    >>> named([], {}).words
    'not tried: ask with --membership'
    """
    judged = [row for row in members if row.named is not None]
    if not judged:
        lacking = next((row.reason for row in members if row.reason), None)
        return Side(name="named", tried=False, words=f"not tried: {lacking or 'ask with --membership'}")
    worst = max(judged, key=lambda row: (row.tpr or 0.0, row.auc or 0.0))
    assert worst.named is not None
    assert worst.false is not None
    hit, false = worst.named, worst.false
    words = (
        f"{hit.hits} of {hit.of} members {_range(hit.low, hit.high)}, and {false.hits} of {false.of} others "
        f"{_range(false.low, false.high)}, at a level of {100 * (worst.level or 0.0):g} %, by {worst.test} on "
        f"{headings[worst.cell]}"
    )
    return Side(name="named", tried=True, words=words, cell=worst.cell, value=worst.tpr, low=hit.low, high=hit.high)


def _range(low: float, high: float) -> str:
    return f"[{100 * low:.0f} %, {100 * high:.0f} %]"
