"""One process at a time writes to a run folder, and nothing private stays in a temporary one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from seepage.base.storage import make_private
from seepage.errors import SeepageError

LOCK = ".lock"
"""File in a folder that is there while a process writes to it; of one that was killed it is free."""

SCRATCH = "seepage-scratch-"
"""What the name of a temporary folder begins with."""


@contextmanager
def locked(folder: Path) -> Iterator[Path | None]:
    """Make a run folder, which only its owner can open, and write to it alone. May be entered again inside.

    Args:
        folder: The run folder.

    Yields:
        The outermost folder that was made for it; None where it was there.

    Raises:
        SeepageError: Where another process writes to it, and where it cannot be made.
    """
    made = next((path for path in reversed([folder, *folder.parents]) if not path.exists()), None)
    make_private(folder, tighten=True)
    with held(folder):
        yield made


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Write alone to a folder that is there, and leave its permissions. May be entered again inside.

    One that is not there is left to whoever reads from it, who says so.

    Raises:
        SeepageError: Where another process writes to it, and where nobody can.
    """
    if not folder.is_dir():
        yield
        return
    path = folder.resolve() / LOCK
    lock = FileLock(path, timeout=0, mode=0o600, thread_local=False, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise SeepageError(
            f"another process is writing to {folder}; wait until it has ended, or choose another folder"
        ) from None
    except OSError as error:
        raise SeepageError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
    try:
        yield
    finally:
        if lock.lock_counter == 1:  # the outermost; whoever waits for this very file sees that it is gone
            with suppress(OSError):
                path.unlink()
        lock.release()


@contextmanager
def scratch(beside: Path | None = None, prefix: str = SCRATCH) -> Iterator[Path]:
    """A temporary folder, which only its owner can open and which is removed at the end.

    A process that is killed cannot remove its own. The next one does: it removes those that nobody has locked.

    Args:
        beside: Where it is made; None: where the system has such folders.
        prefix: What its name begins with, and those of the ones that are removed.
    """
    parent = Path(tempfile.gettempdir()) if beside is None else beside
    _sweep_scratch(parent, prefix)
    place, lock = _claimed(parent, prefix)
    try:
        yield place
    finally:
        lock.release()
        # Another process may lock it now to sweep it; what it takes first is not here to be removed.
        shutil.rmtree(place, ignore_errors=True)


def _claimed(parent: Path, prefix: str) -> tuple[Path, BaseFileLock]:
    """A new temporary folder and its lock.

    Between making the lock's file and locking it, another process can take the folder for one that was left behind,
    lock it first and remove it. Then a further one is made.
    """
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = FileLock(place / LOCK, timeout=0, mode=0o600, thread_local=False)
        with suppress(Timeout):
            lock.acquire()
            if (place / LOCK).is_file():
                return place, lock
            lock.release()


def _sweep_scratch(place: Path, prefix: str) -> None:
    for left in [path for path in place.iterdir() if path.name.startswith(prefix)]:
        with suppress(OSError, Timeout):
            found = left.lstat()
            mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
            # One without a lock file is of a process that is just making it, or was killed in doing so: it is empty.
            if mine and not left.is_symlink() and (left / LOCK).is_file():
                lock = FileLock(left / LOCK, timeout=0, thread_local=False)
                with lock.acquire():
                    shutil.rmtree(left, ignore_errors=True)
