"""Identification in an audit: drawn by the scorer, in the row and the report, and out of the attack's reach."""

from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from seepage.base.storage import read_tensors

RECIPE = """
name = "whose"
[data]
use = "digits"
[model]
use = "fc2"
[batch]
size = 2
count = 2
[score]
metrics = ["identified", "identified_ssim", "person"]
[[attack]]
use = "linear"
"""


def test_guesses_are_ranked_in_row_and_report(cli: Cli, tmp_path: Path) -> None:
    recipe, run = tmp_path / "whose.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    (row,) = cli("audit", recipe, "--out", run, "--jobs", "1", "--json").json["rows"]
    assert row["scores"]["exact"]["mean"] == 1.0
    assert row["scores"]["identified"]["mean"] == 1.0
    assert row["scores"]["identified"]["low"] == pytest.approx(0.3976, abs=1e-4)  # 4 of 4, Clopper and Pearson
    assert row["baselines"]["chance"]["identified"] == pytest.approx(2 / 101, abs=1e-4)
    assert 0 <= row["scores"]["person"]["mean"] <= 1
    assert "100 % [40 %, 100 %], chance 2 %" in (run / "report.html").read_text()
    # The gallery lies with the truth, and holds none of the attacked examples.
    assert not (run / "observed" / "gallery.safetensors").exists()
    drawn, truth = (read_tensors(run / "private" / f"{name}.safetensors") for name in ("gallery", "truth"))
    attacked = next(part for name, part in truth.items() if name.endswith("inputs"))
    assert len(drawn["others"]) == 99
    for pool in (drawn["others"], drawn["pictures"]):
        assert not any((pool == one).flatten(1).all(1).any() for one in attacked)
    cli("audit", recipe, "--out", run, "--fail-if", "identified>0.5", code=1)


def test_a_missing_file_of_weights_is_said_at_once(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(RECIPE.replace("[score]", '[score]\nfeatures = "none.safetensors"'))
    found = cli("audit", path, "--dry-run", code=2)
    assert ("there is no such file" in found.err, "Traceback" in found.err) == (True, False)
