"""What of the three papers is here: docs/coverage.md, from experiments/coverage.toml and the recipes of their items.

python experiments/pages_coverage.py

Every command, test and row that a line names is looked up; a line that lacks one of them must say why.
"""

import functools
import itertools
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_parts import table

from seepage.audit.recipe.files import find_recipe
from seepage.base.registry import attacks, clients, datasets, defenses, models
from seepage.papers.items import Item, list_items
from seepage.papers.records import RESULTS, Record, read_file, read_records

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "coverage.md"
ITEMS_TEST = "tests/papers/test_items.py::test_every_shipped_item_resolves_and_its_rows_name_what_is_there"
PAPERS = {"cafe": "CAFE", "cpa": "CPA", "fedleak": "FedLeak"}

ABOUT = """# What of the three papers is here

CAFE (Jin et al., NeurIPS 2021), the Cocktail Party Attack (Kariyappa et al., ICML 2023) and FedLeak (Fan et al., USENIX
Security 2025): each attack, baseline, label rule, defense, protocol, network, data set, metric, table and figure, with
the command that reaches it, a test whose answer does not come from the code under test, and a measured row. What lacks
one of them, or is not as the paper has it, says why in the last column. Made by
`python experiments/pages_coverage.py`, which looks each of them up.
"""


@dataclass(frozen=True)
class Line:
    """One thing of the papers.

    Attributes:
        what: Its name.
        paper: The paper that has it.
        command: The command that reaches it; empty: none does.
        test: `FILE` or `FILE::FUNCTION`; empty: none.
        row: `STUDY#PART` of results/; empty: none.
        reason: What is lacking or differs, and why.
    """

    what: str
    paper: str = ""
    command: str = ""
    test: str = ""
    row: str = ""
    reason: str = ""

    @property
    def whole(self) -> bool:
        """Whether nothing is lacking."""
        return bool(self.command and self.test and self.row and not self.reason)

    def problems(self) -> Iterator[str]:
        """What the line names that is not there."""
        if not self.reason and not (self.command and self.test and self.row):
            yield f"{self.what}: lacks a command, a test or a row, and says no reason"
        if self.command:
            yield from (f"{self.what}: {why}" for why in command_problems(self.command))
        if self.test and not has_test(self.test):
            yield f"{self.what}: there is no test {self.test}"
        if self.row and not has_row(self.row):
            yield f"{self.what}: there is no row {self.row}"

    @property
    def cases(self) -> list[str]:
        """As a row of the page's table."""
        file, _, name = self.test.partition("::")
        test = (
            ""
            if not file
            else f"`{Path(file).name}`" + (f": {name.removeprefix('test_').replace('_', ' ')}" * bool(name))
        )
        row = self.row.replace("#", ": ")
        return [self.what, self.paper, f"`{self.command}`" if self.command else "", test, row, self.reason]


def command_problems(command: str) -> Iterator[str]:
    """What a command names that is not there."""
    words = shlex.split(command)
    if words[0] == "python":
        if not (ROOT / words[1]).exists():
            yield f"there is no {words[1]}"
        return
    kinds = {"--attack": attacks, "--defense": defenses, "--client": clients, "--model": models, "--data": datasets}
    for option, value in itertools.pairwise(words):
        own = ":" in value or value.partition(".")[0] in ("FILE", "FOLDER")
        if option in kinds and not own and value not in kinds[option]:
            yield f"{option} {value} is not registered"
    if words[1] == "reproduce" and words[2] not in known_items():
        yield f"there is no item {words[2]}"
    if words[1] == "audit" and len(words) > 2 and not words[2].startswith("-"):
        find_recipe(words[2] if not words[2].endswith(".toml") else str(ROOT / words[2]))


def has_test(name: str) -> bool:
    """Whether there is such a test, or file of tests."""
    file, _, function = name.partition("::")
    path = ROOT / file
    return path.exists() and (not function or bool(re.search(rf"^def {function}\(", path.read_text("utf-8"), re.M)))


@functools.cache
def known_items() -> dict[str, Item]:
    """The items, which are read from all recipes."""
    return list_items()


@functools.cache
def rows_of(path: Path) -> tuple[str, ...]:
    """Names of the rows of a study."""
    return tuple(record.row for record in read_file(path))


def has_row(name: str) -> bool:
    """Whether a study has a row whose name holds what is asked for."""
    study, _, part = name.partition("#")
    path = RESULTS / f"{study}.jsonl"
    return path.exists() and any(part in row for row in rows_of(path))


def groups() -> dict[str, list[Line]]:
    """All lines that are written down, by group."""
    found = tomllib.loads((ROOT / "experiments" / "coverage.toml").read_text("utf-8"))
    return {group["title"]: [Line(**line) for line in group["lines"]] for group in found["group"]}


def items() -> list[Line]:
    """A line for each table and figure."""
    return [_item(item) for item in known_items().values()]


def _item(item: Item) -> Line:
    records = read_records(RESULTS / "reproduce", item.id)
    study = f"reproduce/{item.id.replace('/', '-')}"
    sizes = Counter(record.size for record in records)
    reasons = [] if sizes["paper"] else ["Not run at the paper's size."]
    if sizes["paper"] and (lacking := _lacking(item, records)):
        reasons.append(f"Not run at the paper's size: {', '.join(lacking)}.")
    if not any(record.value is not None for record in records):
        reasons.append("LPIPS, its metric, could not be measured: the weights are a download. Others stand beside.")
    return Line(
        what=f"{item.expect.item}: {item.expect.title}",
        paper=PAPERS.get(item.expect.paper, item.expect.paper),
        command=f"seepage reproduce {item.id}",
        test=ITEMS_TEST,
        row=study if records else "",
        reason=" ".join(reasons),
    )


def _lacking(item: Item, records: Sequence[Record]) -> list[str]:
    """Rows of an item that no record of the paper's size has."""
    there = {record.row for record in records if record.size == "paper"}
    return [line.name for line in item.lines if line.name not in there]


def page() -> str:
    """The page."""
    parts: dict[str, list[Line]] = {**groups(), "Tables and figures": items()}
    counted = [
        [title, str(len(lines)), str(sum(line.whole for line in lines)), str(sum(not line.whole for line in lines))]
        for title, lines in parts.items()
    ]
    text = [
        ABOUT,
        "<!-- no measurement: counts of the lines below -->",
        "",
        *table(["part", "in all", "whole", "with a reason"], counted),
    ]
    for title, lines in parts.items():
        heads = ["what", "paper", "command", "test", "row", "lacking, and why"]
        text += ["", f"## {title}", "", *table(heads, [line.cases for line in lines])]
    return "\n".join(text) + "\n"


def problems() -> list[str]:
    """What any line names that is not there."""
    lines: list[Any] = [line for group in groups().values() for line in group]
    return [problem for line in [*lines, *items()] for problem in line.problems()]


if __name__ == "__main__":
    if found := problems():
        raise SystemExit("\n".join(found))
    PAGE.write_text(page(), encoding="utf-8")
