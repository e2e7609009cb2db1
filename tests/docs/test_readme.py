"""README.md says of the attacks what the registry says."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(not (ROOT / "docs/site_builder").is_dir(), reason="the builder is not here"),
]


def test_the_table_of_attacks_is_the_generated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/site_builder")
    readme = importlib.import_module("readme")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.attack_table() in text, "write it again: python docs/site_builder/readme.py"
    assert "in front of a ReLU" in readme.attack_table()
