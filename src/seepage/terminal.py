"""What a person sees in a terminal: progress on stderr, tables on stdout."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from seepage.recording import Show, quiet

LINE_EVERY = 10.0
"""Seconds between progress lines where there is no terminal."""


@contextmanager
def progress_bar(*, off: bool = False) -> Iterator[Show]:
    """A bar on a terminal, a plain line now and then elsewhere, always on stderr."""
    if off:
        yield quiet
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=1)

            def show(done: float, total: float, what: str) -> None:
                bar.update(task, completed=done, total=total, description=what or None)

            yield show
    else:
        yield _Lines().show


class _Lines:
    """Progress as plain lines."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def show(self, done: float, total: float, what: str) -> None:
        now = time.monotonic()
        if now - self.last >= LINE_EVERY:
            self.last = now
            print(f"{done:.1f} of {total:g} {what}", file=sys.stderr)


def _console() -> Console:
    """A file has room for whole lines; rich gives it 80 columns."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=120 if wide else None)


def print_result(folder: Path, result: Mapping[str, Any], *, quiet: bool, note_old: bool = False) -> None:
    """Table, verdict and where the report lies."""
    console = _console()
    if quiet:
        console.print(result["verdict"], soft_wrap=True, highlight=False, markup=False)
        return
    for cell in result["cells"]:
        rows = [row for row in result["rows"] if row["cell"] == cell["name"]]
        console.print(Text(_title(cell), style="bold"))
        console.print(_table(rows))
        for row in rows:
            if row["reason"]:
                console.print(Text(f"  {row['attack']}: {row['reason']}", style="dim"))
        console.print()
    console.print(Text(_legend(result["thresholds"]), style="dim"))
    console.print()
    leaks = result["verdict_level"] in ("exact", "recognizable")
    console.print(Text(result["verdict"], style="bold red" if leaks else "bold"))
    console.print()
    if note_old:
        console.print("This run was finished earlier and is shown as it was; delete its folder to run it again.")
    console.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"pictures: {folder / 'grid.png'}", highlight=False, soft_wrap=True, markup=False)


def _legend(limits: Mapping[str, Any]) -> str:
    return (
        f"found: recovered of all examples; recovered is SSIM of at least {limits['recovered_ssim']:g} and "
        f"{limits['recovered_gain_db']:g} dB over the example's own mean color. exact: over {limits['exact_db']:g} dB. "
        "gain: dB over the mean color. [low, high]: 95 % interval of the mean PSNR."
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One cell's rows, for 80 columns: no box, and a column for what was told only where something was."""
    told = any(row["told_extra"] for row in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("attack", no_wrap=True)
    if told:
        table.add_column("told", no_wrap=True)
    for name in ("PSNR dB", "SSIM", "gain", "found", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for row in rows:
        entries = _entries(row)
        table.add_row(
            entries[0], *([", ".join(row["told_extra"]) or "-"] if told else []), *entries[1:], style=_style(row)
        )
    return table


def _title(cell: Mapping[str, Any]) -> str:
    base = cell["baselines"]
    if not base:
        return str(cell["title"])
    found = {name: _number(base.get(name, {}).get("psnr"), 1) for name in ("mean_color", "grey", "random")}
    color, grey, noise = found.values()
    return f"{cell['title']}  (baselines: mean color {color}, grey {grey}, random {noise} dB)"


def _entries(row: Mapping[str, Any]) -> list[str]:
    psnr = _number(row["psnr"], 1)
    if row["psnr_low"] is not None:
        psnr += f" [{row['psnr_low']:.0f}, {row['psnr_high']:.0f}]"
    share = "-" if row["recovered"] is None else f"{round(row['recovered'] * row['examples'])}/{row['examples']}"
    gain = "-" if row["gain_db"] is None else f"{row['gain_db']:+.1f}"
    return [row["attack"], psnr, _number(row["ssim"], 2), gain, share, _number(row["seconds"], 1), row["outcome"]]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _style(row: Mapping[str, Any]) -> str:
    if row["recovered"]:
        return "red"
    return "dim" if row["outcome"] in ("does not apply", "nothing recovered") else ""


def print_kind(entries: Sequence[Mapping[str, str]]) -> None:
    """All that is known about the names of one kind, a paragraph each."""
    console = _console()
    for entry in entries:
        console.print(Text(entry["name"], style="bold"))
        for key, value in entry.items():
            if key != "name" and value:
                console.print(Text(f"  {key}: {value}"), soft_wrap=True)


def print_catalog(found: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """All names, a table per kind."""
    console = _console()
    for kind, entries in found.items():
        columns = [c for c in ("name", "needs", "paper", "cost", "about", "unit") if any(c in e for e in entries)]
        if kind == "attacks":
            columns.remove("about")
        table = Table(title=kind, title_justify="left", title_style="bold", pad_edge=False)
        for column in columns:
            table.add_column(column, no_wrap=column == "name")
        for entry in entries:
            table.add_row(*(Text(entry.get(column, "")) for column in columns))
        console.print(table)
    console.print("All options of a kind: seepage list KIND, e.g. seepage list attacks")
