"""Where pieces of work run: this machine, and what `--on` says where there is no other."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage import SeepageError
from seepage.cli.options import running_on
from seepage.core.executor import LocalExecutor, LogFollower, Plan, only_installed_code


@given(pieces=st.lists(st.text("ab\n", max_size=6), max_size=8))
def test_a_log_follower_gives_each_whole_line_once(pieces: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    follower, found = LogFollower(path), b""
    assert follower.fresh() == b""
    for piece in pieces:
        with path.open("a") as file:
            file.write(piece)
        fresh = follower.fresh()
        assert fresh == b"" or fresh.endswith(b"\n")
        found += fresh
    whole, end, _ = "".join(pieces).rpartition("\n")
    assert found.decode() == whole + end


@pytest.mark.parametrize(
    ("jobs", "count", "device", "plan"),
    [
        (None, 9, "cpu", Plan(4, 2)),
        (None, 3, "cpu", Plan(3, 2)),
        (None, 9, "cuda", Plan(1, 1)),
        (2, 9, "cuda:1", Plan(2, 1)),
        (16, 9, "cpu", Plan(9, 1)),
        (None, 0, "cpu", Plan(1, 8)),
    ],
)
def test_all_cores_are_used_once(
    jobs: int | None, count: int, device: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert LocalExecutor().plan(jobs, count, device) == plan


def test_what_on_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_on(None) as runner:
        assert runner == LocalExecutor()
    with pytest.raises(SeepageError, match="--on takes ray"), running_on("dask"):
        pass
    monkeypatch.delitem(sys.modules, "seepage.integrations.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SeepageError, match=r"pip install 'seepage\[ray\]'"), running_on("ray"):
        pass


def test_work_here_is_done_in_order(tmp_path: Path) -> None:
    done: list[object] = []
    works = [Note(tmp_path / name) for name in ("one", "two")]
    LocalExecutor().run(works, Plan(1, 1), tmp_path, done.append)
    assert done == works
    assert [work.done_file.read_text() for work in works] == ["1", "1"]


class Note:
    """Work that writes down how many threads it was given."""

    title, device = "a note", "cpu"

    def __init__(self, mark: Path) -> None:
        self.done_file = mark

    def run(self, threads: int) -> None:
        self.done_file.write_text(str(threads))

    def serialized(self) -> None:
        return None


STRANGERS = ("_posixshmem", "pickle", "torch", "selectors")
"""Modules that a worker or its tracker imports, and that may lie in a stranger's folder."""
WORKERS = """
from tests.unit.test_executor import Square
from pathlib import Path
from seepage.core.executor import LocalExecutor, Plan
works = [Square(Path(f"{n}.txt"), n) for n in range(4)]
if __name__ == "__main__":
    LocalExecutor().run(works, Plan(2, 1), Path(), lambda work: None)
"""


@dataclass(frozen=True)
class Square:
    """A piece of work: the square of a number, in a file."""

    done_file: Path
    number: int
    title: str = "a square"
    device: str = "cpu"

    def run(self, threads: int) -> None:
        while self.number == 3 and not Path("0.txt").exists():
            time.sleep(0.05)  # the last one is this process's, and waits for the first, which is a worker's
        self.done_file.write_text(f"{self.number**2} {os.getpid()}")

    def serialized(self) -> None:
        return None


@pytest.mark.slow
def test_workers_run_no_code_of_the_current_folder(tmp_path: Path) -> None:
    """A file beside a stranger's recording is not imported, though workers are started by `python -c`."""
    marker, here, script = tmp_path / "ran", tmp_path / "stranger", tmp_path / "bin" / "script.py"
    for path in (here, script.parent):
        path.mkdir()
    for name in STRANGERS:
        (here / f"{name}.py").write_text(
            f"import sys; open({str(marker)!r}, 'a').write(f'{name}: {{sys.orig_argv}} ')\n"
        )
    script.write_text(WORKERS)  # as a console script is: its own folder is on the path, and not the current one
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "src"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [(here / f"{n}.txt").read_text().split() for n in range(4)]
    assert [int(square) for square, _ in found] == [0, 1, 4, 9]
    assert len({process for _, process in found}) == 2
    assert not marker.exists(), f"run by a worker: {marker.read_text()}"
    assert "PYTHONSAFEPATH" not in os.environ


def test_the_switch_of_safe_paths_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "", "1"):
        monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
        if before is not None:
            monkeypatch.setenv("PYTHONSAFEPATH", before)
        with only_installed_code():
            assert os.environ["PYTHONSAFEPATH"] == "1"
        assert os.environ.get("PYTHONSAFEPATH") == before
