"""The results book: one page per paper with every table and figure, the paper's numbers and ours."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from seepage.core.storage import write_whole
from seepage.papers.draw import draw
from seepage.papers.items import PAPERS, Item, Line, list_items
from seepage.papers.records import Record, picture_of, read_records
from seepage.papers.verdicts import DECIBELS, TREND, Compared, by_constants, by_ssim, verdict

LEGEND = f"""Every number of ours was made by the command beside it; nothing is typed in by hand. The lines lie in
`results/reproduce/`, one file per table or figure.

A verdict compares a row with the paper's. **Reproduced**: every number lies within {DECIBELS:g} dB of the paper's
(10 % where it is no PSNR); it does not say that anything came back, as the paper's own number may be that low.
**Better than the paper**: no number is worse than that and one at least is better, at the paper's size, and in every
column something came back: an example was recovered, or the PSNR is above that of a flat square of the mean color. In
the small size, which is easier, that is called **beyond the paper's, but smaller**, and shows no more than that the
method works there. **Reproduced in trend**: the numbers of three columns or more are in like order (rank correlation
{TREND} or more), or of two columns ours change by at least half as much as the paper's, and in one column at least
something came back. **Nothing came back**: the numbers would do for one of the last three, but in no column anything
came back; what finds nothing can still have more dB than the paper's. **Not reproduced**: none of these, which may also
be no number worse than the paper's and nothing back in some columns; the note says what was tried. **Alike by SSIM**:
the paper prints LPIPS, whose weights were not at hand; our SSIM is in like order over three columns or more, and in one
something came back. **Not alike by SSIM**: it is not in like order, or the same everywhere.
**Constants, not run**: the code has the paper's constants; they were read and nothing was run, so this is no result
(**other constants, not run**: it has not). **No number**: the paper prints none, or too few to tell by SSIM, or ours
could not be measured. **Not run**: nothing was measured.
"(5 of 6 columns)": one of the paper's numbers could not be measured here, and the verdict is about the others.

`small` is a size for two cores and minutes: fewer steps, smaller networks, fewer images. It is another experiment than
the paper's, and what it does not recover may be recovered with more. Numbers in brackets are the interval over the
examples (95 %, bootstrap), or from the least to the most of several seeds. Where a paper takes the best guess for each
image, the same attack scored with one guess for one image stands below, with the share of examples recovered and the
PSNR of a flat square of the example's own mean color.
"""

DECIMALS = 2

IMAGES = ("psnr", "psnr_nearest", "ssim", "lpips")
"""Metrics of reconstructed images, which show whether anything was recovered."""


def write_book(results: Path, folder: Path) -> list[Path]:
    """Write the book's pages and figures; returns the pages.

    Args:
        results: Folder with the records.
        folder: Folder for the pages.

    Raises:
        SeepageError: Where a file of records is damaged.
    """
    pages, summary = [], []
    for paper, source in PAPERS.items():
        items = [item for item in list_items().values() if item.expect.paper == paper]
        found = {item.id: read_records(results, item.id) for item in items}
        parts = [f"# {source}\n", "How to read this: [the results book](index.md).\n"]
        parts += [_section(item, found[item.id], results, folder) for item in items]
        page = folder / f"{paper}.md"
        write_whole(page, "\n".join(parts).rstrip() + "\n")
        pages.append(page)
        summary.append(_summary(paper, source, items, found))
    index = folder / "index.md"
    write_whole(index, "\n".join(["# Results book\n", LEGEND, *summary]).rstrip() + "\n")
    return [index, *pages]


def _summary(paper: str, source: str, items: Sequence[Item], found: Mapping[str, Sequence[Record]]) -> str:
    """One line per item with the verdicts on its rows."""
    lines = [f"## [{source}]({paper}.md)\n", "| item | about | small | paper's size |", "|---|---|---|---|"]
    for item in items:
        words = [_counted(item, [r for r in found[item.id] if r.size == size]) for size in ("small", "paper")]
        place = f"[{item.expect.item}]({paper}.md#{_anchor(item)})"
        lines.append(f"| {place} | {_cell(item.expect.title)} | {words[0]} | {words[1]} |")
    return "\n".join([*lines, ""])


def _counted(item: Item, records: Sequence[Record]) -> str:
    if not records:
        return "-"
    words = [verdict_of(item, line, rows) for line, rows in by_line(item, records)]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def verdict_of(item: Item, line: Line, records: Sequence[Record]) -> str:
    """The verdict on one row, from its records on one data set at one size."""
    at = {record.column: record for record in records}
    columns = range(len(item.expect.columns))
    paper = [line.paper_at(column) for column in columns]
    if item.expect.kind == "constants":
        return by_constants(paper, [at[c].value if c in at else None for c in columns])
    if at and all(record.value is None for record in records):
        similar = [_compared(at[c], at[c].facts.get("ssim")) if c in at else Compared(None) for c in columns]
        return by_ssim(paper, similar) if line.metric == "lpips" else "no number"
    ours = [_compared(at[c], at[c].value) if c in at else Compared(None) for c in columns]
    small = any(record.size == "small" for record in records)
    word = verdict(paper, ours, line.metric, line.better, small=small)
    printed = [c for c in columns if c in at and paper[c] is not None]
    measured = [c for c in printed if at[c].value is not None]
    return f"{word} ({len(measured)} of {len(printed)} columns)" if 0 < len(measured) < len(printed) else word


def _compared(record: Record, ours: float | None) -> Compared:
    return Compared(ours, back=_came_back(record))


def _came_back(record: Record) -> bool:
    """Whether an example was recovered, or the PSNR is above a flat square's; True where neither was measured."""
    flat, recovered = record.facts.get("mean_color_psnr"), record.facts.get("recovered")
    found = record.value if record.metric.startswith("psnr") else record.facts.get("psnr")
    closer = None if flat is None or found is None else found > flat
    known = [bool(value) for value in (closer, recovered) if value is not None]
    return record.metric not in IMAGES or not known or any(known)


