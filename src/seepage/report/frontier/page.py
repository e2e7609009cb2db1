"""`frontier.png` and `frontier.html`: plot of accuracy against the share of recovered examples, and a table.

What is measured after training is called what it is: accuracy, explained variance of values, pixel accuracy of maps.
"""

import io
import warnings
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seepage.audit.row import Case
from seepage.base.storage import write_whole
from seepage.report import formatting as words
from seepage.report.drawing import import_matplotlib
from seepage.report.frontier.advising import untried
from seepage.report.frontier.rows import DefenseRow, pareto, points_of
from seepage.report.templates import page_environment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, DPI = 7.2, 5.0, 130


def write_page(folder: Path, rows: Sequence[DefenseRow], advice: str, facts: Case, rounds: int) -> Path:
    """Write the plot, and the page with the plot in it; returns the page.

    Args:
        folder: The run folder.
        rows: The frontier.
        advice: A few sentences.
        facts: Facts of a recorded case, from `result.json`.
        rounds: Number of training rounds before the accuracy is measured.
    """
    plot = draw(rows)
    write_whole(folder / "frontier.png", plot)
    filters = (words.number, words.signed, words.percent, words.breakable, words.scientific)
    environment = page_environment("report/frontier", "report", filters=filters)
    best = {point.defense for point in pareto(points_of(rows))}
    page = environment.get_template("frontier.html.j2").render(
        run=folder.name,
        advice=advice,
        facts=facts,
        rounds=rounds,
        measure=rows[0].measure,
        pictures=facts.kind == "pictures" or any("ssim" in row.best.scores for row in rows if row.best),
        texts=facts.kind == "texts",
        groups=_groups(rows, best),
        tested=next((row.test for row in rows if row.test), None),
        untested=list(dict.fromkeys(row.untested for row in rows if row.untested)),
        untried=untried(rows),
        plot=b64encode(plot).decode(),
    )
    path = folder / "frontier.html"
    write_whole(path, page)
    return path


def _groups(rows: Sequence[DefenseRow], best: set[str]) -> list[dict[str, Any]]:
    """One entry per defense: its number in the plot, what it costs, and its rows."""
    return [
        {
            "number": number,
            "defense": defense,
            "best": defense in best,
            "rows": own,
            "caveats": () if own[0].promise is None else own[0].promise.caveats,
        }
        for number, defense in enumerate(dict.fromkeys(row.defense for row in rows))
        for own in [[row for row in rows if row.defense == defense]]
    ]


def draw(rows: Sequence[DefenseRow]) -> bytes:
    """The plot as a PNG: each defense by its number in the table, and the line of Pareto-optimal defenses."""
    import_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a user's own style must not change the picture
        matplotlib.rcParams["font.size"] = 13
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        _draw_points(figure.add_subplot(), rows)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _draw_points(axes: "Axes", rows: Sequence[DefenseRow]) -> None:
    """Draw accuracy in % (x) against recovered share in % (y); labels are the numbers of `_groups`, counted alike."""
    numbers = {defense: number for number, defense in enumerate(dict.fromkeys(row.defense for row in rows))}
    points = points_of(rows)
    line = pareto(points)
    axes.plot(
        [100 * point.accuracy for point in line],
        [100 * point.share for point in line],
        color="#1d5aa6",
        linewidth=1.5,
        zorder=1,
        label="no other is better in both",
    )
    for known, marker, label in (
        (True, "o", "an attacker knows the defense"),
        (False, "s", "no attacker who knows it was scored"),
    ):
        own = [point for point in points if point.known is known]
        if own:
            x, y = [100 * point.accuracy for point in own], [100 * point.share for point in own]
            axes.scatter(x, y, s=50, marker=marker, color="#9a1b14" if known else "#535f6d", zorder=2, label=label)
    for place, group in _together([(100 * p.accuracy, 100 * p.share, numbers[p.defense]) for p in points]).items():
        text = ", ".join(map(str, group))
        axes.annotate(text, place, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=12)
    axes.set_xlabel(f"{rows[0].measure} after federated training, %")
    axes.set_ylabel("examples recovered by the best attack, %")
    axes.set_ylim(-6, 112)
    axes.margins(x=0.08)
    axes.grid(color="#d8dde3", linewidth=0.6)
    if points:
        axes.legend(fontsize=10, loc="upper left")


def _together(places: Sequence[tuple[float, float, int]]) -> dict[tuple[float, float], list[int]]:
    """Labels for the plot; points too close together for labels of their own share one at the first point."""
    span = max((x for x, _, _ in places), default=0) - min((x for x, _, _ in places), default=0) or 1.0
    found: dict[tuple[float, float], list[int]] = {}
    for x, y, number in sorted(places):
        near = [place for place in found if abs(place[0] - x) < 0.035 * span and abs(place[1] - y) < 6]
        found.setdefault(near[0] if near else (x, y), []).append(number)
    return found
