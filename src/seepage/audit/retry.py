"""What of a finished run can be taken up again: attacks that the clock stopped, and what failed."""

from collections.abc import Sequence
from pathlib import Path

from seepage.base.manifest import refuse_changed
from seepage.base.storage import read_json
from seepage.base.vouching import staying_own


def forget_failures(folder: Path) -> int:
    """Remove what failed in a finished run, and its result, so that only that is run again; returns how much failed.

    Failed are attacks and membership tests that ended in an error, and cases that could not be recorded. Whatever does
    not apply stays: it would not apply again.
    """
    failed = failures(folder)
    if failed:
        _reopen(folder)
        for path in failed:
            path.with_suffix(".safetensors").unlink(missing_ok=True)
            path.unlink()
    return len(failed)


def failures(folder: Path) -> list[Path]:
    """Files of what failed in a run: outcomes of attacks and membership tests, and facts of cases not recorded."""
    refuse_changed(folder)
    failed = [path for path in _outcomes(folder) if read_json(path).get("status") == "error"]
    return failed + [path for path in folder.glob("private/**/case.json") if "skipped" in read_json(path)]


def reopened(folder: Path) -> bool:
    """Remove the result of a finished run of which some attacks go on, whose guesses stay; returns whether any do."""
    if not unfinished(folder):
        return False
    _reopen(folder)
    return True


def unfinished(folder: Path) -> bool:
    """Whether the clock stopped an attack of this run, which can go on; a run that repeats another's steps is done."""
    return not (folder / REPEATED).exists() and bool(stopped_steps(folder))


REPEATED = "steps.json"
"""File of a run that repeats another one: the steps that its attacks made until the clock stopped them."""


def stopped_steps(folder: Path) -> dict[str, int]:
    """Steps after which the clock stopped attacks of a run, by the path of their outcome without suffix."""
    refuse_changed(folder)
    found = {path: read_json(path).get("stopped") for path in _outcomes(folder, ("attacks",))}
    return {
        path.relative_to(folder).with_suffix("").as_posix(): steps for path, steps in found.items() if steps is not None
    }


def _reopen(folder: Path) -> None:
    # A run that is killed from here on is an unfinished one, and is resumed.
    with staying_own(folder, finished=False):
        (folder / "result.json").unlink()


def _outcomes(folder: Path, parts: Sequence[str] = ("attacks", "membership")) -> list[Path]:
    return [path for part in parts for path in sorted(folder.glob(f"{part}/**/*.json"))]
