"""The results book: one page per paper with every table and figure, its claims, the paper's numbers and ours."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, get_args

from seepage.base.storage import write_whole
from seepage.papers.claims import At, Claim
from seepage.papers.draw import draw
from seepage.papers.items import PAPERS, Item, list_items
from seepage.papers.lines import Line
from seepage.papers.markdown import as_code, as_words
from seepage.papers.others import OTHERS
from seepage.papers.records import Record, picture_of, read_records
from seepage.papers.used import USED
from seepage.papers.verdicts import (
    DIVERGED,
    EXACT_DB,
    TOPS,
    Decided,
    Judged,
    Verdict,
    in_words,
    judge,
)

PROSE = Path(__file__).parent / "prose"
"""The book's own words in Markdown: its opening, how to read it, and what to know of each paper's numbers."""

DECIMALS = 2
"""Decimals of numbers from 0.1 on in the tables; smaller ones have three significant digits."""


def write_book(results: Path, folder: Path) -> list[Path]:
    """Write the book's pages and figures; returns the pages.

    Args:
        results: Folder with the records.
        folder: Folder for the pages.

    Raises:
        SeepageError: Where a file of records is damaged.
    """
    pages, summary, counts, at_size, claims = [], [], [], list[Judged](), 0
    for paper, source in PAPERS.items():
        items = [item for item in list_items().values() if item.expect.paper == paper]
        found = {item.id: read_records(results, item.id) for item in items}
        parts = [f"# {source}\n", "How to read this: [the results book](index.md#how-to-read-it).\n"]
        foreword = PROSE / f"foreword-{paper}.md"
        parts += [foreword.read_text("utf-8")] if foreword.exists() else []
        parts += [_section(item, found[item.id], results, folder) for item in items]
        page = folder / f"{paper}.md"
        write_whole(page, "\n".join(parts).rstrip() + "\n")
        pages.append(page)
        summary.append(_summary(paper, source, items, found))
        counts += _counts(paper, source, items, found)
        judged = [sizes for item in items for _, sizes in judged_of(item, found[item.id])]
        at_size += [sizes["paper"] for sizes in judged if "paper" in sizes]
        claims += len(judged)
    index = folder / "index.md"
    table = "\n".join([*COUNTED, *counts, ""])
    opening = f"{_prose('opening')}\n{_at_size(at_size, claims)}\n"
    legend = _prose("legend").format(exact_db=EXACT_DB, diverged=DIVERGED)
    write_whole(index, "\n".join(["# Results book\n", opening, table, *summary, legend]).rstrip() + "\n")
    return [index, *pages]


def _prose(name: str) -> str:
    return (PROSE / f"{name}.md").read_text("utf-8")


def _at_size(judged: Sequence[Judged], claims: int) -> str:
    """How many claims were decided at the papers' own sizes, in a sentence."""
    words: dict[Verdict, str] = {"holds": "hold", "does not hold": "do not", "cannot tell": "cannot be told"}
    found = {what: [one for one in judged if one.verdict == verdict] for verdict, what in words.items()}
    said = []
    for what, some in found.items():
        number, *more = _count(some).split(" ", 1)
        said += [" ".join([number, what, *more])] if some else []
    untested = claims - sum(map(len, found.values()))
    return f"At the papers' own sizes, of {claims} claims {', '.join(said)}; {untested} were not tested."


COUNTED = (
    "| paper | size | claims | hold (seen in small) | do not hold (not seen) | cannot tell | not tested |",
    "|" + "---|" * 7,
)
"""Heads of the counts of claims by verdict."""


def _counts(paper: str, source: str, items: Sequence[Item], found: Mapping[str, Sequence[Record]]) -> list[str]:
    """Number of a paper's claims by outcome, a line for each size."""
    claims = [judged for item in items for _, judged in judged_of(item, found[item.id])]
    lines = []
    for size, words in (("paper", "the paper's"), ("small", "small")):
        at = [judged[size] for judged in claims if size in judged]
        each = [_count([one for one in at if one.verdict == verdict]) for verdict in get_args(Verdict)]
        untested = len(claims) - sum(one.verdict is not None for one in at)
        lines.append(_row([f"[{source}]({paper}.md)", words, str(len(claims)), *each, str(untested)]))
    return lines


def _count(found: Sequence[Judged]) -> str:
    """How many; how many of them by another algorithm than the paper's, and by searches that read nothing."""
    own, unread = sum(one.claim.own for one in found), sum(one.nothing_read for one in found)
    more = [f"{own} by seepage's own algorithm"] * bool(own) + [f"in {unread} nothing is read"] * bool(unread)
    return f"{len(found)} ({'; '.join(more)})" if more else str(len(found))


