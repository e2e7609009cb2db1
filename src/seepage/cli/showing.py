"""What several commands do with a finished run: its pages, its table in the terminal or as JSON, its gate."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seepage.errors import printable

if TYPE_CHECKING:
    from seepage.audit.run import Run
    from seepage.core.progress import ProgressCallback


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["seepage", *sys.argv[1:]])


def write_pages(folder: Path, show: "ProgressCallback", *, again: bool, pictures: bool = True) -> None:
    """Pictures first, the report last; a run that has both is left as it is.

    Args:
        folder: The run folder.
        show: Progress.
        again: Write them although they are there.
        pictures: Whether the pages may show any; without, the report is written anew and `grid.png` goes.
    """
    from seepage.report import write_grid, write_report

    if again or not pictures or not (folder / "report.html").exists():
        show(0.99, 1, "writing the report")
        if pictures:
            write_grid(folder)
        else:
            (folder / "grid.png").unlink(missing_ok=True)
        write_report(folder, pictures=pictures)


def present(folder: Path, finished: "Run", as_json: bool, quiet: bool, *, note_old: bool = True) -> None:
    """Print a finished run.

    Args:
        folder: Its folder.
        finished: The run.
        as_json: One JSON object and nothing else.
        quiet: The verdict and nothing else.
        note_old: Say where it was finished earlier.
    """
    from seepage.cli.terminal import print_result
    from seepage.report.run import open_run

    if not finished.fresh:
        open_run(folder)  # it may be somebody else's, and damaged
    if as_json:
        keys = ("verdict", "verdict_level", "rows", "cells", "thresholds")
        result = {key: finished.result[key] for key in keys}
        found = {"schema": 1, "run": str(folder), "finished_earlier": not finished.fresh, **result}
        print(json.dumps(found, allow_nan=False))
    else:
        print_result(folder, finished.result, quiet=quiet, note_old=note_old and not finished.fresh)


def gate(result: Any, condition: tuple[str, str, float] | None) -> None:
    """End with exit code 1 where a row meets the condition of `--fail-if`."""
    from seepage.audit.row import violations

    if condition is None:
        return
    found = violations(result["rows"], condition)
    if found:
        key, sign, number = condition
        titles = {cell["name"]: cell["title"] for cell in result["cells"]}
        worst = "; ".join(f"{row['attack']} on {titles[row['cell']]}: {key} {row[key]:g}" for row in found[:3])
        print(f"failed: {len(found)} rows have {key} {sign} {number:g}: {printable(worst)}", file=sys.stderr)
        raise typer.Exit(1)
