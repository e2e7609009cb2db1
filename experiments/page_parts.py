"""What the parts of pages that are made of records share: `pages.py` and `pages_runs.py` say what the parts are."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from seepage.papers.records import RESULTS, read_file

Row = dict[str, Any]
Lines = list[str]
FOLD = "<details><summary>How these numbers were made</summary>"


@dataclass(frozen=True)
class Part:
    """A part of a page.

    Attributes:
        page: The page's name in docs/.
        lines: Makes its lines.
    """

    page: str
    lines: Callable[[], Lines]

    def in_page(self, name: str, text: str) -> str:
        """The page's text with this part made anew."""
        begin, end = f"<!-- part {name}: experiments/pages.py -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"docs/{self.page} lacks the marks {begin} and {end}; add them")
        return f"{before}{begin}\n\n" + "\n".join(self.lines()) + f"\n\n{end}{rest.partition(end)[2]}"


def rows_of(*studies: str) -> list[Row]:
    """The records of studies as flat rows, with the ends of the interval as `low` and `high`."""
    found = []
    for record in itertools.chain(*(read_file(RESULTS / f"{study}.jsonl") for study in studies)):
        low, high = record.interval or (None, None)
        numbers = {record.metric: record.value, "seed": next(iter(record.seeds), None)}
        facts = {**record.facts, **numbers, "data": record.data, "command": record.command}
        found.append({**record.made, **facts, "name": record.row, "low": low, "high": high})
    return found


def table(heads: Sequence[str], body: Iterable[Sequence[str]]) -> Lines:
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(cases)} |" for cases in body)]


def commands(rows: Iterable[Row]) -> Lines:
    """Every command behind some rows, once, folded; the site gathers the folds at the end of the page."""
    made = dict.fromkeys(row["command"] for row in rows)
    return ["", FOLD, "", *(f"    {command}" for command in made), "", "</details>"]


def span(values: Iterable[float], form: str = "{:.0f}") -> str:
    """One number, or the smallest and largest of several."""
    listed = list(values)
    low, high = form.format(min(listed)), form.format(max(listed))
    return low if low == high else f"{low} to {high}"
