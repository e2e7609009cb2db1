"""`grid.png`: private pictures beside each attack's reconstructions."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from seepage.audit.case import shared_parts
from seepage.audit.row import Case
from seepage.base.images import pixels
from seepage.base.manifest import renew
from seepage.base.storage import write_whole
from seepage.report.formatting import number
from seepage.report.pictures import Examples, Place, open_examples
from seepage.report.run import RunFolder, open_run

MOST_CASES, MOST_ATTACKS, MOST_EXAMPLES = 10, 8, 4
LARGEST_FILE = 1_000_000
"""Largest size of the picture in bytes, so that it can be embedded in a README or an issue."""

# Pixels: side of a picture, height of the line under it, and the margins around a block of pictures.
SIDE, UNDER, SPACE, HEAD, MARGIN, FOOT, NARROWEST = 108, 23, 10, 94, 30, 36, 720
TITLE, NAME, SMALL, LINE = 16, 13, 12, 16
"""Pixels: height of a title's letters, of an attack's, of all others, and of a line of the footer."""
LETTER, SMALL_LETTER = 11, 7
"""Pixels: mean width of a letter in a title and in the footer."""
INK, QUIET, HATCH, FLAT = "#1b2430", "#535f6d", "#b4bcc5", "#edf0f2"

NOT_RETURNED = "not returned"


@dataclass(frozen=True)
class GridBlock:
    """One case's part of the grid.

    Attributes:
        title: Heading.
        columns: `private`, where available, then the attacks. Cases with the same attacks have the same columns, so
            that the columns of different cases are aligned.
        rows: Examples; for each column a picture `[C, H, W]` and the line under it, or None and why there is none.
    """

    title: str
    columns: list[str]
    rows: list[list[tuple[Tensor | None, str]]]

    @property
    def width(self) -> int:
        return len(self.columns) * (SIDE + SPACE) - SPACE

    @property
    def height(self) -> int:
        return HEAD + len(self.rows) * (SIDE + UNDER + SPACE)


def write_grid(run: Path | RunFolder) -> Path:
    """Write `grid.png` into a finished run's folder. The picture shows private examples.

    It shows at most ten cases, eight attacks and four examples per case, the best recovered examples first.

    Args:
        run: The run folder, with `result.json`, or what was read of it.

    Returns:
        Path of the picture, smaller than 1 MB.

    Raises:
        SeepageError: Where the run is unfinished or damaged, or the folder cannot be written.
    """
    opened = open_run(run) if isinstance(run, Path) else run
    whole, data = _drawn(_blocks(opened), _footer(opened)), io.BytesIO()
    for percent in (100, 83, 67, 50, 38):
        data = io.BytesIO()
        whole.resize((whole.width * percent // 100, whole.height * percent // 100)).save(data, "PNG", optimize=True)
        if data.tell() < LARGEST_FILE:
            break
    path = opened.folder / "grid.png"
    write_whole(path, data.getvalue())
    renew(opened.folder, [path.name])
    return path


# --- what to show ------------------------------------------------------------------------------------------------


def _blocks(run: RunFolder) -> list[GridBlock]:
    examples = 2 if len(run.result.cases) > 4 else MOST_EXAMPLES - (len(run.result.cases) > 2)
    opened = [(case, open_examples(run, case)) for case in run.result.cases[:MOST_CASES]]
    found = [(case, pictures) for case, pictures in opened if pictures.kind == "pictures"]
    attacks = _attacks(run, found)
    held = any(pictures.truth for _, pictures in found)
    blocks = []
    for case, pictures in found:
        phrases = {row.attack: row.phrase for row in run.result.rows_of(case)}
        own = [attack for attack in attacks if attack in phrases]
        rows = []
        for place in sorted(pictures.places, key=lambda at: -_best(run, case, own, at))[:examples]:
            picture = pictures.private(place)
            private = [(picture, "" if picture is not None else "not here")] * held
            rows.append([*private, *(_shown(run, case, pictures, name, place, phrases[name]) for name in own)])
        title = what_differs(case, [one for one, _ in found])
        blocks.append(GridBlock(title, ["private"] * held + own, rows))
    return blocks


def what_differs(case: Case, cases: Sequence[Case]) -> str:
    """The parts of a case's title that not all cases share; all of it where none differs.

    >>> cases = [Case(name=name, title_parts=["fc2", "batch 1", name]) for name in ("no defense", "noise")]
    >>> [what_differs(case, cases) for case in cases]
    ['no defense', 'noise']
    """
    shared = shared_parts(cases)
    own = [part for part in case.title_parts if part not in shared]
    return ", ".join(own) or case.heading


def _shown(
    run: RunFolder, case: Case, pictures: Examples, attack: str, place: Place, phrase: str
) -> tuple[Tensor | None, str]:
    if attack not in pictures.guesses:
        return None, phrase
    picture = pictures.guesses[attack].at(place)
    psnr = run.scores.get((case.name, attack, *place, "psnr"))
    return picture, NOT_RETURNED if picture is None else "" if psnr is None else f"{number(psnr)} dB"


def _attacks(run: RunFolder, found: list[tuple[Case, Examples]]) -> list[str]:
    """The attacks that have pictures, in row order; if there are too many, those with the highest PSNR in any case."""
    best: dict[str, float] = {}
    for case, pictures in found:
        for row in run.result.rows_of(case):
            if row.attack in pictures.guesses:
                best[row.attack] = max(best.get(row.attack, 0.0), row.mean("psnr") or 0.0)
    kept = sorted(best, key=lambda attack: -best[attack])[:MOST_ATTACKS]
    return [attack for attack in run.attacks if attack in kept]


def _best(run: RunFolder, case: Case, attacks: list[str], place: Place) -> float:
    return max((run.scores.get((case.name, attack, *place, "psnr")) or 0.0 for attack in attacks), default=0.0)


def _footer(run: RunFolder) -> str:
    parts = ["Private data: handle like the data themselves."]
    if run.scored:
        parts.append("PSNR under each picture. The best recovered examples are shown, not typical ones.")
    if len(run.result.cases) > 1:
        common = shared_parts(run.result.cases)
        parts += [f"All of: {', '.join(common)}."] if common else []
    if len(run.result.cases) > MOST_CASES:
        parts.append(f"The first {MOST_CASES} of {len(run.result.cases)} cases; the report shows all.")
    return " ".join(parts)


# --- how to lay it out -------------------------------------------------------------------------------------------


def _drawn(blocks: list[GridBlock], footer: str) -> Image.Image:
    if not blocks:
        empty = Image.new("RGB", (NARROWEST, 120), "white")
        _text(empty, NARROWEST // 2, 60, "This run has no pictures to show.", anchor="mm")
        return empty
    across = 2 if len(blocks) > 1 and max(len(block.columns) for block in blocks) <= 7 else 1
    width = max(NARROWEST, across * (max(block.width for block in blocks) + MARGIN) + MARGIN)
    bands = [blocks[start : start + across] for start in range(0, len(blocks), across)]
    lines = textwrap.wrap(footer, (width - 2 * MARGIN) // SMALL_LETTER)
    foot, top, room = FOOT + (len(lines) - 1) * LINE, MARGIN // 2, (width - MARGIN) // across
    height = sum(max(block.height for block in band) for band in bands) + MARGIN + foot
    canvas = Image.new("RGB", (width, height), "white")
    for band in bands:
        for place, block in enumerate(band):
            _draw(canvas, block, MARGIN + place * room, top, room)
        top += max(block.height for block in band)
    _text(canvas, MARGIN, height - foot // 2, "\n".join(lines), color=QUIET, anchor="lm")
    return canvas


def _draw(canvas: Image.Image, block: GridBlock, left: int, top: int, room: int) -> None:
    """Draw a block with its top left corner at `(left, top)`."""
    title = "\n".join(two_lines(block.title, (room - MARGIN) // LETTER))
    _text(canvas, left, top + 12, title, size=TITLE, anchor="la")
    for column, name in enumerate(block.columns):
        x = left + column * (SIDE + SPACE)
        color = QUIET if column else INK
        _text(canvas, x + SIDE // 2, top + HEAD - 6, _wrapped(name), size=NAME, color=color, anchor="md")
        for row, places in enumerate(block.rows):
            (picture, words), y = places[column], top + HEAD + row * (SIDE + UNDER + SPACE)
            if picture is not None:
                levels = Image.fromarray(pixels(picture))
                smooth = Image.Resampling.NEAREST if max(levels.size) <= 96 else Image.Resampling.LANCZOS
                canvas.paste(levels.resize((SIDE, SIDE), smooth), (x, y))
                _text(canvas, x + SIDE // 2, y + SIDE + UNDER // 2, words, anchor="mm")
                continue
            box = Image.new("RGB", (SIDE, SIDE), FLAT)
            for start in range(-SIDE, SIDE, 12) if words == NOT_RETURNED else ():  # hatched where the attack ran
                ImageDraw.Draw(box).line((start, SIDE, start + SIDE, 0), fill=HATCH)
            canvas.paste(box, (x, y))
            _text(canvas, x + SIDE // 2, y + SIDE // 2, textwrap.fill(words, 12), color=QUIET, anchor="mm")


def _text(canvas: Image.Image, x: int, y: int, text: str, *, anchor: str, size: int = SMALL, color: str = INK) -> None:
    align = "left" if anchor[0] == "l" else "center"
    ImageDraw.Draw(canvas).text((x, y), text, fill=color, font=_font(size), anchor=anchor, align=align)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and has letters of many languages; titles are bold."""
    spec = find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None
    name = "DejaVuSans-Bold.ttf" if size == TITLE else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(spec.origin).with_name("mpl-data") / "fonts" / "ttf" / name), size)


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
