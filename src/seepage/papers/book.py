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

OPENING = """For each table and figure of three papers: the claims that it supports there, tested on numbers of
ours. Every number of ours in the tables was made by the command below its table (before its recipe was changed where
a note says so) and lies in `results/reproduce/`. **The small size is a different experiment** of minutes on two cores:
it neither confirms nor refutes a paper. [How to read it](#how-to-read-it) is at the end.
"""
"""What the first page begins with, before the counts."""

LEGEND = f"""## How to read it

For each table and figure we test the statements that it supports in the paper, the **claims**, in our words, as a
relation between its numbers: rows above rows, columns above columns, a peak, a fall, no effect, a level. Every claim
is tested on the paper's own printed numbers first, which must satisfy it. A margin is the paper's own where it
states one or its least lead is the point; else it is about half of the least effect that the paper prints.

At the paper's size a claim **holds** where each of its comparisons does by the 95 % interval of the difference,
**does not hold** where the interval of one of them lies on the other side, and otherwise we **cannot tell**. "By
seepage's own algorithm" means that our numbers were made by another algorithm than the paper's: the word is about
ours, and what the paper says of its own is neither confirmed nor refuted by it. `small` is a size for two cores and
minutes: fewer steps, smaller networks, fewer images, often packaged pictures in place of the paper's. It is another
experiment than the paper's, and its words are about itself: **seen in small**, **not seen in small**, **cannot tell
in small**. What is seen there may be gone at the paper's size, and what is not seen may be there. "2 yes, 9 no, 1
open; 3 not measured" counts comparisons: twelve were measured, in nine the claim fails, and the verdict is about
those twelve alone. One comparison that fails decides against a claim, and the intervals are not adjusted for their
number. Where a claim was open, seeds were often added to the numbers that left it open, which leans towards a
decision; a comparison takes the seeds that both of its numbers have. **Not tested**: none was measured. Each paper's
page says below a claim why it may come out otherwise here.

Intervals: of two seeds or more, Student's interval of the mean difference, seed by seed; of one seed, from the ends
of both numbers' intervals over examples or batches (95 %, bootstrap). Older rows of the best guess have no interval
of their own; that of the same attack with one guess for one image is taken. A number without any interval leaves its
claim open. PSNR counts up to {EXACT_DB:g} dB: beyond, every value of an image of 8 bits is right and rounding alone
orders the numbers; a training loss up to {DIVERGED:g}: beyond, training has failed. Where LPIPS was not measured,
since its weights were not at hand, SSIM takes its place, and only the order is judged, not by how much.

Where there is no effect, an order does not hold: without a claimed margin its interval holds zero and excludes half
of the difference that the paper prints, or **nothing is read**: all that the claim orders by PSNR lies below a flat
square of each image's mean color, over all of it and the seeds by the interval. An order among failed searches is no
order, and that they are alike says nothing either: where they are as claimed all the same, we cannot tell. PSNR over
several images says little of any one of them: single images may be recovered where nothing is read on average, which
the lines *recovered* count.

Rows are numbers and have no verdict. Those in brackets are the interval over the examples, or the least and the most
of several seeds (of one seed of FedLeak's Figures 1 and 6: of several images); in its Figure 9 the mean and one
deviation. Where a paper takes the best guess for each image, the same attack scored with one guess for one image
stands below, with the share of examples recovered and the PSNR of a flat square of the example's own mean color:
what finds nothing can still have more dB than the paper's. *Recovered* is counted by
[likeness](../concepts/verdict.md#recognized); *recovered, by SSIM* stands where a row was made before that rule, and
asks for an SSIM of at least 0.6 and 3 dB over that square, by which fewer count.
"""
"""How verdicts are reached, at the end of the first page."""

