"""Options chosen on other batches: which examples those are, which value wins, and that the run is scored with it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from seepage import SeepageError
from seepage.audit import run as audit
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases, resolved
from seepage.audit.row import Case, Outcome, Result, Row, Thresholds
from seepage.audit.simulate.setting import Setting
from seepage.audit.tune import chosen_options, tuning_tables, with_options
from seepage.base.schema import Summary
from seepage.cli.commands import app
from seepage.federation.transcript.truth import open_truth

PLAIN = """
seed = 3
data = { use = "digits", size = 8 }
model = { use = "fc2", hidden = 24 }
batch = { size = 2, count = 3 }
attack = [{ use = "linear" }, { use = "inverting_gradients", steps = 3 }]
tune = { options = { "attack.tv" = [0.1, 0.0], "attack.lr" = [0.01, 0.1] } }
"""


def tables_of(text: str = PLAIN, **changed: Any) -> dict[str, Any]:
    return tomllib.loads(text) | changed


def case_of(**changed: Any) -> Recipe:
    tables = tables_of(**changed)
    del tables["tune"]
    return resolve_cases(tables)[0]


@pytest.mark.parametrize("federation", [None, {"rounds": 1, "clients": 8}], ids=["batches", "federation"])
def test_batches_after_the_scored_ones_share_no_example_with_them(federation: dict[str, int] | None) -> None:
    extra = {} if federation is None else {"federation": federation}
    scored = Setting.of(case_of(**extra)).victims
    after = Setting.of(case_of(batch={"size": 2, "count": 2, "skip": 3}, **extra)).victims
    assert len(scored) == 3
    assert len(after) == 2
    assert not {i for part in scored for i in part.tolist()} & {i for part in after for i in part.tolist()}
    if federation is None:  # the same order as a run of five batches, whose last two these are
        whole = Setting.of(case_of(batch={"size": 2, "count": 5})).victims
        assert torch.equal(torch.stack(list(whole)[3:]), torch.stack(list(after)))


def test_the_tuning_run_has_every_combination_and_nothing_of_the_scored_batches() -> None:
    tables = tables_of(grid={"batch": [{"size": 1, "count": 4}, {"size": 2, "count": 2}]}, membership={})
    found = tuning_tables(tables, resolve_cases(tables))
    assert [(one["tv"], one["lr"]) for one in found["attack"]] == [(0.1, 0.01), (0.1, 0.1), (0.0, 0.01), (0.0, 0.1)]
    assert {one["use"] for one in found["attack"]} == {"inverting_gradients"}
    assert "membership" not in found
    for recipe in resolve_cases(found):
        assert (recipe.batch.count, recipe.batch.skip) == (1, 4)


def row(attack: str, case: str, value: float | None) -> Row:
    scores = {} if value is None else {"psnr": Summary(mean=value)}
    return Row(case=case, attack=attack, outcome=Outcome.PARTIAL, scores=scores)


def test_the_best_mean_over_cases_wins_and_a_value_that_fails_anywhere_does_not() -> None:
    tables = tables_of()
    values = {1: (10.0, 12.0), 2: (30.0, None), 3: (11.5, 11.5), 4: (9.0, 9.0)}
    rows = [
        row(f"inverting_gradients-{i}", case, value)
        for i, both in values.items()
        for case, value in zip("ab", both, strict=True)
    ]
    result = Result(
        verdict="", verdict_level="partial", rows=rows, cases=[Case(name="a"), Case(name="b")],
        thresholds=Thresholds(recovered_gain_db=3, exact_db=40),
    )  # fmt: skip
    (tuned,) = chosen_options(tables, resolve_cases(tables), result)
    assert tuned.attack == "inverting_gradients"
    assert tuned.chosen == {"tv": 0.0, "lr": 0.01}  # 11.5; the first has a mean of 11, the second failed in case b
    assert [one.value for one in tuned.tried] == [11.0, None, 11.5, 9.0]
    linear, matching = with_options(tables, [tuned])["attack"]
    assert "tv" not in linear
    assert (matching["tv"], matching["lr"], matching["steps"]) == (0.0, 0.01, 3)
    assert tables["attack"][1] == {"use": "inverting_gradients", "steps": 3}


def test_a_run_is_scored_with_what_the_other_batch_chose(tmp_path: Path) -> None:
    tables = tables_of(
        attack=[{"use": "linear"}],
        batch={"size": 2, "count": 1},
        tune={"options": {"attack.tolerance": [1e-30, 1e-5]}, "count": 2},
    )
    run = audit.run(tables, out=tmp_path / "run", jobs=1)
    (tuned,) = run.result.tuned
    # With a tolerance of 1e-30 no row is certified and nothing comes back: any score at all is better.
    assert tuned.chosen == {"tolerance": 1e-5}
    tried = json.loads((tmp_path / "run" / "tune" / "result.json").read_text())["rows"]
    best = max(tried, key=lambda one: one["scores"].get("psnr", {"mean": -1.0})["mean"])
    assert best["attack"] == "linear-2"
    assert tuned.tried[1].value == pytest.approx(best["scores"]["psnr"]["mean"])
    assert "tolerance=1e-05" in run.result.rows[0].options
    assert json.loads((tmp_path / "run" / "result.json").read_text())["tuned"][0]["batches"] == 2
    scored, other = (open_truth(tmp_path / "run" / part / "private") for part in ("", "tune"))
    images = [image for batch in other.batches for image in batch.inputs]
    assert len(images) == 4
    assert not any(torch.equal(own, image) for batch in scored.batches for own in batch.inputs for image in images)
    assert not audit.run(tables, out=tmp_path / "run", jobs=1).fresh


def test_the_resolved_recipe_repeats_the_tuning() -> None:
    tables = tables_of()
    text = resolved(tables, resolve_cases(tables))
    assert resolve_cases(tomllib.loads(text))[0].tune == resolve_cases(tables)[0].tune


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tune": {"options": {"model.hidden": [1]}}}, "tune.options are of attacks"),
        ({"tune": {"options": {"attack.tv": []}}}, "at least one value"),
        ({"tune": {"options": {"attack.tv": [1]}}}, "nothing to choose"),
        ({"tune": {"options": {"attack.nothing": [1, 2]}}}, "no attack of this recipe takes"),
        ({"grid": {"attack": [[{"use": "linear"}]]}}, "have attacks of their own"),
        ({"rounds": {"count": 6, "samples": 9}}, "no other batch for"),
        ({"tune": {"options": {"attack.steps": ["many", 5]}}}, "steps must be a whole number"),
    ],
)
def test_mistakes_are_said_before_anything_is_written(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match=words):
        audit.run(tables_of(**changed), out=tmp_path / "run", jobs=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["attack.tv", "=1", "attack.tv="])
def test_the_command_line_says_how_it_is_written(setting: str) -> None:
    found = CliRunner().invoke(app, ["audit", "--tune", setting])
    assert isinstance(found.exception, SeepageError)
    assert "--tune takes attack.OPTION=V1,V2" in str(found.exception)
