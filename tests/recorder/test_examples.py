"""The examples run, say what they should, and stay short."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from seepage.cli import main

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
        r"no defense: reveals (\d) of 4 examples exactly.*\n  linear: (\d+)% recovered", capsys.readouterr().out
    )
    assert int(said[2]) == 25 * int(said[1]) > 0  # the look before the attack says what the attack then gets


def test_captured_update(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("captured_update.py", monkeypatch=monkeypatch) == 0
    assert "reveals 1 of 1 example exactly" in capsys.readouterr().out


@pytest.mark.filterwarnings("default")  # Opacus has some
@pytest.mark.slow
def test_opacus_ledger(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opacus", reason="needs seepage[opacus]")
    assert ran("opacus_ledger.py", monkeypatch=monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [int(re.search(r"; (\d+) steps by rdp", line)[1]) for line in lines]  # type: ignore[index]
    assert steps == [4, 4, 8, 8, 12, 12]  # engines are new each round and go on counting
    assert all(" of 64 examples" in line for line in lines)


WORKFLOW = EXAMPLES.parent / "docs" / "howto" / "gate-a-build.md"


@pytest.mark.skipif(not WORKFLOW.is_file(), reason="the pages are not here")
@pytest.mark.parametrize(("sigma", "code"), [(0.0, 1), pytest.param(1.0, 0, marks=pytest.mark.slow)])
def test_the_commands_of_the_workflow_fail_a_build(
    sigma: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the page, as they stand there: they fail where examples leak, and pass where noise hides them."""
    recipe = f"""
        undefended = true
        data = {{ use = "digits" }}
        model = {{ use = "fc2" }}
        batch = {{ size = 2 }}
        training = {{ steps = 0 }}
        attack = [{{ use = "linear" }}]
        {f'defense = [{{ use = "gaussian_noise", sigma = {sigma} }}]' if sigma else ""}
    """
    (tmp_path / "audit.toml").write_text("\n".join(line.strip() for line in recipe.splitlines()))
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"- run: seepage (.+)", WORKFLOW.read_text())
    assert [shlex.split(command)[0] for command in commands] == ["check", "audit"]
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["seepage", *shlex.split(command)])
        try:
            main()
            left: object = 0
        except SystemExit as end:
            left = end.code or 0
        assert left == code
    assert (tmp_path / "leakage" / "report.html").is_file()  # what the last step uploads


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("0", "0"), 1), (("4", "0"), 0), (("0", "-1"), 2)])
def test_gate_a_build(arguments: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran("gate_a_build.py", *arguments, monkeypatch=monkeypatch) == code


def test_examples_are_short() -> None:
    files = [path for path in EXAMPLES.rglob("*.py") if "__pycache__" not in path.parts]
    assert len(files) >= 6
    assert {
        path.name: len(path.read_text().splitlines()) for path in files if len(path.read_text().splitlines()) > SHORT
    } == {}