SIZES = {
    "cafe": """The small size: 10 to 160 samples of 8 to 32 pixels, where the paper has 800 in batches of 40, and
300 to 3,500 iterations of its loops in place of 8,000 to 20,000. Tables 3, 6 and 7 and Figures 1, 6 and 8 are
of seepage's closed form, which asks for the same knowledge and is no test of the paper's loops. At the paper's size
there is MNIST, and faces for Figure 8, one seed each. With 100 images and the paper's network and iterations the
[loops read MNIST at 31.9 dB](../attacks/cafe.md#figures), on average over three seeds.""",
    "cpa": """The small size: batches of 2 to 48, where the paper has 8 to 1,024, fully connected networks
trained on few images, a VGG-like network of 32 pixels in place of VGG-16 at 224, and 200 to 2,000 steps in
place of 25,000. SSIM stands in for LPIPS. At the paper's size FC-2 was trained on the images at hand, 3,730 of
CIFAR-10 and 800 of Tiny-ImageNet, and attacked with one batch, Figure 8 with three.""",
    "fedleak": """The small size: Tables 3, 15, 16, 17 and 19 have the paper's regime at a smaller scale, a trained
ResNet-10 with ReLU of width 16, images of 32 pixels, batches of 1 to 16, and 500 (Table 3) or 1,000 steps of FedLeak
in place of 10,000. In it Inverting Gradients has 9.2 to 11.4 dB on CIFAR-10, where the paper has 9.4 to 10.3, and
FedLeak the same: on average neither gets above the mean color of the images. Most other items have a fresh ConvNet
with GELU and images of 16 pixels, which is easy: the rivals read it as well, which in the paper they do not. Tables
7, 8 and 11 and Figures 1, 4, 5, 9 and 10 have networks of their own, which their pages name. At the paper's size
there is Figure 10 alone, a parabola. More of the headline stands in [FedLeak on ReLU
networks](../attacks/fedleak_guided.md).""",
}
"""What the sizes of each paper are, for its part of the first page."""

FOREWORDS = {
    "fedleak": """**Two algorithms go by this name.** `fedleak` is the one of the text, `fedleak_released` that of its
authors' deposit (Zenodo 10.5281/zenodo.15532455, read in a public mirror); [how they
differ](../attacks/matching.md#two-fedleaks). Of the headline, Table 3, one half is seen here and one is not. Inverting
Gradients has about the paper's 9 to 10 dB on CIFAR-10, on a trained ResNet-10 with ReLU and with its published weight
of total variation; a larger weight gives it 10 to 13. FedLeak's 18 to 23 dB and its lead of 7.5 dB are in no cell,
at a twentieth of the paper's steps and a quarter of its width; on ReLU the deposit's algorithm has had 50 of its 10,000
steps, at width 8 ([the grid](../attacks/matching.md#the-realism-grid)), which says nothing of what it can.

The deposit brings one demo, whose victim is none of the tables': a fresh ResNet-18 with sigmoids in place of ReLUs
and batch norm in train mode, 16 images of 128 pixels, labels known. Its notebook shows five runs of 22.0 to 22.9 dB,
after a median filter, the best guess for each image: about what [a thumbnail of 16 to 20 pixels a
side](../attacks/matching.md#what-could-not-be-reproduced) of the same images has. On a small victim of that kind
the deposit's algorithm is ahead of Inverting Gradients by 9 dB here (28 against 19, three batches of four images,
2,000 gradients each), and the text's is not (18). What the last layers of a network with ReLU give away without such
a search is in [FedLeak on ReLU networks](../attacks/fedleak_guided.md).
""",
}
"""What a paper's page says first, where its numbers need it."""

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
        parts += [FOREWORDS[paper]] if paper in FOREWORDS else []
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
    opening = f"{OPENING}\n{_at_size(at_size, claims)}\n"
    write_whole(index, "\n".join(["# Results book\n", opening, table, *summary, LEGEND]).rstrip() + "\n")
    return [index, *pages]


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
        f"{SIZES[paper]}\n",
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
                lines.append(f"    - {head}{used}: **{in_words(one)}**{f': {shown}' if shown else ''}.")
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
