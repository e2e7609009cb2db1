"""An adapter is audited from a recipe like any model."""

from pathlib import Path

import pytest
from tests.cli.conftest import Cli

RECIPE = """
[data]
use = "digits"
[model]
use = "fc2"
hidden = 64
adapter = { rank = 8, targets = ["2"] }
[training]
steps = 5
[[attack]]
use = "lora"
"""


@pytest.mark.slow
def test_a_recipe_with_an_adapter_is_audited(cli: Cli, home: Path) -> None:
    pytest.importorskip("peft")
    (home / "mine.toml").write_text(RECIPE)
    found = cli("audit", "mine.toml", "--jobs=1", "--out=run", "--json")
    assert found.json["rows"][0]["scores"]["exact"]["mean"] == 1.0
    assert "sent: 2 of 6 tensors" in (home / "run" / "report.html").read_text()
