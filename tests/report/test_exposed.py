"""What the update reveals without an attack, epsilon beside the verdict, and a report without pictures."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.rows import put

from seepage.errors import SeepageError
from seepage.report import write_report
from seepage.report.leakage import open_exposed

Build = Callable[..., Path]
Change = Callable[..., None]
Read = Callable[[Path], Any]
CASE: dict[str, Any] = {
    "case": "fc2_size-3", "examples": 2, "vectors": 3, "batch_size": 3, "at_least": 3,
    "looks_like": ["looks clipped: the norm is 1"],
    "tensors": [
        {"name": "2.weight", "gives": "2 private examples exactly, row by row", "withhold": True},
        {"name": "2.bias", "gives": None, "withhold": False},
    ],
    "findings": [
        {"name": "batch-norm", "severity": "note", "message": "train mode; 3 of 8 variances of the batch can be read"},
        {"name": "labels", "severity": "note", "message": "", "evidence": {"present": [1, 4], "counts": None},
         "tensors": ["2.bias"]},
    ],
    "a_later_key": 1,
}  # fmt: skip


def exposed(run: Path, *cases: dict[str, Any]) -> Path:
    (run / "exposure.json").write_text(json.dumps({"schema": 1, "cases": cases}))
    return run


def test_the_page_says_what_each_update_gives_away(tmp_path: Path, build_run: Build, report: Read) -> None:
    page = report(exposed(build_run(tmp_path), CASE, {**CASE, "case": "convnet_size-3", "failed": "no such layer"}))
    assert "What the update reveals without an attack" in page.words
    assert "2/3" in page.words
    assert "inner vectors of 3" in page.words
    assert "looks clipped" in page.words
    assert "2.weight: 2 private examples exactly" in page.words
    assert "2.bias" not in page.words
    assert "train mode; 3 of 8 variances" in page.words
    assert "not looked at: no such layer" in page.words
    assert "fc2_size-3 (title)" in page.words


def test_what_does_not_hold_is_not_said(tmp_path: Path, build_run: Build, report: Read) -> None:
    labels = {**CASE["findings"][1], "tensors": []}
    page = report(exposed(build_run(tmp_path), {**CASE, "findings": [labels], "tensors": []}))
    assert "not known" in page.words
    assert "nothing found" in page.words
    assert "Batch norm" not in page.words
    assert "Tensor by tensor" not in page.words


def test_a_class_that_is_named_is_not_taken_for_a_count(tmp_path: Path) -> None:
    for present, words in (([0], "class 0"), ([0, 7], "classes 0, 7")):
        labels = {**CASE["findings"][1], "evidence": {"present": present}}
        (found,) = open_exposed(exposed(tmp_path, {**CASE, "findings": [labels]}))
        assert found.classes == words


def test_many_tensors_are_counted(tmp_path: Path) -> None:
    says = [{"name": f"{n}.w", "gives": "x", "withhold": True} for n in range(9)]
    (found,) = open_exposed(exposed(tmp_path, {**CASE, "tensors": says}))
    assert found.withhold.endswith("5.w and 3 more")
    assert found.count == "2/3"
    (found,) = open_exposed(exposed(tmp_path, {**CASE, "batch_size": None}))
    assert found.count == "2 of at least 3"


@pytest.mark.parametrize(
    "change", [{"examples": "2"}, {"tensors": 3}, {"tensors": ["w"]}, {"findings": [{}]}, {"case": 1}]
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, build_run: Build, change: dict[str, Any]) -> None:
    with pytest.raises(SeepageError, match="is damaged"):
        write_report(exposed(build_run(tmp_path), {**CASE, **change}))


def test_a_run_nobody_looked_at_has_no_such_section(tmp_path: Path, build_run: Build, report: Read) -> None:
    assert "reveals without an attack" not in report(build_run(tmp_path)).words


def test_epsilon_stands_beside_the_verdict(tmp_path: Path, build_run: Build, report: Read, change: Change) -> None:
    promise = {"epsilon": 3.0, "delta": 1e-5, "unit": "update", "rounds": 2, "caveats": []}
    run = build_run(tmp_path)
    change(run, lambda result: result["cases"][0].update(promise=promise))
    words = report(run).words
    assert re.search(r"epsilon = 3 at delta = 1e-05 .*client's update, over 2 rounds \(fc2", words)
    change(run, lambda result: result["cases"][0].update(promise={"epsilon": None, "caveats": ["there is no clip"]}))
    assert "no epsilon" not in report(run).words, "that there is none is a warning, and this run has none"


def test_certified_guesses_are_counted_without_a_truth(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    run = build_run(tmp_path, truth=False)
    change(run, lambda result: result.update(verdict_level="certified"))
    change(run, lambda result: put(result["rows"][0], certified_guesses=2))
    words = report(run).words
    assert "Certified copies" in words
    assert "2 certified" in words


def test_a_report_without_pictures_has_none(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path)
    with_pictures = write_report(run).read_text(encoding="utf-8")
    without = write_report(run, pictures=False).read_text(encoding="utf-8")
    assert with_pictures.count("data:image") > 3
    assert "data:image" not in without
    assert "<img" not in without
    assert "shows no private example" in without
    assert "contains private data" not in without
    assert "Some of it leaks." in without
    assert without.count("<tr>") > 5, "the tables stay"


def test_a_report_without_pictures_reads_none(tmp_path: Path, build_run: Build) -> None:
    """The truth may have been deleted, or never be there."""
    run = build_run(tmp_path)
    for path in [*run.glob("private/*/*"), *run.glob("reconstructions/*/*")]:
        path.write_bytes(b"shredded")
    write_report(run, pictures=False)