def by_line(item: Item, records: Sequence[Record]) -> list[tuple[Line, list[Record]]]:
    """Records of each row, data set by data set."""
    found = []
    for line in item.lines:
        own = [r for r in records if r.row == line.name and r.paper_data == line.data]
        for data in dict.fromkeys(r.data for r in own):
            found.append((line, [r for r in own if r.data == data]))
    return found


def _anchor(item: Item) -> str:
    """As Python-Markdown and GitHub make it of the heading."""
    words = f"{item.expect.item}: {item.expect.title}".lower()
    kept = "".join(c for c in words if c.isalnum() or c in " -_")
    return "-".join(kept.split())


def _section(item: Item, records: Sequence[Record], results: Path, folder: Path) -> str:
    expect = item.expect
    parts = [f"## {expect.item}: {expect.title}\n", f"The paper: {expect.setting}.\n"]
    if expect.note:
        parts.append(f"{expect.note}\n")
    for size, group in groupby(sorted(records, key=lambda r: r.size or "", reverse=True), key=lambda r: r.size or ""):
        own = list(group)
        parts.append(_table(item, size, own))
        parts += _figures(item, size, own, results, folder)
        parts.append(_made(own))
    if not records:
        rest = "" if item.needs["paper"].total == 0 else f"; the paper's size: {item.needs['paper']}"
        parts.append(f"Not run yet. `seepage reproduce {item.id} --size small` takes {item.needs['small']}{rest}.\n")
    return "\n".join(parts)


def _figures(item: Item, size: str, records: Sequence[Record], results: Path, folder: Path) -> list[str]:
    """Write a figure's pictures into a folder; returns the lines that show them."""
    found: list[tuple[str, str, bytes]] = []
    if item.expect.kind in ("lines", "bars"):
        drawn = draw(item, [(line, rows) for line, rows in by_line(item, records)], size)
        if drawn is not None:
            found.append((f"{item.id.replace('/', '-')}-{size}.png", "the paper's numbers and ours", drawn))
    if item.expect.kind == "pictures":
        kept = dict.fromkeys(picture_of(results, item.id, r.size, r.data) for r in records)
        words = "private pictures that a dependency ships, and what came back of them"
        found += [(path.name, words, path.read_bytes()) for path in kept if path.exists()]
    for name, _, content in found:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        write_whole(folder / "figures" / name, content)
    return [f"![{item.expect.item}: {words}](figures/{name})\n" for name, words, _ in found]


