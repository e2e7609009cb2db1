"""What a person sees in a terminal: progress on stderr, tables on stdout."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from seepage.audit.observe import inferred_lines
from seepage.audit.row import promise_lines, reasons
from seepage.core.progress import ProgressCallback, no_progress
from seepage.errors import printable
from seepage.signatures import Option

LINE_EVERY = 10.0
"""Seconds between progress lines where there is no terminal."""

BASELINES = {"mean_color": "mean color", "grey": "grey", "random": "noise"}

PHASES = ("recording", "training", "scoring", "writing")
"""First words of what goes on before and after the attacks; an attack is named by itself: `dlg on CELL`."""


MANY = 10
"""Attacks that are counted; of fewer the share is told, since "0 of 1" would say nothing while a long one runs."""


@contextmanager
def progress_bar(*, off: bool = False) -> Iterator[ProgressCallback]:
    """A bar on a terminal, a plain line now and then elsewhere, always on stderr."""
    if off:
        yield no_progress
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        label = _Label()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=1)

            def show(done: float, total: float, what: str) -> None:
                bar.update(task, completed=done, total=total, description=escape(label.of(total, what)))

            yield show
    else:
        yield _Lines().show


class _Label:
    """Words for what goes on. The meter of the attacks names none where nothing is new: then the last one stands."""

    def __init__(self) -> None:
        self.total, self.last = 0.0, ""

    def of(self, total: float, what: str) -> str:
        """The label, for a phase with `total` things to do."""
        what = printable(what)
        if what:
            self.last = what if what.startswith(PHASES) else f"attacking: {what}"
        elif self.last.startswith(PHASES) or total != self.total:
            self.last = "attacking"
        self.total = total
        return self.last


class _Lines:
    """Progress as plain lines: one where there is something new, and at most one in `LINE_EVERY` seconds."""

    def __init__(self) -> None:
        self.at, self.line, self.label = time.monotonic(), "", _Label()

    def show(self, done: float, total: float, what: str) -> None:
        phase, _, rest = self.label.of(total, what).partition(" ")
        count = f"{done:.0f} of {total:g}" if total > 1 else ""
        if phase.startswith("attacking") and total < MANY:
            count = f"{done / total:.0%}"
        line = ": ".join(filter(None, (phase.removesuffix(":"), ", ".join(filter(None, (count, rest))))))
        now = time.monotonic()
        if now - self.at >= LINE_EVERY and line != self.line:
            self.at, self.line = now, line
            print(line, file=sys.stderr, flush=True)


def open_console() -> Console:
    """A file has room for whole lines; rich gives it 80 columns."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=120 if wide else None)


def plain(value: Any) -> Any:
    """The texts in what somebody's JSON held, as a terminal may show them.

    >>> plain({"title": ["a" + chr(27) + "[2J"]})["title"][0] == "a" + chr(92) + "x1b[2J"
    True
    """
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def print_result(folder: Path, result: Mapping[str, Any], *, quiet: bool, note_old: bool = False) -> None:
    """Table, verdict and where the report lies."""
    console, result = open_console(), plain(result)
    if quiet:
        console.print(result["verdict"], soft_wrap=True, highlight=False, markup=False)
        return
    for cell in result["cells"]:
        rows = [row for row in result["rows"] if row["cell"] == cell["name"]]
        console.print(Text(str(cell["title"]), style="bold"))
        if cell["baselines"]:
            console.print(Text(_baselines(cell["baselines"]) + _accuracy(cell), style="dim"))
        console.print(_table(rows))
        for line in _beside(cell, rows):
            console.print(Text(line, style="dim"), soft_wrap=True)
        console.print()
    titles = {cell["name"]: cell["title"] for cell in result["cells"]}
    entries = [
        (row["attack"], row["outcome"] if row["psnr"] is None else "no result", row["reason"], titles[row["cell"]])
        for row in result["rows"]
        if row["reason"]
    ]
    for attack, words in reasons(entries, len(titles)):
        console.print(Text(f"{attack}, {words}", style="dim"))
    if entries:
        console.print()
    if any(row["psnr"] is not None or row["outcome"] == "features only" for row in result["rows"]):
        console.print(Text(_legend(result), style="dim"))
        console.print()
    leaks = result["verdict_level"] in ("exact", "recognizable", "certified")
    console.print(Text(result["verdict"], style="bold red" if leaks else "bold"))
    for line in promise_lines(result["cells"]):
        console.print(Text(line, style="bold"), soft_wrap=True)
    console.print()
    if note_old:
        console.print("This run was finished earlier and is shown as it was; delete its folder to run it again.")
    console.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True, markup=False)
    if any(row["ssim"] is not None for row in result["rows"]) and (folder / "grid.png").exists():
        console.print(f"pictures: {folder / 'grid.png'}", highlight=False, soft_wrap=True, markup=False)


