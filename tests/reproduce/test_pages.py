"""The pages that are made of records say what the records say."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    """`experiments/pages.py`, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("seepage_pages", ROOT / "experiments" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


PAGES = generator()


@pytest.mark.parametrize("name", PAGES.PARTS)
def test_a_part_of_a_page_is_what_its_records_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / PAGES.PARTS[name].page).read_text(encoding="utf-8")
    made = PAGES.PARTS[name].in_page(name, page)
    assert made == page, f"write it again: python experiments/pages.py {name!r}"


def test_every_part_between_marks_is_made() -> None:
    marked = [
        line.removeprefix("<!-- part ").partition(":")[0]
        for page in sorted((ROOT / "docs").glob("*.md"))
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("<!-- part ")
    ]
    assert sorted(marked) == sorted(PAGES.PARTS)
