"""`grid.png`: private pictures beside each attack's reconstructions."""

import io
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from seepage.audit.row import Cell
from seepage.core.manifest import renew
from seepage.core.storage import write_whole
from seepage.report.drawing import import_matplotlib
from seepage.report.formatting import number
from seepage.report.pictures import Pictures, Place, open_pictures, pixels
from seepage.report.run import RunFolder, open_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CELLS, MOST_ATTACKS, MOST_EXAMPLES = 10, 8, 4
LARGEST_FILE = 1_000_000
"""Largest size of the picture in bytes, so that it can be embedded in a README or an issue."""

# Inches: side of a picture, height of the line under it, and the margins around a block of pictures.
SIDE, UNDER, GAP, HEAD, MARGIN, FOOT = 0.9, 0.19, 0.08, 0.78, 0.25, 0.3
LETTER, SMALL_LETTER, LINE = 0.09, 0.06, 0.13
"""Inches: mean width of a letter in a heading and in the footer, and the height of the footer's lines."""
INK, QUIET, HATCH, FLAT = "#1b2430", "#535f6d", "#b4bcc5", "#edf0f2"


NOT_RETURNED = "not returned"


@dataclass(frozen=True)
class GridPlace:
    """One place of the grid.

    Attributes:
        picture: `[C, H, W]`, or None.
        words: The line under the picture, or the reason why there is no picture.
    """

    picture: Tensor | None
    words: str


@dataclass(frozen=True)
class GridBlock:
    """One cell's part of the grid.

    Attributes:
        title: Heading.
        columns: `private`, where available, then the attacks. Cells with the same attacks have the same columns, so
            that the columns of different cells are aligned.
        rows: Examples; each has one place per column.
    """

    title: str
    columns: list[str]
    rows: list[list[GridPlace]]

    @property
    def width(self) -> float:
        return len(self.columns) * (SIDE + GAP) - GAP

    @property
    def height(self) -> float:
        return HEAD + len(self.rows) * (SIDE + UNDER + GAP)


def write_grid(run: Path) -> Path:
    """Write `grid.png` into a finished run's folder. The picture shows private examples.

    It shows at most ten cells, eight attacks and four examples per cell, the best recovered examples first.

    Args:
        run: The run folder, with `result.json`.

    Returns:
        Path of the picture, smaller than 1 MB.

    Raises:
        SeepageError: Where the run is unfinished or damaged, or the folder cannot be written.
    """
    import_matplotlib()
    import matplotlib

    opened = open_run(run)
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a user's own style must not change the picture
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        data = _png(_figure(_blocks(opened), _footer(opened)))
    path = run / "grid.png"
    write_whole(path, data)
    renew(run, [path.name])
    return path


def _png(figure: "Figure") -> bytes:
    data = b""
    for dpi in (120, 100, 80, 60, 45):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        data = buffer.getvalue()
        if len(data) < LARGEST_FILE:
            break
    return data


# --- what to show ------------------------------------------------------------------------------------------------


def _blocks(run: RunFolder) -> list[GridBlock]:
    per_cell = 2 if len(run.cells) > 4 else MOST_EXAMPLES - (len(run.cells) > 2)
    opened = [(cell, open_pictures(run, cell)) for cell in run.cells[:MOST_CELLS]]
    found = [(cell, pictures) for cell, pictures in opened if pictures.places]
    attacks = _attacks(run, found)
    held = any(pictures.truth for _, pictures in found)
    blocks = []
    for cell, pictures in found:
        own = {row.attack for row in run.rows_of(cell)}
        block = _block(run, cell, pictures, [attack for attack in attacks if attack in own], per_cell, held)
        blocks.append(replace(block, title=what_differs(cell, [one for one, _ in found])))
    return blocks


def what_differs(cell: Cell, cells: Sequence[Cell]) -> str:
    """The parts of a case's title that not all cases share; all of it where none differs.

    >>> cells = [Cell(name=name, title_parts=["fc2", "batch 1", name]) for name in ("no defense", "noise")]
    >>> [what_differs(cell, cells) for cell in cells]
    ['no defense', 'noise']
    """
    shared = set.intersection(*(set(one.title_parts) for one in cells))
    own = [part for part in cell.title_parts if part not in shared]
    return ", ".join(own) or cell.heading


def _block(run: RunFolder, cell: Cell, pictures: Pictures, attacks: list[str], examples: int, held: bool) -> GridBlock:
    places = sorted(pictures.places, key=lambda place: -_best(run, cell, attacks, place))[:examples]
    rows = []
    for place in places:
        picture = pictures.private(place)
        private = [GridPlace(picture, "" if picture is not None else "not here")] * held
        rows.append([*private, *(_shown(run, cell, pictures, attack, place) for attack in attacks)])
    return GridBlock(cell.heading, ["private"] * held + attacks, rows)


def _shown(run: RunFolder, cell: Cell, pictures: Pictures, attack: str, place: Place) -> GridPlace:
    if attack not in pictures.guesses:
        return GridPlace(None, next(row.phrase for row in run.rows_of(cell) if row.attack == attack))
    picture = pictures.guesses[attack].at(place)
    psnr = run.scores.get((cell.name, attack, *place, "psnr"))
    return GridPlace(picture, NOT_RETURNED if picture is None else "" if psnr is None else f"{number(psnr)} dB")


def _attacks(run: RunFolder, found: list[tuple[Cell, Pictures]]) -> list[str]:
    """The attacks that have pictures, in row order; if there are too many, those with the highest PSNR in any cell."""
    best: dict[str, float] = {}
    for cell, pictures in found:
        for row in run.rows_of(cell):
            if row.attack in pictures.guesses:
                best[row.attack] = max(best.get(row.attack, 0.0), row.mean("psnr") or 0.0)
    kept = sorted(best, key=lambda attack: -best[attack])[:MOST_ATTACKS]
    return [attack for attack in run.attacks if attack in kept]


