"""What failed in a finished run, and how only that is run again."""

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
        # First the result: a run that is killed in between is an unfinished one, and is resumed.
        with staying_own(folder, finished=False):
            (folder / "result.json").unlink()
        for path in failed:
            path.with_suffix(".safetensors").unlink(missing_ok=True)
            path.unlink()
    return len(failed)


def failures(folder: Path) -> list[Path]:
    """Files of what failed in a run: outcomes of attacks and membership tests, and facts of cases not recorded."""
    refuse_changed(folder)
    failed = [path for path in _outcomes(folder) if read_json(path).get("status") in ("error", "interrupted")]
    return failed + [path for path in folder.glob("private/**/case.json") if "skipped" in read_json(path)]


def _outcomes(folder: Path) -> list[Path]:
    return [path for part in ("attacks", "membership") for path in sorted(folder.glob(f"{part}/**/*.json"))]
