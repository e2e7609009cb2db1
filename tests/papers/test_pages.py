"""The pages that are made of records say what the records say."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from each import check_each
from scripts import script

from seepage.papers.records import read_file

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.docs


@cache
def parts() -> Mapping[str, Any]:
    found: Mapping[str, Any] = script("pages").PARTS
    return found


def test_a_part_of_a_page_is_what_its_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    check_each(((name, name) for name in parts()), part_is_of_its_records)


def part_is_of_its_records(name: str) -> None:
    page = (ROOT / "docs" / parts()[name].page).read_text(encoding="utf-8")
    made = parts()[name].in_page(name, page) == page
    assert made, f"write it again: python experiments/pages.py {name!r}"


def test_every_part_between_marks_is_made() -> None:
    marked = [
        line.removeprefix("<!-- part ").partition(":")[0]
        for page in sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*/README.md")])
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("<!-- part ")
    ]
    assert sorted(marked) == sorted(parts())


FIGURE = re.compile(r"\d+\.\d|\d+ (dB|%|s\b|of )|^\s*\d[\d,]*\s*$")
COMMAND = re.compile(r"^(?: {4})?((?:[A-Z_]+=\S+ )?(?:python (?:experiments|benchmarks)/|seepage )[^#\n]*)")
NO_MEASUREMENT = "<!-- no measurement: "


@cache
def commands_of_records() -> set[str]:
    """Every command that a line below `results/` names."""
    files = sorted((ROOT / "results").rglob("*.jsonl"))
    return {record.command for file in files for record in read_file(file)}


def hand_written_tables(text: str) -> Iterator[tuple[str, str, str]]:
    """Tables outside the parts that are made of records: what stands before each, its rows, and its section."""
    text = re.sub(r"<!-- part ([^:]+):.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    for section in re.split(r"^(?=#)", text, flags=re.MULTILINE):
        for table in re.finditer(r"(?:^\|.*\n)+", section, re.MULTILINE):
            yield section[: table.start()].rstrip(), table[0], section


def without_record(text: str, known: set[str]) -> list[str]:
    """The first lines of tables of figures in whose section no command stands that a record names."""
    found = []
    for before, table, section in hand_written_tables(text):
        body = [case for row in table.splitlines()[2:] for case in row.strip("|").split("|")]
        figures = sum(bool(FIGURE.search(case)) for case in body)
        marked = before.endswith("-->") and before.splitlines()[-1].startswith(NO_MEASUREMENT)
        named = {match[1].strip() for line in section.splitlines() if (match := COMMAND.match(line))}
        if figures >= 3 and not marked and not named & known:
            found.append(table.splitlines()[0])
    return found


def test_a_table_of_figures_has_records_behind_it() -> None:
    """It is made of records, or its section names a command that made some, or it says that nothing was measured."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "results" not in page.parent.parts]
    check_each(((page.relative_to(ROOT).as_posix(), page) for page in pages), tables_have_records)


def tables_have_records(page: Path) -> None:
    lacking = without_record(page.read_text(encoding="utf-8"), commands_of_records())
    remedy = "make the rows, take the figures off the page, or mark the table: <!-- no measurement: WHY -->"
    assert not lacking, f"{lacking}: {remedy}"


def test_a_page_with_a_command_of_a_finished_study_says_where_it_runs() -> None:
    finished = tomllib.loads((ROOT / "experiments" / "finished.toml").read_text(encoding="utf-8"))
    gone = re.compile(rf"python experiments/({'|'.join(map(re.escape, finished['commands']))})\b")
    for page in sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*/README.md")]):
        text = page.read_text(encoding="utf-8")
        assert not gone.search(text) or f"`{finished['commit']}`" in text, f"{page}: {gone.search(text)}"


def test_a_table_of_figures_without_a_record_is_found() -> None:
    table = "| a | b |\n|---|---|\n| 1.5 dB | 2.5 |\n| 3 of 4 | 7 % |\n"
    known = {"python experiments/cafe.py table"}
    assert without_record(f"# A\n\n{table}", known) == ["| a | b |"]
    assert without_record(f"# A\n\n{table}\n    python experiments/cafe.py other\n", known) == ["| a | b |"]
    assert without_record(f"# A\n\n{table}\n    python experiments/cafe.py table   # a minute\n", known) == []
    assert without_record(f"# A\n\n{table}\n# B\n\n    python experiments/cafe.py table\n", known) == ["| a | b |"]
    assert without_record(f"# A\n\n{NO_MEASUREMENT}limits -->\n\n{table}", known) == []
    part = f"<!-- part x: experiments/pages.py -->\n\n{table}\n<!-- end of x -->\n"
    assert without_record(f"# A\n\n{part}", known) == []
    assert without_record(f"# A\n\n{part}\n{table}", known) == ["| a | b |"]
