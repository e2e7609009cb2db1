"""Where pieces of work run: this machine, and what `--on` says where there is no other."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage import SeepageError
from seepage.cli.options import running_on
from seepage.core.executor import LocalExecutor, LogFollower, Plan


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
