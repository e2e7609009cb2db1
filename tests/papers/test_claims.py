"""Claims of the papers: what they say, what the papers' own numbers say of them, and how ours are judged."""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import check_each
from scipy import stats

from seepage.audit.recipe.files import find_recipe
from seepage.errors import Problems
from seepage.federation.data import is_packaged
from seepage.papers import OTHERS, Item, Record, judge, list_items
from seepage.papers.claims import At, Claim
from seepage.papers.items import item_of
from seepage.papers.lines import Line
from seepage.papers.verdicts import Judged, Number, decide, in_words, student

ROOT = Path(__file__).parents[2]

# --- the claims that ship ----------------------------------------------------------------------------------------


@pytest.mark.docs
def test_all_tables_and_figures_of_the_papers_are_in_the_book() -> None:
    """11 + 8, 5 + 12 and 19 + 12: every number once, with a recipe or with a reason."""
    counts = {"cafe": (11, 8), "cpa": (5, 12), "fedleak": (19, 12)}
    wanted = [
        f"{paper}/{kind}-{number}"
        for paper, (tables, figures) in counts.items()
        for kind, last in (("table", tables), ("figure", figures))
        for number in range(1, last + 1)
    ]
    assert sorted([*list_items(), *(other.id for other in OTHERS)]) == sorted(wanted)
    assert len(wanted) == 67
    index = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    for other in OTHERS:
        assert f"- {other.item}, {other.about}: {other.kind}" in index


@pytest.mark.docs
def test_an_item_makes_claims_or_says_why_it_makes_none() -> None:
    unclear = [item.id for item in list_items().values() if bool(item.claims) == bool(item.expect.no_claim)]
    assert not unclear


def claims() -> Iterator[tuple[str, tuple[Item, Claim]]]:
    for item in list_items().values():
        for number, claim in enumerate(item.claims, 1):
            yield f"{item.id}, claim {number}", (item, claim)


@pytest.mark.docs
def test_the_papers_own_numbers_satisfy_every_claim() -> None:
    """One that they do not satisfy is transcribed wrongly."""
    check_each(claims(), paper_satisfies)


def paper_satisfies(case: tuple[Item, Claim]) -> None:
    item, claim = case
    judged = judge_paper(claim, item.lines, len(item.expect.columns))
    if claim.printed:
        assert judged.verdict == "holds", [part for part in judged.parts if part.measured and not part.found]
    else:
        assert judged.measured == 0, "the paper prints numbers for it: say printed = true"


@pytest.mark.docs
def test_a_claim_that_does_not_hold_says_what_differs() -> None:
    check_each(claims(), says_what_differs)


def says_what_differs(case: tuple[Item, Claim]) -> None:
    item, claim = case
    for one in judge(claim, item.lines, len(item.expect.columns), records_of(item.id)):
        assert one.verdict != "does not hold" or len(claim.differs) > 20, claim.text


# --- every verdict again, from the rows, by other code -----------------------------------------------------------


