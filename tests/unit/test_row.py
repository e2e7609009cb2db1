"""The typed row: what is written is what is read, files of schema 1 open, and the published schema fits every run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage.audit.gate import parse_condition, violations
from seepage.audit.row import (
    SCHEMA_1,
    Cell,
    Certified,
    Cost,
    Outcome,
    Result,
    Row,
    Thresholds,
    json_schema,
)
from seepage.audit.run import run
from seepage.core.schema import Guarantee, Summary, parse
from seepage.core.storage import write_json
from seepage.errors import SeepageError
from seepage.report import write_report

ROOT = Path(__file__).parents[2]
OLD = Path(__file__).with_name("result_schema_1.json")
PUBLISHED = ROOT / "docs" / "result.schema.json"

NUMBERS = st.floats(-1e6, 1e6)
COUNTS = st.integers(0, 1000)
NAMES = st.sampled_from(["psnr", "ssim", "mse", "recovered", "exact", "gain_db", "psnr_nearest", "mine", "a_low"])
SUMMARIES = st.builds(
    Summary,
    mean=NUMBERS,
    median=st.none() | NUMBERS,
    low=st.none() | NUMBERS,
    high=st.none() | NUMBERS,
    n=st.none() | COUNTS,
)
ROWS = st.builds(
    Row,
    cell=st.text(),
    attack=st.text(),
    status=st.sampled_from(["ok", "diverged", "interrupted", "exhausted", "inapplicable", "error"]),
    outcome=st.sampled_from(Outcome),
    reason=st.none() | st.text(),
    told_extra=st.lists(st.text(), max_size=2),
    examples=st.none() | COUNTS,
    scores=st.dictionaries(NAMES, SUMMARIES, max_size=4),
    baselines=st.dictionaries(st.sampled_from(["grey", "mine"]), st.dictionaries(NAMES, NUMBERS), max_size=2),
    visible=st.none() | COUNTS,
    certified=st.none() | st.builds(Certified, n=COUNTS, wrong=st.none() | COUNTS),
    inner=st.dictionaries(st.sampled_from(["v", "h", "mine"]), NUMBERS),
    objective=st.none() | NUMBERS,
    cost=st.builds(Cost, seconds=st.none() | NUMBERS, steps=st.none() | COUNTS),
)


@given(ROWS)
def test_a_row_comes_back_from_json_as_it_was(row: Row) -> None:
    written = json.loads(json.dumps(row.record()))
    assert Row.model_validate(written) == row
    assert set(SCHEMA_1) <= set(written)


def test_a_result_of_schema_1_opens_with_every_number_it_had(tmp_path: Path) -> None:
    old = json.loads(OLD.read_text())
    found = parse(Result, old, "old")
    again = found.record()
    for before, after in zip(old["rows"], again["rows"], strict=True):
        assert {key: after[key] for key in before} == before
    assert again["cells"] == old["cells"]
    assert [row.outcome for row in found.rows] == [
        Outcome.EXACT, Outcome.INAPPLICABLE, Outcome.RECOVERED, Outcome.EXACT
    ]  # fmt: skip
    assert found.rows[-1].inner.keys() == {"v", "h"}
    assert [row.cell for row in violations(found.rows, parse_condition("error_v<1"))] == ["vertical"]
    for name, record in (("result", old), ("flags", {"schema": 1, "flags": []}), ("env", {"schema": 1})):
        write_json(tmp_path / f"{name}.json", record)
    (tmp_path / "scores.jsonl").touch()
    assert "recovered" in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    ("words", "numbers", "outcome"),
    [
        ("2/8 exact", {"psnr": 50.0, "exact": 0.25, "recovered": 1.0}, Outcome.PARTLY_EXACT),
        ("not recorded", {"status": "inapplicable"}, Outcome.NOT_RECORDED),
        ("features only", {}, Outcome.FEATURES_ONLY),
        ("words of a later version", {"psnr": 9.0, "gain_db": -1.0}, Outcome.NOTHING_RECOVERED),
    ],
)
def test_an_outcome_in_words_is_read_by_its_numbers(words: str, numbers: dict[str, Any], outcome: Outcome) -> None:
    row = Row.model_validate({"cell": "a", "attack": "x", "examples": 8, "outcome": words, **numbers})
    assert row.outcome is outcome


def test_a_row_of_the_first_versions_has_a_share_of_certified_guesses() -> None:
    found = {"cell": "a", "attack": "x", "outcome": "exact", "examples": 8, "certified": 0.25, "false_certificates": 1}
    assert Row.model_validate(found).certified == Certified(n=2, wrong=1)


def test_every_number_of_a_row_can_be_asked_for_by_name() -> None:
    row = Row(
        cell="a", attack="x", outcome=Outcome.TRACES, examples=4, certified=Certified(n=1, wrong=0), inner={"v": 0.5},
        scores={"mine": Summary(mean=3.0, median=2.0, n=4)}, baselines={"grey": {"psnr": 9.0}},
    )  # fmt: skip
    names = ("mine", "mine_median", "mine_low", "mine_n", "grey_psnr", "error_v", "certified", "psnr", "nobody")
    assert [row.value(name) for name in names] == [3.0, 2.0, None, 4, 9.0, 0.5, 0.25, None, None]
    assert violations([row], parse_condition("mine>2", ["mine"])) == [row]
    assert violations([row], parse_condition("mine_median<=2", ["mine"])) == [row]
    with pytest.raises(SeepageError, match="unknown score"):
        parse_condition("mine>2")


def test_the_schema_says_of_certificates_which_number_needs_a_truth() -> None:
    row = json_schema()["$defs"]["Row"]["properties"]
    said = {key: row[key]["description"] for key in ("vouched", "certified", "false_certificates")}
    assert "with or without a truth" in said["vouched"]
    assert all("Null without a truth" in " ".join(said[key].split()) for key in ("certified", "false_certificates"))
    blind = Row(cell="a", attack="x", outcome=Outcome.NOT_SCORED, examples=4, certified=Certified(n=2)).record()
    assert (blind["vouched"], blind["certified"], blind["false_certificates"]) == (2, None, None)


def test_the_published_schema_is_that_of_the_models() -> None:
    if not PUBLISHED.exists():
        pytest.skip("the documentation is not here")
    assert json.loads(PUBLISHED.read_text()) == json_schema(), "python -m seepage.audit.row > docs/result.schema.json"


TABLES: dict[str, Any] = {
    "seed": 3, "data": {"use": "digits"}, "model": {"use": "fc2", "hidden": 64}, "batch": {"size": 2, "count": 2},
    "attack": [{"use": "linear"}, {"use": "idlg", "steps": 2}, {"use": "inverting_gradients", "steps": 2}],
}  # fmt: skip


def test_a_run_fits_the_schema_and_has_one_noise_baseline(tmp_path: Path) -> None:
    found = run(TABLES, out=tmp_path / "run", jobs=1).result
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    jsonschema.validate(written, json_schema())
    assert parse(Result, written, "it") == found
    (cell,) = found.cells
    for name in ("random", "grey", "mean_color"):
        for row in found.rows:
            if row.scored:
                shown = cell.baseline(name, "psnr")
                assert row.value(f"{name}_psnr") == pytest.approx(shown, abs=0.006), name


def test_the_schema_refuses_what_no_run_writes() -> None:
    row = Row(cell="a", attack="x", outcome=Outcome.EXACT)
    good = Result(
        verdict="", verdict_level="exact", rows=[row], cells=[Cell(name="a", promise=Guarantee())],
        thresholds=Thresholds(),
    ).record()  # fmt: skip
    jsonschema.validate(good, json_schema())
    for change in ({"psnr": "high"}, {"outcome_code": "splendid"}, {"scores": {"psnr": {"low": 1.0}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, "rows": [{**row.record(), **change}]}, json_schema())


MINE = '''
import torch
def spread(guesses, truth):
    """Difference of the largest values."""
    return (guesses.flatten(1).amax(1) - truth.flatten(1).amax(1)).abs()
def wrong(guesses, truth):
    return torch.zeros(len(truth), 2)
'''


def test_a_metric_of_ones_own_is_measured_shown_and_gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metric.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    tables = {**TABLES, "attack": [{"use": "linear"}], "score": {"metrics": ["own_metric:spread"]}}
    found = run(tables, out=Path("run"), jobs=1).result
    (row,) = found.rows
    assert row.scores["spread"].n == 4
    assert violations(found.rows, parse_condition("spread<1e-3", ["spread"])) == [row]
    assert "<small>spread</small>" in write_report(Path("run")).read_text()
    assert found.thresholds.metrics == ["own_metric:spread"]
    tables["score"] = {"metrics": ["own_metric:wrong"]}
    with pytest.raises(SeepageError, match="per example"):
        run(tables, out=Path("other"), jobs=1)
    tables["score"] = {"metrics": ["psnrr"]}
    with pytest.raises(SeepageError, match="unknown metric"):
        run(tables, out=Path("third"), jobs=1)


def test_indices_told_in_horizontal_federated_learning_are_side_information(tmp_path: Path) -> None:
    rounds = {"design": "epochs", "count": 12, "samples": 12}
    tables = {
        "data": {"use": "digits", "size": 8}, "model": {"use": "fc2", "hidden": 16}, "batch": {"size": 5},
        "rounds": rounds, "knowledge": {"told": ["indices"]}, "attack": [{"use": "cafe"}],
    }  # fmt: skip
    result = run(tables, out=tmp_path / "run", jobs=1).result
    (row,) = result.rows
    assert (row.told_extra, row.told.count("indices")) == (["indices"], 1)
    assert "It was told indices beyond the protocol." in result.verdict
    assert "which here shows the indices" not in result.verdict


def test_reading_results_needs_no_pytorch() -> None:
    code = "import sys, seepage.audit.row, seepage.audit.gate; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_labels_that_a_search_leaves_aside_do_not_count_as_told(tmp_path: Path) -> None:
    tables = {
        "data": {"use": "digits", "size": 8}, "model": {"use": "fc2", "hidden": 8}, "batch": {"size": 1},
        "knowledge": {"told": ["labels"]},
        "attack": [{"use": "dlg", "steps": 1}, {"use": "dlg", "steps": 1, "labels": "given"}],
    }  # fmt: skip
    result = run(tables, out=tmp_path / "run", jobs=1).result
    assert [row.told_extra for row in result.rows] == [[], ["labels"]]
    assert ["searched for them all the same" in " ".join(row.notes) for row in result.rows] == [True, False]
