"""The command line, called in this process, in an empty folder with a tiny recipe."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seepage.audit import run as audit
from seepage.audit.recipe.files import read_recipe
from seepage.cli import main

TINY = """
name = "tiny"
[data]
use = "faces"
size = 8
[model]
use = "fc2"
hidden = 16
[batch]
size = 1
count = 2
[[attack]]
use = "linear"
[[attack]]
use = "inverting_gradients"
steps = 5
"""


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        def refuse(word: str) -> float:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


Cli = Callable[..., Finished]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, but for `tiny.toml`."""
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def cli(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call `seepage` with arguments, which ends with exit code 0 unless another `code` is stated; None: with any.

    Anything but an exit code is a fault, and shows as one.
    """

    def call(*arguments: object, code: int | None = 0) -> Finished:
        monkeypatch.setattr(sys, "argv", ["seepage", *map(str, arguments)])
        capsys.readouterr()
        ended = 0
        try:
            main()
        except SystemExit as end:
            ended = end.code if isinstance(end.code, int) else int(bool(end.code))
        found = Finished(ended, *capsys.readouterr())
        assert code in (None, ended), found
        return found

    return call


@pytest.fixture
def refused(cli: Cli, home: Path) -> Callable[..., str]:
    """Call `seepage` with a mistake: exit code 2, one sentence on stderr, nothing on stdout, no file touched."""

    def call(*arguments: object) -> str:
        before = _listing(home)
        found = cli(*arguments, code=2)
        assert found.out == ""
        assert found.err.startswith("error: ")
        assert "Traceback" not in found.err
        assert found.err.count("\n") == 1, f"one line, got: {found.err}"
        assert len(found.err) < 1000, "a sentence, not a page"
        assert _listing(home) == before
        return found.err

    return call


def _listing(folder: Path) -> dict[Path, int]:
    """Every file and when it was written, but for what Python itself keeps of the modules that it imports there.

    Of folders the names alone: a lock that was taken and given back is no file, and changes the time of its folder.
    """
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run of the tiny recipe; not to be changed."""
    place = tmp_path_factory.mktemp("audited")
    (place / "tiny.toml").write_text(TINY)
    return audit.run(read_recipe(place / "tiny.toml"), out=place / "run", jobs=1).folder


@pytest.fixture
def run(audited: Path, home: Path) -> Path:
    """A copy of the finished run, to be changed at will: `run` in the folder one works in."""
    shutil.copytree(audited, home / "run")
    return Path("run")


@pytest.fixture
def observed(run: Path) -> Path:
    """What an attacker may read of the finished run, without the rest: `observed` in the folder one works in."""
    run.joinpath("observed").rename("observed")
    shutil.rmtree(run)
    return Path("observed")