def _table(item: Item, size: str, records: Sequence[Record]) -> str:
    heads = item.columns("small" if size == "small" else "paper")
    lines = [_row(["row, verdict", "", *heads]), "|" + "---|" * (len(heads) + 2)]
    if tuple(heads) != tuple(item.expect.columns):
        lines.append(_row(["", "the paper's column", *item.expect.columns]))
    for line, own in by_line(item, records):
        at = {record.column: record for record in own}
        columns = range(len(heads))
        name = f"{line.name} ({line.data})" if line.data and line.data not in line.name.lower() else line.name
        # In front, since a wide table is scrolled from there.
        word = f"**{verdict_of(item, line, own)}**"
        if any(line.paper_at(column) is not None for column in columns):
            lines.append(_row([name, "paper", *(number_of(line.paper_at(column)) for column in columns)]))
        else:
            word = f"{name}: {word}"
        ours = [ours_of(at.get(column)) for column in columns]
        lines.append(_row([word, f"ours, {size}, {own[0].data}", *ours]))
        lines += [_row(["", words, *entries]) for words, entries in _beside(line, at, columns)]
    return "\n".join([*lines, ""])


def _beside(line: Line, at: Mapping[int, Record], columns: Iterable[int]) -> list[tuple[str, list[str]]]:
    """The lines below a row: the audit's own scores, and baseline guesses without an attack."""
    wanted = {"recovered": "recovered", "mean_color_psnr": "mean color, dB"}
    if line.metric == "psnr_nearest":
        wanted = {"psnr": "one guess per image, dB", **wanted}
    elif line.metric in ("lpips", "ssim", "cosine", "correlation"):
        wanted = {"psnr": "PSNR, dB", "ssim": "SSIM", **wanted}
    seeds = next((list(record.seeds) for record in at.values() if len(record.seeds) > 1), [])
    whose = f", seed {seeds[0]}" if seeds else ""  # the number above is a mean over seeds, and this is not
    found = []
    for key, words in wanted.items():
        values = [at[column].facts.get(key) if column in at else None for column in columns]
        if key != line.metric and any(value is not None for value in values):
            show = _share if key == "recovered" else lambda _, value: number_of(value)
            entries = [show(at.get(column), value) for column, value in zip(columns, values, strict=True)]
            found.append((f"{words}{whose}", entries))
    return found


def _share(record: Record | None, value: Any) -> str:
    examples = None if record is None else record.facts.get("examples")
    return "-" if value is None or examples is None else f"{round(value * examples)}/{examples}"


def ours_of(record: Record | None) -> str:
    if record is None:
        return "-"
    if record.value is None and record.metric == "lpips" and "ssim" in record.facts:
        return "no LPIPS"
    if record.value is None:
        reason = record.facts.get("reason")
        return f"none: {_cell(str(reason))}" if reason else "none"
    interval = "" if record.interval is None else " [{}, {}]".format(*map(number_of, record.interval))
    return number_of(record.value) + interval


def number_of(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:.{DECIMALS}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def _made(records: Sequence[Record]) -> str:
    """The commands that produced a table, and the machine."""
    found = {
        (r.command, r.made.get("torch"), r.made.get("device"), str(r.made.get("started", ""))[:10]): None
        for r in records
    }
    commands: dict[str, str] = {}
    for command, torch, device, day in found:
        commands[command] = f"torch {torch}, {device}, {day}"
    return "\n".join(f"`{command}` ({where})\n" for command, where in commands.items())


def _row(entries: Iterable[str]) -> str:
    return "| " + " | ".join(map(_cell, entries)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
