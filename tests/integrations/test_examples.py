"""The examples run, say what they should, and stay short."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = 40
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not here")


def ran(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with torch.random.fork_rng():
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
    return 0


def test_audit_my_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("audit_my_model.py", monkeypatch=monkeypatch) == 0
    said = re.search(
        r"no defense: gives away (\d) of 4 examples exactly.*\n  linear: (\d+)% recovered", capsys.readouterr().out
    )
    assert said is not None
    assert int(said[2]) == 25 * int(said[1]) > 0  # the look before the attack says what the attack then gets


def test_captured_update(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("captured_update.py", monkeypatch=monkeypatch) == 0
    assert "gives away 1 of 1 examples exactly" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("0", "0"), 1), (("4", "0"), 0), (("0", "-1"), 2)])
def test_gate_a_build(arguments: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran("gate_a_build.py", *arguments, monkeypatch=monkeypatch) == code


def test_examples_are_short() -> None:
    files = [path for path in EXAMPLES.rglob("*.py") if "__pycache__" not in path.parts]
    assert len(files) >= 6
    assert {
        path.name: len(path.read_text().splitlines()) for path in files if len(path.read_text().splitlines()) > SHORT
    } == {}
