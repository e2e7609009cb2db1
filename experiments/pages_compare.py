"""The part of docs/howto/compare-an-attack.md: the rows that are stored beside the recipe `compare/standard`."""

from compare import STORED
from page_parts import Lines, Part, table

from seepage.audit.row import Row
from seepage.base.storage import read_json


def standard() -> Lines:
    """A line for each attack, a column for each victim: recovered of all examples, and the median PSNR."""
    rows = [Row.model_validate(row) for row in read_json(STORED)["rows"]]
    cases = list(dict.fromkeys(row.case for row in rows))
    attacks = list(dict.fromkeys(row.attack for row in rows))
    found = {(row.attack, row.case): row for row in rows}
    body = [[f"`{name}`", *(_words(found.get((name, case))) for case in cases)] for name in attacks]
    seconds = [[case.replace("_size", ""), *_cost(case, rows)] for case in cases]
    return [
        *table(["attack", *(case.replace("_size", "") for case in cases)], body),
        "",
        *table(["victim", "examples", "dearest attack", "CPU s of its batches"], seconds),
    ]


def _words(row: Row | None) -> str:
    if row is None:
        return ""
    median = row.median("psnr")
    return f"{row.count('recovered')}/{row.examples}" + ("" if median is None else f", {median:.1f} dB")


def _cost(case: str, rows: list[Row]) -> list[str]:
    own = [row for row in rows if row.case == case]
    dear = max(own, key=lambda row: row.cost.cpu_seconds or 0.0)
    return [str(dear.examples), f"`{dear.attack}`", f"{dear.cost.cpu_seconds or 0.0:.0f}"]


PARTS = {"standard": Part("howto/compare-an-attack.md", standard)}