def _best(run: RunFolder, cell: Cell, attacks: list[str], place: Place) -> float:
    return max((run.scores.get((cell.name, attack, *place, "psnr")) or 0.0 for attack in attacks), default=0.0)


def _footer(run: RunFolder) -> str:
    parts = ["Private data: handle like the data themselves."]
    if run.scored:
        parts.append("PSNR under each picture. The best recovered examples are shown, not typical ones.")
    if len(run.cells) > 1:
        shared = set.intersection(*(set(cell.title_parts) for cell in run.cells))
        common = [part for part in run.cells[0].title_parts if part in shared]
        parts += [f"All of: {', '.join(common)}."] if common else []
    if len(run.cells) > MOST_CELLS:
        parts.append(f"{MOST_CELLS} of {len(run.cells)} cases.")
    return " ".join(parts)


# --- how to lay it out -------------------------------------------------------------------------------------------


def _figure(blocks: list[GridBlock], footer: str) -> "Figure":
    from matplotlib.figure import Figure

    if not blocks:
        figure = Figure(figsize=(6, 1), facecolor="white")
        figure.text(0.5, 0.5, "This run has no pictures to show.", ha="center", va="center", color=INK)
        return figure
    across = 2 if len(blocks) > 1 and max(len(block.columns) for block in blocks) <= 7 else 1
    width = max(6.0, across * (max(block.width for block in blocks) + MARGIN) + MARGIN)
    bands = [blocks[start : start + across] for start in range(0, len(blocks), across)]
    lines = textwrap.wrap(footer, int((width - 2 * MARGIN) / SMALL_LETTER))
    foot = FOOT + (len(lines) - 1) * LINE
    height = sum(max(block.height for block in band) for band in bands) + MARGIN + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    # One coordinate system for all pictures, in inches: to make one takes longer than to draw a picture.
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    top = height - MARGIN / 2
    for band in bands:
        for place, block in enumerate(band):
            _draw(axes, block, MARGIN + place * (width - MARGIN) / across, top, (width - MARGIN) / across)
        top -= max(block.height for block in band)
    _text(axes, MARGIN, foot / 2, "\n".join(lines), size=7, color=QUIET, ha="left", va="center")
    return figure


def _draw(axes: "Axes", block: GridBlock, left: float, top: float, room: float) -> None:
    """Draw a block with its top left corner at `(left, top)`, in inches from the bottom left."""
    title = "\n".join(two_lines(block.title, int((room - MARGIN) / LETTER)))
    _text(axes, left, top - 0.1, title, size=9.5, weight="bold", ha="left")
    for column, name in enumerate(block.columns):
        x = left + column * (SIDE + GAP) + SIDE / 2
        _text(axes, x, top - HEAD + 0.05, _wrapped(name), size=8, color=QUIET if column else INK, va="bottom")
    for row, shown in enumerate(block.rows):
        y = top - HEAD - SIDE - row * (SIDE + UNDER + GAP)
        for column, place in enumerate(shown):
            x = left + column * (SIDE + GAP)
            if place.picture is None:
                _box(axes, x, y, place.words)
            else:
                _picture(axes, x, y, place.picture)
                _text(axes, x + SIDE / 2, y - UNDER / 2, place.words, size=7.5, va="center")


def _picture(axes: "Axes", x: float, y: float, picture: Tensor) -> None:
    levels = pixels(picture)
    smooth = "nearest" if max(levels.shape) <= 96 else "antialiased"
    axes.imshow(levels, extent=(x, x + SIDE, y, y + SIDE), aspect="auto", interpolation=smooth)


def _box(axes: "Axes", x: float, y: float, words: str) -> None:
    """A place without a picture; hatched where the attack ran and returned none for this example."""
    from matplotlib.patches import Rectangle

    hatch = "///" if words == NOT_RETURNED else None
    axes.add_patch(Rectangle((x, y), SIDE, SIDE, facecolor=FLAT, edgecolor=HATCH, hatch=hatch, linewidth=0))
    _text(axes, x + SIDE / 2, y + SIDE / 2, textwrap.fill(words, 9), size=7, color=QUIET, va="center")


def _text(
    axes: "Axes",
    x: float,
    y: float,
    text: str,
    *,
    size: float,
    color: str = INK,
    weight: str = "normal",
    ha: str = "center",
    va: str = "top",
) -> None:
    # Names may come from foreign files; an unescaped dollar sign would start a matplotlib formula.
    axes.text(x, y, text, fontsize=size, color=color, fontweight=weight, ha=ha, va=va, parse_math=False)


def two_lines(text: str, most: int) -> list[str]:
    """A text on one or two lines of at most `most` characters, broken between words where there are any.

    >>> two_lines("gaussian_noise(sigma=1, clip=1), batch 8", 24)
    ['gaussian_noise(sigma=1,', 'clip=1), batch 8']
    """
    first, *rest = textwrap.wrap(" ".join(text.split()), max(most, 2)) or [""]
    return [first, _short(" ".join(rest), most)] if rest else [first]


def _short(text: str, most: int) -> str:
    """A text of at most `most` characters on one line."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _wrapped(name: str) -> str:
    """An attack's name on one or two lines, as narrow as a picture.

    >>> _wrapped("inverting_gradients").splitlines()
    ['inverting', 'gradients']
    """
    if len(name) <= 13:
        return name
    middle = min((i for i, c in enumerate(name) if c in "_- ."), key=lambda i: abs(2 * i - len(name)), default=13)
    rest = name[middle:].lstrip("_ ")
    return f"{_short(name[:middle], 14)}\n{_short(rest, 14)}"