def _summary(paper: str, source: str, items: Sequence[Item], found: Mapping[str, Sequence[Record]]) -> str:
    """One line per claim with its verdicts, then the items that make none."""
    lines = [
        f"## [{source}]({paper}.md)\n",
        _prose(f"sizes-{paper}"),
        "| item | claim | at the paper's size | in small |",
        "|---|---|---|---|",
    ]
    for item in items:
        place = f"[{item.expect.item}]({paper}.md#{_anchor(item)})"
        for claim, judged in judged_of(item, found[item.id]):
            said = [in_words(judged[size]) if size in judged else "not run" for size in ("paper", "small")]
            lines.append(_row([place, claim.text, *said]))
    rest = [
        f"- [{item.expect.item}]({paper}.md#{_anchor(item)}), {item.expect.title}: no measurable claim; "
        f"{item.expect.no_claim or 'none is written down'}."
        for item in items
        if not item.claims
    ]
    rest += [f"- {o.item}, {o.about}: {o.kind}; {o.reason}." for o in OTHERS if o.paper == paper]
    return "\n".join([*lines, "", "Without a claim that was tested:\n", *rest, ""])


def judged_of(item: Item, records: Sequence[Record]) -> list[tuple[Claim, dict[str, Judged]]]:
    """An item's claims, each with its verdict at every size that was run."""
    columns = len(item.expect.columns)
    return [
        (claim, {judged.size: judged for judged in judge(claim, item.lines, columns, records)}) for claim in item.claims
    ]


EXAMPLES = 2
"""Comparisons that a claim's line shows where it fails or is open."""


def examples_of(item: Item, judged: Judged) -> str:
    """The comparisons that decide against a claim, or leave it open, in numbers; empty where it holds."""
    shown = {"does not hold": False, "cannot tell": None}
    if judged.verdict not in shown or judged.nothing_read:
        return ""
    parts = [part for part in judged.parts if part.measured and part.found is shown[judged.verdict]]
    more = f"; and {len(parts) - EXAMPLES} more" if len(parts) > EXAMPLES else ""
    return "; ".join(_compared(item, part, judged.size) for part in parts[:EXAMPLES]) + more


def _compared(item: Item, part: Decided, size: str) -> str:
    """One comparison in words: `CPA, n = 4: 0.20, against 0.31 of GMA`."""
    heads = item.columns("small" if size == "small" else "paper")
    left, right = part.comparison.left, part.comparison.right
    top = TOPS.get(left.line.metric, inf)
    mine, given = (
        number_of(n) + (f" (counted as {top:g})" if n is not None and n > top else "") for n in (part.left, part.right)
    )
    if isinstance(right, At) and right.line is left.line:
        against = f"{given} at {heads[right.column]}"
    elif isinstance(right, At):
        against = f"{given} of {right.line.name}"
    else:
        against = f"{given}, the mean color's" if isinstance(right, str) else given
    lead = f", where a lead of {part.by:g} is claimed" if part.by > 0 and not part.comparison.within else ""
    data = f" ({left.line.data})" if left.line.data and left.line.data not in left.line.name.lower() else ""
    why = " (no interval)" if part.low is None else ""
    return f"{left.line.name}{data}, {heads[left.column]}: {mine} against {against}{lead}{why}"


def _claims(item: Item, records: Sequence[Record]) -> str:
    """An item's claims with their verdicts, and what differs where one does not hold."""
    if not item.claims:
        return f"No measurable claim: {item.expect.no_claim or 'none is written down'}.\n"
    lines = []
    for claim, judged in judged_of(item, records):
        lines.append(f"- {claim.text} ({claim.where})")
        for size, head in (("paper", "At the paper's size"), ("small", "In a smaller experiment")):
            if size in judged:
                one = judged[size]
                used = f", on {', '.join(map(as_words, one.data))}" if one.data else ""
                shown = examples_of(item, one)
                # What an open claim would cost: the whole item, a part of which was run.
                left = size == "paper" and one.verdict in (None, "cannot tell")
                whole = f" The whole item: {item.needs['paper']}." if left else ""
                lines.append(f"    - {head}{used}: **{in_words(one)}**{f': {shown}' if shown else ''}.{whole}")
            elif size == "paper":
                lines.append(f"    - {head}: not run; {item.needs['paper']}.")
        if any(one.verdict == "does not hold" or one.nothing_read for one in judged.values()):
            lines.append(f"    - {' '.join(claim.differs.split())}")
    return "\n".join([*lines, ""])


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
    parts.append(_claims(item, records))
    if expect.note:
        parts.append(f"{expect.note}\n")
    for size, group in groupby(sorted(records, key=lambda r: r.size or "", reverse=True), key=lambda r: r.size or ""):
        own = list(group)
        parts.append(_table(item, size, own))
        parts += _figures(item, size, own, results, folder)
        parts.append(_made(item, size, own))
        parts.append(_used(own))
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
        named = [r for r in records if re.fullmatch(r"[\w.-]+", r.data)]  # one step down and nowhere else
        kept = dict.fromkeys(picture_of(results, item.id, r.size, r.data) for r in named)
        words = "private pictures that a dependency ships, and what was reconstructed of them"
        found += [(path.name, words, path.read_bytes()) for path in kept if path.exists()]
    for name, _, content in found:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        write_whole(folder / "figures" / name, content)
    return [f"![{item.expect.item}: {words}](figures/{name})\n" for name, words, _ in found]


