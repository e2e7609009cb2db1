"""Two processes and one folder; a process that is killed, and what it leaves."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from seepage.base.lock import LOCK, SCRATCH, locked, scratch
from seepage.base.storage import write_whole
from seepage.errors import SeepageError

HOLD = """
import sys
from pathlib import Path
from typing import Any
from seepage.base.lock import locked, scratch
with {what} as place:
    print(place, flush=True)
    sys.stdin.read()
"""


def holding(what: str, temporary: Path | None = None) -> "subprocess.Popen[str]":
    """Another process inside of a `with` block, until its input ends."""
    environment = os.environ | ({"TMPDIR": str(temporary)} if temporary else {})
    return subprocess.Popen(
        [sys.executable, "-c", HOLD.format(what=what)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.full  # two processes that import PyTorch
def test_one_process_at_a_time_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    other = holding(f"locked(Path({str(folder)!r}))")
    try:
        other.stdout.readline()
        with pytest.raises(SeepageError, match="another process"), locked(folder):
            pass
        assert (folder / LOCK).exists(), "which is the other's"
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with locked(folder) as made:
            assert made is None
        assert list(folder.iterdir()) == []
    finally:
        other.kill()
        other.communicate()


def test_a_lock_can_be_taken_again_inside_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(tmp_path / "a" / "run") as made:
        assert made == tmp_path / "a"
        monkeypatch.chdir(tmp_path / "a")
        with locked(Path("run")) as again:
            assert again is None
        assert (tmp_path / "a" / "run" / LOCK).exists()
    assert list((tmp_path / "a" / "run").iterdir()) == []
    assert (tmp_path / "a" / "run").stat().st_mode & 0o077 == 0


def test_a_lock_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("untouched")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "theirs")
    with pytest.raises(SeepageError, match="cannot write to"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "theirs").read_text() == "untouched"


@pytest.mark.full  # a process that imports PyTorch
def test_the_truth_in_a_temporary_folder_of_a_killed_process_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{SCRATCH}of-a-stranger").symlink_to(tmp_path.parent)
    other = holding("scratch()", tmp_path)
    try:
        left = Path(other.stdout.readline().strip())
        write_whole(left / "run" / "private" / "truth.safetensors", "somebody")
        with scratch() as place:
            assert left.exists(), "of a process that still needs it"
            assert place != left
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with scratch() as place:
            assert not left.exists()
            assert place.stat().st_mode & 0o077 == 0
        assert tmp_path.parent.exists()
        assert [path.name for path in tmp_path.iterdir()] == [f"{SCRATCH}of-a-stranger"]
    finally:
        other.kill()
        other.communicate()


def test_temporary_folders_of_many_at_once_are_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sweeps before it makes its own, while others are between making a lock and holding it, and are leaving."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def once() -> bool:
        with scratch() as place:
            (place / "truth").write_text("somebody")
            return (place / LOCK).is_file() and place.stat().st_mode & 0o077 == 0

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(once) for _ in range(300)]
        assert all(future.result() for future in futures)
    with scratch() as place:
        assert list(tmp_path.iterdir()) == [place]
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_that_was_taken_for_a_left_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    acquire, taken = FileLock.acquire, []

    def late(lock: FileLock, *args: Any, **kwargs: Any) -> Any:
        if not taken:
            path = Path(lock.lock_file)
            taken.append(path.parent)
            path.touch()
            other = FileLock(path, timeout=0)
            acquire(other)
            try:
                return acquire(lock, *args, **kwargs)
            finally:
                other.release()
                shutil.rmtree(path.parent)
        return acquire(lock, *args, **kwargs)

    monkeypatch.setattr(FileLock, "acquire", late)
    with scratch() as place:
        assert not taken[0].exists()
        assert place not in taken
        assert (place / LOCK).is_file()