def records_of(item: str) -> list[Record]:
    path = ROOT / "results/reproduce" / f"{item.replace('/', '-')}.jsonl"
    if not path.exists():
        return []
    return [Record.model_validate(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


Ends = tuple[float, float] | None


class Oracle:
    """The verdict on a claim's table from an item's tables and lines as they lie in the files.

    Numbers are dictionaries, intervals are scipy's, and nothing of the package's judgement is used.
    """

    def __init__(self, expect: Mapping[str, Any], claim: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
        self.expect, self.claim, self.lines = expect, claim, lines
        self.rows = list(expect["rows"])
        self.columns = claim.get("only") or range(len(expect["columns"]))
        self.shown: set[tuple[float, float, str]] = set()

    def named(self, key: str) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if any(fnmatchcase(row["name"], p) for p in self.claim.get(key, ["*"]))]

    def pairs(self) -> list[tuple[Any, int, Any, Any, float, str]]:
        """(row, column, other row or level or baseline, other column, margin, kind)."""
        c, cols = self.claim, list(self.columns)
        by = c.get("by", 0.0)
        match c["relation"]:
            case "rows":
                return [
                    (a, k, b, k, by, "better")
                    for a, b in product(self.named("rows"), self.named("than"))
                    if c.get("across") or a.get("data", "") == b.get("data", "")
                    for k in cols
                ]
            case "columns":
                return [(a, i, a, j, by, "better") for a in self.named("rows") for i, j in c["pairs"]]
            case "monotone":
                steps = [(i, j) if c["gets"] == "worse" else (j, i) for i, j in pairwise(cols)]
                return [(a, i, a, j, by, "better") for a in self.named("rows") for i, j in steps]
            case "peak":
                return [(a, c["at"], a, j, by, "better") for a in self.named("rows") for j in cols if j != c["at"]]
            case "close" if "than" in c:
                both = product(self.named("rows"), self.named("than"))
                return [(a, k, b, k, c["margin"], "close") for a, b in both if a["data"] == b["data"] for k in cols]
            case "close":
                return [
                    (a, i, a, j, c["margin"], "close") for a in self.named("rows") for i, j in combinations(cols, 2)
                ]
            case _:
                right = c.get("level", c.get("baseline"))
                return [(a, k, right, None, 0.0, c["side"]) for a in self.named("rows") for k in cols]

    def at(self, row: Mapping[str, Any], column: int, size: str, data: str) -> Mapping[str, Any] | None:
        own = [
            line
            for line in self.lines
            if (line["size"], line["row"], line["paper_data"], line["column"])
            == (size, row["name"], row.get("data", ""), column)
        ]
        same = [line for line in own if line["data"] == data]
        other = [line for line in own if not is_packaged(line["data"])] or own
        return (same or other or [None])[0]

    def used(self, row: Mapping[str, Any], size: str) -> list[str]:
        own = [
            line["data"]
            for line in self.lines
            if (line["size"], line["row"], line["paper_data"]) == (size, row["name"], row.get("data", ""))
        ]
        own = list(dict.fromkeys(own))
        return [data for data in own if not is_packaged(data)] or own or [""]

    def number(self, line: Mapping[str, Any]) -> tuple[dict[str, float], Ends, float, bool] | None:
        """(by seed, ends, number, whether another metric stands in)."""
        facts, stand_in = line["facts"], line["value"] is None
        if stand_in:
            name = self.claim.get("instead")
            if name is None or name not in facts:
                return None
            seeds = {seed: scores[name] for seed, scores in facts.get("by_seed", {}).items() if name in scores}
            ends, value, top = facts.get("intervals", {}).get(name), facts[name], np.inf
        else:
            seeds = {seed: value for seed, value in line["seeds"].items() if value is not None}
            ends, value = line["interval"], line["value"]
            if ends is None and line["metric"] == "psnr_nearest" and len(seeds) < 2 and "psnr_low" in facts:
                ends = (value - facts["psnr"] + facts["psnr_low"], value - facts["psnr"] + facts["psnr_high"])
            top = {"psnr": 60.0, "psnr_nearest": 60.0, "loss": 10.0}.get(line["metric"], np.inf)
        seeds = {seed: min(one, top) for seed, one in seeds.items()}
        if len(seeds) > 1:
            ends = interval_of(list(seeds.values()))
        ends = None if ends is None else (min(ends[0], top), min(ends[1], top))
        return seeds, ends, min(value, top), stand_in

    def found(self, size: str) -> list[bool | str | None]:
        """For each comparison whether it holds; `missing` where a number is."""
        self.shown.clear()
        return [self.one(pair, size, data) for pair in self.pairs() for data in self.used(pair[0], size)]

    def one(self, pair: tuple[Any, ...], size: str, data: str) -> bool | str | None:
        row, column, other, second, by, kind = pair
        line = self.at(row, column, size, data)
        left = None if line is None else self.number(line)
        if line is None or left is None:
            return "missing"
        beside = None
        if isinstance(other, Mapping):
            beside = self.at(other, second, size, data)
            right = None if beside is None else self.number(beside)
        elif isinstance(other, str):
            value = line["facts"].get(other)
            right = None if value is None else ({}, (value, value), value, False)
        else:
            right = ({}, (other, other), other, False) if not left[3] else None
        if right is None:
            return "missing"
        own = line["facts"][self.claim["instead"]] if left[3] else line["value"]
        numbers = (round(own, 3), round(beside["value"] if beside and not right[3] else right[2], 3), data)
        if left[3] and numbers in self.shown:
            return "missing"  # another row shows the same
        self.shown.add(numbers)
        shared = sorted(left[0].keys() & right[0].keys())
        if self.claim.get("exact"):
            ends: Ends = (left[2] - right[2], left[2] - right[2])
        elif len(shared) > 1:
            ends = interval_of([left[0][seed] - right[0][seed] for seed in shared])
        elif left[1] is None or right[1] is None:
            return None
        else:
            ends = (left[1][0] - right[1][1], left[1][1] - right[1][0])
        assert ends is not None
        low, high = ends
        if row.get("better") == "less" and not left[3]:
            low, high = -high, -low
        if left[3]:
            by = None if kind == "close" else min(by, 0.0)
        found = decided(low, high, by, kind)
        if found is None and kind == "better" and isinstance(other, Mapping) and not left[3] and by is not None:
            sign = -1 if row.get("better") == "less" else 1
            half = sign * (printed(row, column) - printed(other, second)) / 2
            if by == 0 and low <= 0 <= high < half:  # False of a NaN
                return False
        return found

    def above_mean_color(self, size: str) -> Ends:
        """The interval of PSNR less the mean color's, where it orders PSNR of several seeds."""
        pairs = self.pairs()
        if not all(isinstance(p[2], Mapping) and p[5] == "better" for p in pairs):
            return None
        if not all(p[0].get("metric", "psnr") in ("psnr", "psnr_nearest") for p in pairs):
            return None
        cells: dict[str, Mapping[str, Any]] = {}
        for pair in pairs:
            for data in self.used(pair[0], size):
                both = [self.at(pair[0], pair[1], size, data), self.at(pair[2], pair[3], size, data)]
                if all(line is not None and self.number(line) is not None for line in both):
                    cells |= {json.dumps(line, sort_keys=True): line for line in both if line is not None}
        gains: list[dict[str, float]] = [
            {
                seed: min(line["seeds"][seed], 60.0) - scores["mean_color_psnr"]
                for seed, scores in line["facts"].get("by_seed", {}).items()
                if line["seeds"].get(seed) is not None and scores.get("mean_color_psnr") is not None
            }
            for line in cells.values()
        ]
        shared = set.intersection(*map(set, gains)) if gains else set()
        if any(sum(one[seed] for seed in shared) >= 0 for one in gains):
            return None
        means = [float(np.mean([one[seed] for one in gains])) for seed in shared]
        return interval_of(means) if len(means) > 1 else None


def printed(row: Mapping[str, Any], column: int) -> float:
    paper = row.get("paper", [])
    return float(paper[column]) if column < len(paper) else math.nan


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    if len(set(values)) == 1:  # scipy has NaN for it
        return values[0], values[0]
    found = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    return float(found.low), float(found.high)


def decided(low: float, high: float, by: float | None, kind: str) -> bool | None:
    if by is None:
        return None
    if kind == "close":
        least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return True if max(abs(low), abs(high)) <= by + 1e-9 else False if least > by + 1e-9 else None
    if kind == "worse":
        low, high = -high, -low
    if kind == "better" and by == 0 and low == high == 0:
        return None  # two that are both exact
    return True if low >= by - 1e-9 else False if high < by - 1e-9 else None


WORDS = {
    "paper": ("holds", "does not hold", "cannot tell"),
    "small": ("seen in small", "not seen in small", "cannot tell in small"),
}


def said(found: Sequence[bool | str | None], size: str, above: Ends = None) -> str:
    """The words of the book's first page."""
    measured = [one for one in found if one != "missing"]
    if not measured:
        return "not tested"
    if above is not None and above[1] < 0:
        ordered = all(one is True for one in measured)
        order = "as claimed, but nothing is read" if ordered else "nothing is read"
        by = f"by {-above[1]:.1f} to {-above[0]:.1f} dB on average, 95 % interval"
        return f"{WORDS[size][2 if ordered else 1]} ({order}: below the mean color {by})"
    kind = 1 if False in measured else 2 if None in measured else 0
    counts = [f"{measured.count(one)} {word}" for one, word in ((True, "yes"), (False, "no"), (None, "open"))]
    missing = len(found) - len(measured)
    rest = f"; {missing} not measured" if missing else ""
    return f"{WORDS[size][kind]} ({', '.join(one for one in counts if one[0] != '0')}{rest})"


@pytest.mark.docs
def test_every_verdict_on_the_first_page_follows_from_the_rows() -> None:
    """Recomputed by the oracle above from the recipe's text and the lines of JSON."""
    check_each(list_items().items(), verdicts_follow)


def verdicts_follow(item: Item) -> None:
    expect = tomllib.loads(find_recipe(item.recipe).read_text(encoding="utf-8"))["expect"]
    path = ROOT / "results/reproduce" / f"{item.id.replace('/', '-')}.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    index = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    place = f"| [{item.expect.item}]({item.expect.paper}.md#"
    shown = [re.split(r" \| ", line.strip("| "))[1:] for line in index.splitlines() if line.startswith(place)]
    wanted = []
    for claim in expect.get("claims", []):
        oracle = Oracle(expect, claim, lines)
        sizes = {line["size"] for line in lines}
        words = [
            said(oracle.found(size), size, oracle.above_mean_color(size)) if size in sizes else "not run"
            for size in ("paper", "small")
        ]
        if claim.get("own"):
            words = [re.sub(r" \((?=\d)", ", by seepage's own algorithm (", word) for word in words]
        wanted.append([claim["text"], *words])
    assert shown == wanted


@pytest.mark.docs
def test_the_counts_above_are_those_of_the_lines_below() -> None:
    index = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    opening, *papers = re.split(r"^## ", index.partition("## How to read it")[0], flags=re.MULTILINE)
    shown = [line.strip("| ").split(" | ") for line in opening.splitlines() if re.match(r"\| \[", line)]
    assert len(papers) == 3
    assert shown == [counted(paper, size) for paper in papers for size in ("paper", "small")]


def counted(part: str, size: str) -> list[str]:
    """A line of the counts, from the verdicts as they are printed below one paper's heading."""
    printed = [line.strip("| ").split(" | ")[-2:] for line in part.splitlines() if re.match(r"\| \[", line)]
    words = [pair[size == "small"] for pair in printed]
    each = []
    for word in WORDS[size]:
        found = [one for one in words if re.match(rf"{word}\b", one)]
        own, unread = (sum(words in one for one in found) for words in ("own algorithm", "nothing is read"))
        more = [f"{own} by seepage's own algorithm"] * bool(own) + [f"in {unread} nothing is read"] * bool(unread)
        each.append(f"{len(found)} ({'; '.join(more)})" if more else str(len(found)))
    untested = str(sum(one in ("not run", "not tested") for one in words))
    return [part.splitlines()[0], {"paper": "the paper's", "small": "small"}[size], str(len(words)), *each, untested]


# --- each relation, on a table made up for it --------------------------------------------------------------------


def made(claim: Mapping[str, Any], rows: Mapping[str, Sequence[float]], **more: Any) -> Item:
    tables = {
        "name": "t",
        "expect": {
            "paper": "cpa",
            "item": "Table 7",
            "title": "t",
            "setting": "s",
            "columns": ["a", "b", "c"],
            "rows": [{"name": name, "data": "d", "paper": list(paper), **more} for name, paper in rows.items()],
            "claims": [{"text": "said", "where": "there", **claim}],
        },
    }
    return item_of("t", tables)


def judge_paper(claim: Claim, lines: Sequence[Line], columns: int) -> Judged:
    """The verdict of the paper's own printed numbers on a claim."""

    def number(at: At) -> Number | None:
        value = at.line.paper_at(at.column)
        return None if value is None else Number(value, value, value, better=at.line.better)

    parts = [decide(one, number, exact=True, cap=False) for one in claim.comparisons(lines, columns)]
    return Judged(claim, "paper", tuple(parts))


def of_paper(claim: Mapping[str, Any], rows: Mapping[str, Sequence[float]], **more: Any) -> Judged:
    item = made(claim, rows, **more)
    return judge_paper(item.claims[0], item.lines, 3)


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        ({"relation": "rows", "rows": ["x"], "than": ["y"], "by": 2}, ([5, 6, 7], [3, 4, 5]), ([5, 6, 7], [3, 4, 5.1])),
        ({"relation": "columns", "rows": ["x"], "pairs": [[2, 0]], "by": 1}, ([1, 9, 2],), ([1, 9, 1.5],)),
        ({"relation": "monotone", "rows": ["x"], "gets": "worse"}, ([3, 2, 1],), ([3, 1, 2],)),
        ({"relation": "monotone", "rows": ["x"], "gets": "better", "by": -0.5}, ([1, 2, 1.6],), ([1, 2, 1.4],)),
        ({"relation": "peak", "rows": ["x"], "at": 1}, ([1, 3, 2],), ([1, 3, 4],)),
        ({"relation": "close", "rows": ["x"], "margin": 0.5}, ([1, 1.5, 1.2],), ([1, 1.6, 1.2],)),
        (
            {"relation": "close", "rows": ["x"], "than": ["y"], "margin": 1},
            ([1, 5, 9], [2, 4, 9]),
            ([1, 5, 9], [3, 5, 9]),
        ),
        ({"relation": "level", "rows": ["x"], "side": "better", "level": 3}, ([3, 4, 5],), ([3, 4, 2.9],)),
        (
            {"relation": "level", "rows": ["x"], "side": "worse", "level": 3, "only": [0, 1]},
            ([3, 2, 9],),
            ([3.1, 2, 0],),
        ),
    ],
)
def test_a_relation_holds_or_not(claim: Mapping[str, Any], good: Any, bad: Any) -> None:
    assert of_paper(claim, dict(zip("xy", good, strict=False))).verdict == "holds"
    assert of_paper(claim, dict(zip("xy", bad, strict=False))).verdict == "does not hold"


def test_of_some_metrics_less_is_better() -> None:
    claim = {"relation": "rows", "rows": ["x"], "than": ["y"], "by": 0.1}
    rows = {"x": [0.1, 0.2, 0.3], "y": [0.3, 0.3, 0.5]}
    assert of_paper(claim, rows, better="less", metric="lpips").verdict == "holds"
    assert of_paper(claim, rows, metric="ssim").verdict == "does not hold"
    level = {"relation": "level", "rows": ["x"], "side": "better", "level": 0.25}
    assert of_paper(level, rows, better="less", metric="lpips").count(True) == 2


def test_a_number_that_the_paper_does_not_print_is_not_compared() -> None:
    judged = of_paper({"relation": "peak", "rows": ["x"], "at": 1}, {"x": [1.0, 3.0, float("nan")]})
    assert (judged.verdict, judged.measured, len(judged.parts)) == ("holds", 1, 2)


def ours(item: Item, values: Mapping[str, Sequence[Mapping[str, Any] | float | None]]) -> Judged:
    """Records of our own: a number, or the fields of a record."""
    records = [
        Record(
            item=item.id, size="small", row=row, column=column, paper_data="d", data="x.npz",
            metric=item.lines[0].metric, **(given if isinstance(given, Mapping) else {"value": given}),
        )
        for row, numbers in values.items()
        for column, given in enumerate(numbers)
    ]  # fmt: skip
    return judge(item.claims[0], item.lines, 3, records)[0]


PEAK = {"relation": "columns", "rows": ["x"], "pairs": [[1, 0]], "by": 2.0}


@pytest.mark.parametrize(
    ("left", "right", "word"),
    [
        ({"value": 20.0, "interval": (19.0, 21.0)}, {"value": 15.0, "interval": (14.0, 16.0)}, "holds"),
        ({"value": 20.0, "interval": (17.0, 23.0)}, {"value": 15.0, "interval": (14.0, 16.0)}, "cannot tell"),
        ({"value": 15.5, "interval": (15.0, 16.0)}, {"value": 15.0, "interval": (14.5, 15.5)}, "does not hold"),
        ({"value": 20.0}, {"value": 15.0, "interval": (14.0, 16.0)}, "cannot tell"),
        ({"value": 99.0, "interval": (98.0, 99.5)}, {"value": 80.0, "interval": (79.0, 81.0)}, "does not hold"),
    ],
)
def test_one_seed_is_judged_by_the_ends_of_both_intervals(left: Any, right: Any, word: str) -> None:
    """The last: both exact, and no 60 dB are two above another."""
    item = made(PEAK, {"x": [1.0, 4.0, 1.0]})
    assert ours(item, {"x": [right, left, 0.0]}).verdict == word


def test_seeds_are_compared_one_by_one() -> None:
    """The numbers swing by ten dB from seed to seed, and their difference does not."""
    item = made(PEAK, {"x": [1.0, 4.0, 1.0]})
    low = {"value": 15.0, "interval": (10.0, 20.0), "seeds": {"0": 10.0, "1": 15.0, "2": 20.0}}
    high = {"value": 18.0, "interval": (13.1, 23.0), "seeds": {"0": 13.1, "1": 17.9, "2": 23.0}}
    judged = ours(item, {"x": [low, high, 0.0]})
    assert judged.verdict == "holds"
    wanted = stats.ttest_rel([13.1, 17.9, 23.0], [10.0, 15.0, 20.0]).confidence_interval(0.95)
    assert (judged.parts[0].low, judged.parts[0].high) == pytest.approx((wanted.low, wanted.high))
    other = {"value": 18.0, "interval": (13.1, 23.0), "seeds": {"3": 13.1, "4": 17.9, "5": 23.0}}
    assert ours(item, {"x": [low, other, 0.0]}).verdict == "cannot tell", "of other seeds, they are"


def of_seeds(values: Sequence[float], mean_color: float = 5.0) -> dict[str, Any]:
    """The fields of a record of several seeds, whose mean color has so many dB."""
    by_seed = {str(seed): {"mean_color_psnr": mean_color} for seed in range(len(values))}
    return {
        "value": float(np.mean(values)),
        "seeds": {str(seed): value for seed, value in enumerate(values)},
        "facts": {"by_seed": by_seed, "mean_color_psnr": mean_color},
    }


ORDER = {"relation": "columns", "rows": ["x"], "pairs": [[1, 0]]}


@pytest.mark.parametrize(
    ("better", "word"),
    [
        ([15.1, 14.9, 15.2], "does not hold"),  # 0 +- 0.4 dB, where the paper has 4
        ([18.0, 11.0, 15.5], "cannot tell"),  # 0 +- 9 dB, which holds the paper's half, too
        ([15.5, 15.6, 15.7], "holds"),  # a tenth of the paper's difference, and sure
    ],
)
def test_no_difference_is_an_answer_once_half_of_the_papers_is_excluded(better: Sequence[float], word: str) -> None:
    item = made(ORDER, {"x": [1.0, 5.0, 1.0]})
    assert ours(item, {"x": [of_seeds([15.0, 15.0, 15.0]), of_seeds(better), 0.0]}).verdict == word


@pytest.mark.parametrize(
    ("better", "word"),
    [
        ([14.9, 15.1, 15.6], "cannot tell"),  # 0.2 +- 0.9 dB, which holds the claimed lead of 1
        ([15.1, 14.9, 15.2], "does not hold"),  # 0.1 +- 0.4 dB, which does not
    ],
)
def test_a_claimed_lead_fails_only_where_the_interval_excludes_it(better: Sequence[float], word: str) -> None:
    item = made(ORDER | {"by": 1.0}, {"x": [1.0, 5.0, 1.0]})  # half of the paper's difference is 2
    assert ours(item, {"x": [of_seeds([15.0, 15.0, 15.0]), of_seeds(better), 0.0]}).verdict == word


@pytest.mark.parametrize(
    ("mean_color", "word"), [(12.0, "holds"), (17.5, "holds"), (19.0, "holds"), (25.0, "cannot tell")]
)
def test_an_order_among_numbers_below_the_mean_color_is_none(mean_color: float, word: str) -> None:
    """The third: the mean of both is below it, and the better one is not."""
    item = made(ORDER, {"x": [1.0, 5.0, 1.0]})
    low, high = of_seeds([15.0, 14.5, 15.1], mean_color), of_seeds([20.0, 19.8, 20.5], mean_color)
    judged = ours(item, {"x": [low, high, 0.0]})
    assert judged.verdict == word
    assert ("nothing is read" in in_words(judged)) == (word == "cannot tell")
    other = ours(item, {"x": [high, low, 0.0]})
    assert other.verdict == "does not hold", "the other way round it does not hold, read or not"
    close = made({"relation": "close", "rows": ["x"], "margin": 9.0}, {"x": [1.0, 5.0, 1.0]})
    assert ours(close, {"x": [low, high, low]}).verdict == word, "nor is a likeness"
    level = made({"relation": "level", "rows": ["x"], "side": "better", "level": 10}, {"x": [11.0, 11.0, 11.0]})
    held = ours(level, {"x": [low, high, of_seeds([15.0, 15.0, 15.1], mean_color)]})
    assert held.verdict == "holds", "a level is no order"


def test_students_interval_is_scipys() -> None:
    values = [3.0, 4.5, 4.0, 7.25]
    wanted = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert student(values) == pytest.approx(wanted)


def test_that_failed_searches_are_not_known_to_be_alike_decides_nothing() -> None:
    item = made({"relation": "close", "rows": ["x"], "margin": 1.0, "only": [0, 1]}, {"x": [1.0, 1.5, 1.0]})
    apart, spread = of_seeds([15.0, 15.1, 15.2], 25.0), of_seeds([14.0, 16.0, 18.5], 25.0)
    judged = ours(item, {"x": [apart, spread, 0.0]})
    assert (judged.verdict, judged.nothing_read) == ("cannot tell", True)
    assert ours(item, {"x": [apart, of_seeds([19.0, 19.1, 19.3], 25.0), 0.0]}).verdict == "does not hold"


def test_a_comparison_shows_the_means_that_it_compares() -> None:
    """Of the seeds that both numbers have, where one has more."""
    item = made(ORDER, {"x": [1.0, 5.0, 1.0]})
    (part,) = ours(item, {"x": [of_seeds([1.0, 2.0]), of_seeds([4.0, 6.0, 50.0]), 0.0]}).parts
    assert (part.left, part.right) == (5.0, 1.5)


def test_one_seed_is_compared_with_itself_and_with_no_mean_of_others() -> None:
    """Of SSIM in LPIPS' place, too: one seed's 0.87 beside 20 seeds' 0.85 lay below that seed's own 0.92."""
    item = made(ORDER, {"x": [1.0, 5.0, 1.0]})
    one = {"value": 6.0, "interval": (5.9, 6.1), "seeds": {"0": 6.0}}
    (part,) = ours(item, {"x": [of_seeds([7.0, 2.0, 2.1]), one, 0.0]}).parts
    assert (part.left, part.right, part.found) == (6.0, 7.0, None)
    claim = {"relation": "rows", "rows": ["x"], "than": ["y"], "only": [0], "instead": "ssim"}
    ssim = made(claim, {"x": [0.1] * 3, "y": [0.4] * 3}, metric="lpips", better="less")
    lone = {"value": None, "seeds": {"0": None}, "facts": {"ssim": 0.87, "intervals": {"ssim": (0.86, 0.88)}}}
    by_seed = {str(seed): {"ssim": value} for seed, value in enumerate([0.92, 0.8, 0.8])}
    many = {"value": None, "seeds": dict.fromkeys(by_seed), "facts": {"ssim": 0.84, "by_seed": by_seed}}
    (part,) = ours(ssim, {"x": [lone], "y": [many]}).parts
    assert (part.left, part.right, part.found) == (0.87, 0.92, None)


def test_two_that_are_both_exact_are_not_told_apart() -> None:
    item = made({"relation": "columns", "rows": ["x"], "pairs": [[1, 0]]}, {"x": [1.0, 4.0, 1.0]}, metric="psnr")
    exact = {"value": 120.0, "interval": (110.0, 130.0)}
    assert ours(item, {"x": [{"value": 80.0, "interval": (75.0, 85.0)}, exact, 0.0]}).verdict == "cannot tell"


def test_where_the_metric_was_not_measured_another_gives_the_order() -> None:
    """LPIPS falls where SSIM rises; a margin of LPIPS is none of SSIM."""
    claim = {"relation": "rows", "rows": ["x"], "than": ["y"], "by": 0.2, "only": [0], "instead": "ssim"}
    item = made(claim, {"x": [0.1, 0.1, 0.1], "y": [0.4, 0.4, 0.4]}, metric="lpips", better="less")

    def facts(ssim: float) -> dict[str, Any]:
        return {"value": None, "facts": {"ssim": ssim, "intervals": {"ssim": (ssim - 0.01, ssim + 0.01)}}}

    assert ours(item, {"x": [facts(0.9)], "y": [facts(0.8)]}).verdict == "holds"
    assert ours(item, {"x": [facts(0.8)], "y": [facts(0.9)]}).verdict == "does not hold"
    without = made({**claim, "instead": None}, {"x": [0.1] * 3, "y": [0.4] * 3}, metric="lpips", better="less")
    assert ours(without, {"x": [facts(0.9)], "y": [facts(0.8)]}).verdict is None


def test_the_mean_color_is_a_level_of_its_own_for_every_case() -> None:
    claim = {"relation": "level", "rows": ["x"], "side": "worse", "baseline": "mean_color_psnr", "printed": False}
    item = made(claim, {"x": []})

    def case(value: float, flat: float) -> dict[str, Any]:
        return {"value": value, "interval": (value - 0.1, value + 0.1), "facts": {"mean_color_psnr": flat}}

    assert ours(item, {"x": [case(10, 12), case(14, 15), case(1, 12)]}).verdict == "holds"
    assert ours(item, {"x": [case(10, 12), case(16, 15), case(1, 12)]}).verdict == "does not hold"


def test_the_papers_own_data_go_before_packaged_ones() -> None:
    item = made({"relation": "level", "rows": ["x"], "side": "better", "level": 9}, {"x": [9.0] * 3}, metric="psnr")
    records = [
        Record(item=item.id, size="small", row="x", column=0, paper_data="d", data=data, metric="psnr", value=value,
               interval=(value, value))
        for data, value in (("digits", 1.0), ("d.npz", 20.0))
    ]  # fmt: skip
    assert judge(item.claims[0], item.lines, 3, records)[0].verdict == "holds"
    assert judge(item.claims[0], item.lines, 3, records[:1])[0].verdict == "does not hold"


def test_a_small_size_never_speaks_of_the_papers_result() -> None:
    item = made(PEAK, {"x": [1.0, 4.0, 1.0]})
    high, low = ({"value": v, "interval": (v, v)} for v in (9.0, 1.0))
    assert in_words(ours(item, {"x": [low, high, 0.0]})) == "seen in small (1 yes)"
    assert in_words(ours(item, {"x": [high, low, 0.0]})) == "not seen in small (1 no)"
    assert in_words(ours(item, {"x": [None, low, 0.0]})) == "not tested"


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"relation": "above"}, "relation must be one of 'rows', 'columns'"),
        ({"relation": "peak"}, "claim 1: at is missing"),
        ({"relation": "peak", "at": 1, "margin": 2}, "there is no option 'margin'"),
        ({"relation": "peak", "at": 3}, "names column 3, and there are 3, counted from 0"),
        ({"relation": "rows", "rows": ["x"], "than": ["z*"]}, r"names the rows 'z\*', and there are none"),
        ({"relation": "rows", "rows": [], "than": ["x"]}, "rows must"),
        ({"relation": "level", "side": "better"}, "needs a level or a baseline"),
        ({"relation": "monotone", "gets": "better", "only": [1]}, "compares nothing"),
        ({"relation": "close", "margin": -1}, "margin must be"),
    ],
)
def test_mistakes_in_a_claim_are_named(claim: Mapping[str, Any], words: str) -> None:
    with pytest.raises(Problems, match=words):
        made(claim, {"x": [1.0, 2.0, 3.0]})


def test_an_item_has_claims_or_a_reason_and_not_both() -> None:
    tables = {**made(PEAK, {"x": [1.0, 4.0, 1.0]}).tables}
    with pytest.raises(Problems, match=r"claims|no_claim"):
        item_of("t", {**tables, "expect": {**tables["expect"], "no_claim": "a diagram"}})
