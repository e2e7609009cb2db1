"""The part of docs/howto/compare-an-attack.md: the rows that are stored beside the recipe `compare/standard`."""

from compare import STORED
from page_parts import Lines, Part, table

from seepage.audit.row import Row
from seepage.base.storage import read_json


def standard() -> Lines:
    """A line for each attack, a column for each victim: recovered of all examples, and the median PSNR."""
    rows = [Row.model_validate(row) for row in read_json(STORED)["rows"]]
    cells = list(dict.fromkeys(row.cell for row in rows))
    attacks = list(dict.fromkeys(row.attack for row in rows))
    found = {(row.attack, row.cell): row for row in rows}
    body = [[f"`{name}`", *(_words(found.get((name, cell))) for cell in cells)] for name in attacks]
    seconds = [[cell.replace("_size", ""), *_cost(cell, rows)] for cell in cells]
    return [
        *table(["attack", *(cell.replace("_size", "") for cell in cells)], body),
        "",
        *table(["victim", "examples", "dearest attack", "CPU s of its batches"], seconds),
    ]


def _words(row: Row | None) -> str:
    if row is None:
        return ""
    median = row.median("psnr")
    return f"{row.count('recovered')}/{row.examples}" + ("" if median is None else f", {median:.1f} dB")


def _cost(cell: str, rows: list[Row]) -> list[str]:
    own = [row for row in rows if row.cell == cell]
    dear = max(own, key=lambda row: row.cost.cpu_seconds or 0.0)
    return [str(dear.examples), f"`{dear.attack}`", f"{dear.cost.cpu_seconds or 0.0:.0f}"]


PARTS = {"standard": Part("howto/compare-an-attack.md", standard)}
