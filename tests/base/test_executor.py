"""Where pieces of work run: this machine, and what `--on` says where there is no other."""

import os
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage import SeepageError
from seepage.base.executor import LocalExecutor, LogFollower, Plan, only_installed_code
from seepage.cli.options import running_on


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
    monkeypatch.delitem(sys.modules, "seepage.recorder.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SeepageError, match=r"seepage\[ray\]"), running_on("ray"):
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

    def begun(self) -> Self:
        return self

    def serialized(self) -> None:
        return None


@pytest.mark.slow
def test_workers_that_are_made_ready_are_called_and_end(tmp_path: Path) -> None:
    with LocalExecutor().ready(2, 4, "cpu", partial((tmp_path / "first").write_text, "was here")) as ready:
        (worker,) = processes_of(ready)
        assert worker.is_alive()
    assert (tmp_path / "first").read_text() == "was here"
    assert not worker.is_alive()


def test_workers_that_wait_end_where_no_pieces_come() -> None:
    workers: list[BaseProcess] = []

    def begin() -> None:
        with LocalExecutor().ready(3, 9, "cpu", partial(time.sleep, 600)) as ready:
            workers.extend(processes_of(ready))
            raise SeepageError("no pieces")

    with pytest.raises(SeepageError, match="no pieces"):
        begin()
    assert len(workers) == 2
    assert not any(worker.is_alive() for worker in workers)


def test_a_worker_that_died_while_it_waited_is_a_sentence(tmp_path: Path) -> None:
    works = [Square(tmp_path / str(n), n) for n in range(2)]

    def begin() -> None:
        with LocalExecutor().ready(2, 9, "cpu", partial(time.sleep, 600)) as ready:
            (worker,) = processes_of(ready)
            worker.kill()
            worker.join()
            until_broken(ready)
            ready.run(works, Plan(2, 1), tmp_path, lambda work: None)

    with pytest.raises(SeepageError, match="a worker died during a square"):
        begin()


def test_one_piece_at_a_time_takes_no_workers() -> None:
    for jobs, count in ((1, 9), (None, 1), (4, 0)):
        with LocalExecutor().ready(jobs, count, "cpu", partial(time.sleep, 600)) as ready:
            assert ready == LocalExecutor()


def processes_of(executor: LocalExecutor) -> list[BaseProcess]:
    return list((executor.workers._processes or {}).values())


def until_broken(executor: LocalExecutor) -> None:
    assert executor.workers is not None
    with suppress(BrokenProcessPool):
        executor.workers.submit(os.getpid).result(timeout=60)


STRANGERS = ("_posixshmem", "pickle", "torch", "selectors")
"""Modules that a worker or its tracker imports, and that may lie in a stranger's folder."""
WORKERS = """
from tests.base.test_executor import Square
import os
from pathlib import Path
from typing import Self
from seepage.base.executor import LocalExecutor, Plan
works = [Square(Path.cwd() / f"{{n}}.txt", n) for n in range(4)]
if __name__ == "__main__":
    {run}
"""
AT_ONCE = "LocalExecutor().run(works, Plan(2, 1), Path(), lambda work: None)"
AHEAD = """with LocalExecutor().ready(2, 4, "cpu", os.getpid) as ready:
        (worker,) = ready.workers._processes
        ready.run(works, Plan(2, 1), Path(), lambda work: None)
    assert {int(Path(f"{n}.txt").read_text().split()[1]) for n in range(4)} == {worker, os.getpid()}"""


PAIR = """
from tests.base.test_executor import Meeting
from pathlib import Path
from typing import Self
from seepage.base.executor import LocalExecutor, Plan
if __name__ == "__main__":
    works = [Meeting(Path.cwd() / one, Path.cwd() / other) for one, other in ("12", "21", "33")]
    LocalExecutor().run(works, Plan(2, 1), Path(), lambda work: None)
"""


@dataclass(frozen=True)
class Meeting:
    """A piece of work that ends once another one has begun."""

    done_file: Path
    other: Path
    title: str = "a meeting"
    device: str = "cpu"

    def run(self, threads: int) -> None:
        self.done_file.touch()
        time.sleep(2.0)
        ends = time.monotonic() + 60
        while not self.other.exists():
            assert time.monotonic() < ends, "the other one waits for this one to end"
            time.sleep(0.05)

    def begun(self) -> Self:
        return self

    def serialized(self) -> None:
        return None


@pytest.mark.full
def test_no_piece_waits_for_a_busy_worker(tmp_path: Path) -> None:
    """In the queue of the standard library's pool it would: the second one here, which the first one waits for."""
    (tmp_path / "script.py").write_text(PAIR)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), *filter(None, sys.path)])}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Square:
    """A piece of work: the square of a number, in a file."""

    done_file: Path
    number: int
    title: str = "a square"
    device: str = "cpu"

    def run(self, threads: int) -> None:
        while self.number == 3 and not self.done_file.with_name("0.txt").exists():
            time.sleep(0.05)  # the last one is this process's, and waits for the first, which is a worker's
        self.done_file.write_text(f"{self.number**2} {os.getpid()}")

    def begun(self) -> Self:
        return self

    def serialized(self) -> None:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("run", [AT_ONCE, AHEAD], ids=["at once", "made ready"])
def test_workers_run_no_code_of_the_current_folder(run: str, tmp_path: Path) -> None:
    """A file beside a stranger's recording is not imported, though workers are started by `python -c`."""
    marker, here, script = tmp_path / "ran", tmp_path / "stranger", tmp_path / "bin" / "script.py"
    for path in (here, script.parent):
        path.mkdir()
    for name in STRANGERS:
        (here / f"{name}.py").write_text(
            f"import sys; open({str(marker)!r}, 'a').write(f'{name}: {{sys.orig_argv}} ')\n"
        )
    script.write_text(
        WORKERS.format(run=run)
    )  # as a console script is: its own folder is on the path, and not the current one
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
