"""The typed row: what is written is what is read, and the published schema fits every run."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.rows import violations

from seepage.audit.gate import parse_condition
from seepage.audit.row import (
    Case,
    Certified,
    Cost,
    Outcome,
    Result,
    Row,
    Thresholds,
    json_schema,
)
from seepage.audit.run import run
from seepage.base.schema import Guarantee, Summary, parse
from seepage.errors import SeepageError
from seepage.report import write_report

ROOT = Path(__file__).parents[2]
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


def shares(scores: dict[str, Summary]) -> dict[str, Summary]:
    """Scores whose shares are from 0 to 1."""
    return {
        name: one.model_copy(update={"mean": abs(one.mean) / 1e6}) if name in ("recovered", "exact") else one
        for name, one in scores.items()
    }


ROWS = st.builds(
    Row,
    case=st.text(),
    attack=st.text(),
    status=st.sampled_from(["ok", "diverged", "interrupted", "exhausted", "inapplicable", "error"]),
    outcome=st.sampled_from(Outcome),
    reason=st.none() | st.text(),
    side_information=st.lists(st.text(), max_size=2),
    examples=st.none() | COUNTS,
    scores=st.dictionaries(NAMES, SUMMARIES, max_size=4).map(shares),
    baselines=st.dictionaries(st.sampled_from(["grey", "mine"]), st.dictionaries(NAMES, NUMBERS), max_size=2),
    certified=st.none() | st.builds(Certified, n=COUNTS, wrong=st.none() | COUNTS),
    inner=st.dictionaries(st.sampled_from(["v", "h", "mine"]), NUMBERS),
    objective=st.none() | NUMBERS,
    cost=st.builds(Cost, seconds=st.none() | NUMBERS, steps=st.none() | COUNTS),
)


@given(ROWS)
def test_a_row_comes_back_from_json_as_it_was(row: Row) -> None:
    written = json.loads(row.model_dump_json())
    assert Row.model_validate(written) == row


def test_every_number_of_a_row_can_be_asked_for_by_name() -> None:
    row = Row(
        case="a", attack="x", outcome=Outcome.PARTIAL, examples=4, certified=Certified(n=1, wrong=0), inner={"v": 0.5},
        scores={"mine": Summary(mean=3.0, median=2.0, n=4)}, baselines={"grey": {"psnr": 9.0}},
    )  # fmt: skip
    names = ("mine", "mine_median", "mine_low", "mine_n", "grey_psnr", "error_v", "certified", "psnr", "nobody")
    assert [row.value(name) for name in names] == [3.0, 2.0, None, 4, 9.0, 0.5, 0.25, None, None]
    assert violations([row], parse_condition("mine>2", ["mine"]))
    assert violations([row], parse_condition("mine_median<=2", ["mine"]))
    with pytest.raises(SeepageError, match="unknown score"):
        parse_condition("mine>2")


def test_which_count_of_certificates_needs_a_truth() -> None:
    blind = Row(case="a", attack="x", outcome=Outcome.NOT_SCORED, examples=4, certified=Certified(n=2))
    assert {name: one for name, one in blind.numbers().items() if name != "examples"} == {"certified_guesses": 2}
    assert blind.model_dump(mode="json")["certified"] == {"n": 2, "wrong": None}


def test_the_published_schema_is_that_of_the_models() -> None:
    if not PUBLISHED.exists():
        pytest.skip("the documentation is not here")
    assert json.loads(PUBLISHED.read_text()) == json_schema(), "python -m seepage.audit.row > docs/result.schema.json"


TABLES: dict[str, Any] = {
    "seed": 3, "data": {"use": "digits"}, "model": {"use": "fc2", "hidden": 64}, "batch": {"size": 2, "count": 2},
    "attack": [{"use": "linear"}, {"use": "idlg", "steps": 2}, {"use": "inverting_gradients", "steps": 2}],
}  # fmt: skip


def test_a_run_fits_the_schema_and_has_one_noise_baseline(tmp_path: Path) -> None:
    import jsonschema  # seconds, for the one worker that runs this

    found = run(TABLES, out=tmp_path / "run", jobs=1).result
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    jsonschema.validate(written, json_schema())
    assert parse(Result, written, "it") == found
    (case,) = found.cases
    for name in ("random", "grey", "mean_color"):
        for row in found.rows:
            if row.scored:
                shown = case.baseline(name, "psnr")
                assert row.value(f"{name}_psnr") == pytest.approx(shown, abs=0.006), name


def test_the_schema_refuses_what_no_run_writes() -> None:
    import jsonschema  # seconds, for the one worker that runs this

    row = Row(case="a", attack="x", outcome=Outcome.EXACT)
    good = Result(
        verdict="", verdict_level="exact", rows=[row], cases=[Case(name="a", promise=Guarantee())],
        thresholds=Thresholds(),
    ).record()  # fmt: skip
    jsonschema.validate(good, json_schema())
    for change in ({"examples": "high"}, {"outcome": "splendid"}, {"scores": {"psnr": {"low": 1.0}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, "rows": [{**row.model_dump(mode="json"), **change}]}, json_schema())


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
    assert violations(found.rows, parse_condition("spread<1e-3", ["spread"]))
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
        "rounds": rounds, "knowledge": {"known": ["indices"]}, "attack": [{"use": "cafe"}],
    }  # fmt: skip
    result = run(tables, out=tmp_path / "run", jobs=1).result
    (row,) = result.rows
    assert (row.side_information, row.known.count("indices")) == (["indices"], 1)
    assert "The attacker used extra knowledge: indices." in result.verdict
    assert "which here shows the indices" not in result.verdict


def test_labels_that_a_search_leaves_aside_do_not_count_as_told(tmp_path: Path) -> None:
    tables = {
        "data": {"use": "digits", "size": 8}, "model": {"use": "fc2", "hidden": 8}, "batch": {"size": 1},
        "knowledge": {"known": ["labels"]},
        "attack": [{"use": "dlg", "steps": 1}, {"use": "dlg", "steps": 1, "labels": "given"}],
    }  # fmt: skip
    result = run(tables, out=tmp_path / "run", jobs=1).result
    assert [row.side_information for row in result.rows] == [[], ["labels"]]
    assert ["searched for them all the same" in " ".join(row.notes) for row in result.rows] == [True, False]
