"""The defects of `benchmarks/mutants.py`: each one's text stands once in its file, and its tests are there."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from each import check_each

ROOT = Path(__file__).parents[2]


@pytest.mark.docs
def test_each_defect_still_fits_the_code() -> None:
    listed = tomllib.loads((ROOT / "benchmarks/mutants.toml").read_text(encoding="utf-8"))["mutant"]
    check_each(((one["id"], one) for one in listed), fits)


def fits(mutant: dict[str, Any]) -> None:
    text = (ROOT / "src/seepage" / mutant["file"]).read_text(encoding="utf-8")
    assert text.count(mutant["old"]) == 1
    assert all((ROOT / path).exists() for path in mutant["tests"])
