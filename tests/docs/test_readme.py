"""docs/attacks/index.md says of the attacks what the registry says, and README.md is a page that can be read."""

import importlib
from pathlib import Path

import pytest

from seepage.base.registry import attacks, defenses

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(not (ROOT / "docs/site_builder").is_dir(), reason="the builder is not here"),
]


def test_the_table_of_attacks_is_the_generated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/site_builder")
    made = importlib.import_module("attack_table")
    text = (ROOT / "docs/attacks/index.md").read_text(encoding="utf-8")
    assert made.attack_table() in text, "write it again: python docs/site_builder/attack_table.py"
    assert "in front of a ReLU" in made.attack_table()


def test_the_readme_stays_short_and_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert f"{len(attacks)} attacks and {len(defenses)} defenses" in text
