"""A run's folder: whose it is, whether a run there is finished, and what goes away after a mistake."""

import os
import platform
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from seepage.audit.recipe.contents import MARK, split_text
from seepage.audit.row import Result
from seepage.base.executor import threads_for
from seepage.base.lock import LOCK
from seepage.base.manifest import refuse_changed
from seepage.base.schema import parse
from seepage.base.storage import (
    LARGEST_JSON,
    SCHEMA,
    TEMPORARY,
    check_regular,
    check_schema,
    read_json,
    refuse_links,
    sweep,
    write_json,
    write_whole,
)
from seepage.base.vouching import OWNER, begin, refuse_foreign
from seepage.errors import SeepageError

MIN_FREE_BYTES = 64 * 2**20
"""Bytes that must be free before a run starts."""

STALE_SECONDS = 3600.0
"""Age at which a file under a temporary name is of a killed writer, where the run is finished and pages are written."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: The run folder.
        result: What it found: the content of `result.json`.
        fresh: Whether this call computed it; False: the folder held the finished run already.
    """

    folder: Path
    result: Result
    fresh: bool


MOST_ROWS = 10_000
"""Rows of a result: reports of more take minutes, and no grid of cases and attacks has as many."""


def claim(
    folder: Path, name: str, text: str, beside: Collection[str] = (), *, sweeps: bool = False, reuse: bool = True
) -> bool:
    """Check that a folder is free for a run, or belongs to it already; returns whether the run there is finished.

    Args:
        folder: The run folder.
        name: Name of the file that identifies the run, such as `recipe.toml`.
        text: Content that the file must have.
        beside: Further entries that are allowed in a folder without that file.
        sweeps: Whether to remove what a killed writer left; only while the folder is `locked`.
        reuse: Whether a run without this user's proof (`vouching`) is resumed, or taken as it is.

    Raises:
        SeepageError: Where the folder holds something else, or a link that leads out of it.
    """
    if folder.exists() and not folder.is_dir():
        raise SeepageError(f"{folder} is a file; choose another folder with --out")
    refuse_links(folder)
    finished = (folder / "result.json").exists()
    if not reuse:
        refuse_foreign(folder)
    if (folder / name).exists():
        check_regular(folder / name, LARGEST_JSON)
        found = (folder / name).read_text(encoding="utf-8", errors="replace")
        if found != text:
            state = "a finished" if finished else "an unfinished"
            raise SeepageError(f"{folder} holds {state} run of {_other(found, text)}; choose another folder with --out")
        if sweeps or finished:
            sweep(folder, older=STALE_SECONDS if finished else 0.0)
        return finished
    found_names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if {one for one in found_names if not one.startswith((TEMPORARY, LOCK))} - {OWNER, *beside}:
        raise SeepageError(f"{folder} is not empty and holds no run of this; choose another folder with --out")
    if sweeps:  # what was killed in its very first write
        sweep(folder)
    return False


def take(folder: Path, name: str, text: str) -> None:
    """Say what a folder that was claimed is of, and first whose it is."""
    begin(folder, text)
    write_whole(folder / name, text)


def _other(found: str, text: str) -> str:
    """What else a folder holds a run of: another recipe, or the same one on things that have changed since."""
    (before, said), (now, says) = split_text(found), split_text(text)
    if before != now:
        return "something else"
    changed = sorted({line.removeprefix(MARK).rpartition(": ")[0] for line in set(said) ^ set(says)})
    return f"the same recipe, made when {' and '.join(changed)[:200]} had other content"


@contextmanager
def undone_on_mistake(made: Path | None) -> Iterator[None]:
    """Remove a folder that was made for a run, as `locked` says, if the `with` block raises. None: nothing was."""
    try:
        yield
    except SeepageError:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise


def read_result(folder: Path) -> Result:
    """The content of `result.json` in a run folder, checked against the folder's manifest and the schema."""
    path = folder / "result.json"
    if path.exists():
        refuse_changed(folder, path.name)
    found = read_json(path)
    check_schema(found, path)
    if len(found.get("rows") or ()) > MOST_ROWS:
        raise SeepageError(f"{path} has more than {MOST_ROWS:,} rows, and no run writes so many; copy the run again")
    return parse(Result, found, str(path))


def check_device(device: str) -> None:
    """Raise unless torch can use the device here."""
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # a device may be of a package that is not there
        reason = str(error).splitlines()[0]
        raise SeepageError(f"the device {device!r} cannot be used here ({reason}); use --device cpu") from error


def write_environment(folder: Path, command: str, started: float, device: str, jobs: int, **more: Any) -> None:
    """Write `env.json`: what `environment` finds, and more; the seconds of the run's earlier parts are added."""
    file, found = folder / "env.json", environment(command, started, device, jobs)
    before = read_json(file) if file.exists() else {}
    seconds = round(found["seconds"] + float(before.get("seconds") or 0.0), 1)
    resumed = {"resumed": True} if before.get("resumed") else {}
    write_json(file, {**found, "seconds": seconds, **resumed, **more})


def environment(command: str, started: float, device: str, jobs: int) -> dict[str, Any]:
    """Versions, platform, device and command of a run."""
    return {
        "schema": SCHEMA,
        "seepage": version("seepage"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "threads": threads_for(jobs, device),
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 1),
    }
