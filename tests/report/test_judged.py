"""What people said of the guesses, and the risk tiers, in the report."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_in_browser import BROWSER, look

from seepage.base.storage import write_json
from seepage.errors import SeepageError
from seepage.report import write_report

Build = Callable[..., Path]
HOSTILE = "<script>alert(1)</script>"
ROW = {
    "case": "fc2_size-3", "attack": "dlg", "pairs": 14, "judges": 2, "asr": 0.25, "asr_low": 0.1, "asr_high": 0.5,
    "interval": "clopper-pearson", "cannot_tell": 0.125, "returned": 14, "examples": 20, "asr_of_examples": 0.175,
}  # fmt: skip
JUDGE = {"name": "AB", "guesses": 14, "controls": 9, "missed": 1, "left_out": None}


def judged(run: Path, **change: Any) -> Path:
    people = [JUDGE, {**JUDGE, "name": HOSTILE, "left_out": HOSTILE}, {**JUDGE, "name": "CD"}]
    record = {"schema": 1, "rows": [ROW], "judges": people, "kappa": None, "agreement": 0.5, "flat_same": 0.0, "new": 1}
    write_json(run / "judgements.json", {**record, **change})
    return run


def test_people_are_in_the_report(tmp_path: Path, build_run: Build, report: Callable[[Path], Any]) -> None:
    run = build_run(tmp_path)
    assert "Judged by people" not in report(run).words
    page = report(judged(run))
    for words in (
        "25 % 10 % to 50 %",
        "14/20",
        "18 %",
        "2 judges compared",
        "left out: " + HOSTILE,
        "kappa not defined",
    ):
        assert words in page.words
    assert page.all("script") == []
    assert "fc2_size-3 (title)" in page.words.partition("Judged by people")[2].partition("AB:")[0]


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"rows": None}, {"rows": [{"case": "c"}]}, {"judges": [1]}, {"kappa": "high"}]
)
def test_a_damaged_file_is_refused(tmp_path: Path, build_run: Build, change: dict[str, Any]) -> None:
    with pytest.raises(SeepageError, match=r"judgements\.json"):
        write_report(judged(build_run(tmp_path), **change))


def test_no_table_has_a_risk_tier(tmp_path: Path, build_run: Build, report: Callable[[Path], Any]) -> None:
    page = report(build_run(tmp_path))
    assert not [attributes for attributes in page.all("small") if "title" in attributes]
    assert "risk tier" not in page.words.lower()
    assert "very high" not in page.words


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_it_fits_a_phone(tmp_path: Path, build_run: Build) -> None:
    run = judged(build_run(tmp_path / "run", cases=("a_case_with_one_very_long_name_" + "that_goes_on" * 6,)))
    shutil.copy(write_report(run), tmp_path)
    sight = look(tmp_path)
    assert all(view["scroll"] <= view["inner"] for view in sight.views), "the page scrolls sideways"
    assert [view["faint"] for view in sight.views] == [[], []]
    assert sight.complaints == []
