"""A contact sheet: all private pictures of a cell, and at the same places on the right their reconstructions."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seepage.core.storage import OWNER_ONLY, write_whole
from seepage.errors import SeepageError, unknown
from seepage.report.pictures import Pictures, open_pictures, pixels
from seepage.report.run import open_run

GAP = 12
"""Pixels between the two halves."""
LARGEST_SHEET = 2000
"""Pictures on a sheet."""
EMPTY = 235
"""Brightness of a place where the attack returned nothing."""


def write_sheet(folder: Path, path: Path, *, cell: str | None = None, attack: str | None = None) -> Path:
    """Write a PNG with all pictures of a cell beside an attack's reconstructions.

    Args:
        folder: A finished run folder.
        path: The PNG to write.
        cell: The cell; None: the first one that has pictures.
        attack: The attack; None: the cell's first one that returned pictures.

    Raises:
        SeepageError: Where the run has no such cell, attack or pictures.
    """
    run = open_run(folder)
    if cell is not None and cell not in [known.name for known in run.cells]:
        raise unknown("cell", cell, [known.name for known in run.cells])
    found = {known.name: open_pictures(run, known) for known in run.cells if cell in (None, known.name)}
    pictures = next((one for one in found.values() if one.truth and one.guesses), None)
    if pictures is None:
        raise SeepageError(f"{folder} has no private and rebuilt pictures to put side by side; audit a set of images")
    if attack is not None and attack not in pictures.guesses:
        raise unknown("attack with pictures", attack, pictures.guesses)
    guesses = pictures.guesses[attack or next(iter(pictures.guesses))]
    places = pictures.places[:LARGEST_SHEET]
    across = max(1, round((len(places) / 2) ** 0.5))
    left = [_tile(pictures, place) for place in places]
    right = [_blank(left[0]) if (guess := guesses.at(place)) is None else pixels(guess) for place in places]
    halves = [_mosaic(half, across) for half in (left, right)]
    gap = np.full((halves[0].shape[0], GAP, 3), 255, dtype=np.uint8)
    write_whole(path, _png(np.concatenate([halves[0], gap, halves[1]], axis=1)), mode=OWNER_ONLY)
    return path


def _tile(pictures: Pictures, place: tuple[int, int]) -> NDArray[np.uint8]:
    picture = pictures.private(place)
    assert picture is not None  # `places` lists examples of the truth
    return pixels(picture)


def _blank(like: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.full_like(like, EMPTY)


def _mosaic(tiles: list[NDArray[np.uint8]], across: int) -> NDArray[np.uint8]:
    """Tiles row by row, `across` in each."""
    height, width = tiles[0].shape[:2]
    down = -(-len(tiles) // across)
    sheet = np.full((down * height, across * width, 3), 255, dtype=np.uint8)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, across)
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = tile
    return sheet


def _png(sheet: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