def _beside(cell: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What stands under a cell's table: what was inferred, and what the update gives away without an attack."""
    inferred = cell.get("inferred")
    lines = inferred_lines(inferred) if isinstance(inferred, Mapping) else []
    if cell.get("exposure") and not any(row["psnr"] is not None for row in rows):
        lines.append(f"without any attack: {cell['exposure']}")
    return lines


def _legend(result: Mapping[str, Any]) -> str:
    limits = result["thresholds"]
    pictures = any(row["ssim"] is not None for row in result["rows"])
    similar = f"SSIM of at least {limits['recovered_ssim']:g} and " if pictures else ""
    own = "the example's own mean color" if pictures else "the example's own mean"
    words = (
        f"found: recovered of all examples; recovered is {similar}{limits['recovered_gain_db']:g} dB over {own}. "
        f"exact: over {limits['exact_db']:g} dB. "
        "median, mean: PSNR in dB over all examples; equal pictures count 150, which draws a mean up. "
        "[low, high]: 95 % interval of the mean."
    )
    features = any(row["outcome"] == "features only" for row in result["rows"])
    return words + " features only: inner features came back, which no score compares with pictures." * features


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One cell's rows, for 80 columns: no box, and a column for what was told only where something was."""
    told = any(row["told_extra"] for row in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("attack", no_wrap=True)
    if told:
        table.add_column("told", no_wrap=True)
    for name in ("found", "median", "mean, dB", "SSIM", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for row in rows:
        entries = _entries(row)
        table.add_row(
            entries[0], *([", ".join(row["told_extra"]) or "-"] if told else []), *entries[1:], style=_style(row)
        )
    return table


def _baselines(base: Mapping[str, Any]) -> str:
    pictures = base.get("mean_color", {}).get("ssim") is not None
    words = BASELINES if pictures else {"mean_color": "the example's mean", "grey": "mid-range", "random": "noise"}
    found = (f"{what} {_number(base.get(name, {}).get('psnr'), 1)}" for name, what in words.items())
    return f"without the update: {', '.join(found)} dB"


def _accuracy(cell: Mapping[str, Any]) -> str:
    """How well a federation's model does at the audited round."""
    if not cell.get("federation") or cell.get("accuracy") is None:
        return ""
    return f"; the model names {cell['accuracy']:.0%} of {cell['accuracy_examples']} unseen examples right"


def _entries(row: Mapping[str, Any]) -> list[str]:
    mean = _number(row["psnr"], 0)
    if row["psnr_low"] is not None:
        mean += f" [{row['psnr_low']:.0f}, {row['psnr_high']:.0f}]"
    share = "-" if row["recovered"] is None else f"{round(row['recovered'] * row['examples'])}/{row['examples']}"
    median = _number(row.get("psnr_median"), 1)  # runs of earlier versions have none
    return [row["attack"], share, median, mean, _number(row["ssim"], 2), _number(row["seconds"], 1), _outcome(row)]


def _outcome(row: Mapping[str, Any]) -> str:
    fit = str(row.get("alignment") or "").partition("+")[2]
    if row["psnr"] is None and row.get("vouched"):
        return f"not scored, {row['vouched']} certified"
    return f"{row['outcome']} ({fit} fitted)" if fit else str(row["outcome"])


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _style(row: Mapping[str, Any]) -> str:
    if row["recovered"]:
        return "red"
    return "dim" if row["psnr"] is None or row["outcome"] == "nothing recovered" else ""


def print_kind(entries: Sequence[Mapping[str, str]], options: Mapping[str, Sequence[Option]]) -> None:
    """All that is known about the names of one kind, a paragraph each, with a line for every option."""
    console = open_console()
    for entry in entries:
        console.print(Text(entry["name"], style="bold"))
        for key, value in entry.items():
            if key not in ("name", "options") and value:
                console.print(Text(f"  {key}: {value}"), soft_wrap=True)
        for option in options.get(entry["name"], ()):
            head = f"  {option.name} = {option.default}" if option.default else f"  {option.name}, to be given"
            console.print(Text(f"{head}: {option.about}" if option.about else head), soft_wrap=True)


def print_catalog(found: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """All names, a table per kind."""
    console = open_console()
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
