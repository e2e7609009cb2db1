"""Draw the figures of the book: the paper's values as dashed lines, ours as solid ones."""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seepage.errors import printable
from seepage.papers.items import Item
from seepage.papers.lines import Line
from seepage.papers.records import Record
from seepage.report.drawing import import_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, DPI = 6.4, 3.8, 120


def draw(item: Item, lines: Sequence[tuple[Line, Sequence[Record]]], size: str) -> bytes | None:
    """A figure as a PNG; None where there is no number to draw.

    Args:
        item: The figure, with its axes.
        lines: Its rows, with our records.
        size: For the title.
    """
    import_matplotlib()
    from matplotlib.figure import Figure  # by itself: the backend of a notebook stays as it is

    if not any(record.value is not None for _, records in lines for record in records):
        return None
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    places = list(item.expect.x) or [float(i) for i in range(len(item.expect.columns))]
    for number, (line, records) in enumerate(lines):
        _one(axes, item, places, line, records, number, len(lines))
    if not item.expect.x:
        axes.set_xticks(places, item.columns("small" if size == "small" else "paper"))
    elif max(places) > 50 * max(1e-12, min((p for p in places if p > 0), default=1)) and item.expect.kind == "lines":
        axes.set_xscale("symlog" if min(places) <= 0 else "log")
    drawn = [record.value for _, records in lines for record in records if record.value]
    if drawn and max(drawn) > 1e4 * max(1e-12, min(map(abs, drawn))):  # a loss that explodes beside one that falls
        axes.set_yscale("symlog", linthresh=0.1)
    axes.set_xlabel(item.expect.x_label)
    axes.set_ylabel(item.expect.y_label)
    axes.set_title(f"{item.expect.item} ({size})", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font lacks
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _one(
    axes: "Axes", item: Item, places: Sequence[float], line: Line, records: Sequence[Record], number: int, of: int
) -> None:
    """One row of the item: the paper's numbers and ours in one color."""
    color = f"C{number % 10}"
    ours = {record.column: record.value for record in records if record.value is not None}
    printed = [(places[i], value) for i in range(len(places)) if (value := line.paper_at(i)) is not None]
    # Untrusted text for a legend, in which dollars would begin a formula.
    data = printable(records[0].data[:60]).replace("$", r"\$")
    name = f"{line.name}, {data}"
    if item.expect.kind == "bars":
        width = 0.8 / (2 * of)
        start = -0.4 + 2 * number * width
        axes.bar([i + start for i in ours], list(ours.values()), width, color=color, label=name)
        drawn = [(i + start + width, value) for i in range(len(places)) if (value := line.paper_at(i)) is not None]
        axes.bar([x for x, _ in drawn], [y for _, y in drawn], width, color=color, alpha=0.35)
        return
    axes.plot([places[i] for i in sorted(ours)], [ours[i] for i in sorted(ours)], "o-", color=color, label=name)
    if printed:
        axes.plot(*zip(*printed, strict=True), "s--", color=color, alpha=0.5, label=f"{line.name}, paper")
