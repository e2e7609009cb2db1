"""Stored rows of a recipe stand below those of one's own attack, as long as the victims are the recipe's."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from seepage.audit.recipe.files import BUILT_IN, find_recipe, read_recipe
from seepage.audit.recipe.overrides import change
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.row import Row
from seepage.cli import stored
from seepage.cli.stored import stored_rows

NAME = "compare/standard"


def test_every_stored_row_is_of_a_case_and_an_attack_of_the_recipe() -> None:
    cases = resolve_cases(read_recipe(find_recipe(NAME)))
    found = stored_rows(NAME, cases)
    attacks = {part.label or part.use for case in cases for part in case.attack}
    assert {row.case for row in found.rows} == {case.case for case in cases}
    assert {row.attack for row in found.rows if not row.attack.startswith("breaching")} <= attacks
    assert all(row.gave_result and row.scored for row in found.rows)


def test_other_victims_have_no_stored_rows() -> None:
    tables = read_recipe(find_recipe(NAME))
    assert stored_rows(NAME, resolve_cases(change(tables, ['attack=[{use="linear"}]']))).rows
    for other in ("seed=1", "training.lr=0.5", "data.use=digits"):
        rows = stored_rows(NAME, resolve_cases(change(read_recipe(find_recipe(NAME)), [other]))).rows
        assert not [row for row in rows if row.case.startswith("fc2")], other
    assert not stored_rows(None, resolve_cases(tables)).rows
    assert not stored_rows("default", resolve_cases(tables)).rows


def test_they_are_printed_below_ones_own(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "recipes").mkdir()
    recipe = home / "recipes" / "tiny.toml"
    recipe.write_text((home / "tiny.toml").read_text())
    monkeypatch.setattr(stored, "BUILT_IN", home / "recipes")
    row = Row(
        case="case", attack="theirs", outcome="exact", examples=2, scores={"psnr": {"mean": 99.0, "median": 99.0}}
    )
    recipe.with_suffix(".json").write_text(
        json.dumps({"made": "of another day", "rows": [row.model_dump(mode="json")]})
    )
    found = cli("audit", recipe, "--jobs", 1, "--out", "run")
    assert "theirs *" in found.out
    assert "* of another day" in found.out
    assert "theirs" not in cli("audit", recipe, "--set", "seed=5", "--jobs", 1, "--out", "other").out


def test_the_file_ships() -> None:
    assert (BUILT_IN / "compare" / "standard.json").is_file()
