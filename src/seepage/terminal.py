"""What a person sees in a terminal: progress on stderr, tables on stdout."""

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


def print_result(folder: Path, result: Mapping[str, Any], *, quiet: bool, note_old: bool = False) -> None:
    """Table, verdict and where the report lies."""
    console = Console()
    if quiet:
        console.print(result["verdict"], soft_wrap=True, highlight=False, markup=False)
        return
    for cell in result["cells"]:
        rows = [row for row in result["rows"] if row["cell"] == cell["name"]]
        console.print(_table(cell, rows))
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
        f"recovered: SSIM of at least {limits['recovered_ssim']:g} and {limits['recovered_gain_db']:g} dB over the "
        f"example's own mean color. exact: over {limits['exact_db']:g} dB. [low, high]: 95 % interval of the mean PSNR."
    )


def _table(cell: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=Text(_title(cell)), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("attack", no_wrap=True)
    table.add_column("told", no_wrap=True)
    for name in ("PSNR dB", "SSIM", "gain dB", "recovered", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for row in rows:
        table.add_row(*_entries(row), style=_style(row))
    return table


def _title(cell: Mapping[str, Any]) -> str:
    base = cell["baselines"]
    if not base:
        return str(cell["title"])
    color, grey, noise = (base[name]["psnr"] for name in ("mean_color", "grey", "random"))
    return f"{cell['title']}  (baselines: mean color {color:.1f}, grey {grey:.1f}, random {noise:.1f} dB)"


def _entries(row: Mapping[str, Any]) -> list[str]:
    psnr = _number(row["psnr"], 1)
    if row["psnr_low"] is not None:
        psnr += f" [{row['psnr_low']:.1f}, {row['psnr_high']:.1f}]"
    share = "-" if row["recovered"] is None else f"{round(row['recovered'] * row['examples'])}/{row['examples']}"
    gain = "-" if row["gain_db"] is None else f"{row['gain_db']:+.1f}"
    told = ", ".join(row["told_extra"]) or "-"
    return [row["attack"], told, psnr, _number(row["ssim"], 2), gain, share, _number(row["seconds"], 1), row["outcome"]]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _style(row: Mapping[str, Any]) -> str:
    if row["recovered"]:
        return "red"
    return "dim" if row["outcome"] in ("does not apply", "nothing recovered") else ""


def print_catalog(found: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """All names, a table per kind."""
    console = Console()
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