def _table(item: Item, size: str, records: Sequence[Record]) -> str:
    """A Markdown table of an item: for each row the paper's numbers, ours, and those beside ours."""
    heads = item.columns("small" if size == "small" else "paper")
    lines = [_row(["row", "", *heads]), "|" + "---|" * (len(heads) + 2)]
    if tuple(heads) != tuple(item.expect.columns):
        lines.append(_row(["", "the paper's column", *item.expect.columns]))
    for line, own in by_line(item, records):
        at = {record.column: record for record in own}
        columns = range(len(heads))
        name = f"{line.name} ({line.data})" if line.data and line.data not in line.name.lower() else line.name
        if any(line.paper_at(column) is not None for column in columns):
            lines.append(_row([name, "paper", *map(line.printed_at, columns)]))
            name = ""
        ours = [ours_of(at.get(column)) for column in columns]
        lines.append(_row([name, f"ours, {size}, {as_words(own[0].data)}", *ours]))
        lines += [_row(["", words, *entries]) for words, entries in _beside(line, at, columns)]
    lines += [
        _row([line.name, "paper; not run", *map(line.printed_at, range(len(heads)))])
        for line in item.lines
        if line.paper and not any((r.row, r.paper_data) == (line.name, line.data) for r in records)
    ]
    return "\n".join([*lines, ""])


def _beside(line: Line, at: Mapping[int, Record], columns: Iterable[int]) -> list[tuple[str, list[str]]]:
    """The lines below a row: the audit's own scores, and baseline guesses without an attack."""
    # Rows of before today's rule have no likeness.
    rule = "recovered" if any("likeness" in record.facts for record in at.values()) else "recovered, by SSIM"
    wanted = {"recovered": rule, "mean_color_psnr": "mean color, dB"}
    if line.metric == "psnr_nearest":
        wanted = {"psnr": "one guess per image, dB", **wanted}
    elif line.metric == "psnr_quadrants":
        wanted = {"psnr": "whole images, dB", **wanted}
    elif line.metric in ("lpips", "ssim", "cosine", "correlation"):
        wanted = {"psnr": "PSNR, dB", "ssim": "SSIM", **wanted}
    lone = [record for record in at.values() if len(record.seeds) > 1 and "by_seed" not in record.facts]
    # The number above is a mean over seeds, and in older records what stands below it is not.
    whose = f", seed {as_words(next(iter(lone[0].seeds)))}" if lone else ""
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
        return f"none: {as_words(str(reason))}" if reason else "none"
    interval = "" if record.interval is None else " [{}, {}]".format(*map(number_of, record.interval))
    return number_of(record.value) + interval


def number_of(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:.{DECIMALS}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def _made(item: Item, size: str, records: Sequence[Record]) -> str:
    """The commands that produced a table, and the machine; which numbers, where a command has fewer than another."""
    found = {
        (r.command, str(r.made.get("torch")), str(r.made.get("device")), str(r.made.get("started", ""))[:10]): None
        for r in records
    }
    commands: dict[str, str] = {}
    for command, torch, device, day in found:
        commands[command] = as_words(f"torch {torch}, {device}, {day}")
    heads = item.columns("small" if size == "small" else "paper")
    lines = []
    for command, where in commands.items():
        own = [r for r in records if r.command == command]
        beside = Counter(r.command for r in records if r.data == own[0].data)
        rows = {
            row: ", ".join(heads[r.column] for r in own if r.row == row) for row in dict.fromkeys(r.row for r in own)
        }
        named = "; ".join(f"{row}: {columns}" for row, columns in rows.items())
        of = f", {named}" if beside[command] < max(beside.values()) else ""
        lines.append(f"{as_code(command)} ({where}){of}\n")
    return "\n".join(lines)


def _used(records: Sequence[Record]) -> str:
    """What the data sets of a table are: often a part of the paper's, or others in their place."""
    known = [f"`{data}`: {USED[data]}" for data in dict.fromkeys(record.data for record in records) if data in USED]
    return f"Data: {'; '.join(known)}.\n" if known else ""


def _row(entries: Iterable[str]) -> str:
    return "| " + " | ".join(map(_cell, entries)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
