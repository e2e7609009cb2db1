"""The rows that are stored beside the recipe `compare/standard`, from a finished run of it, and their page's table.

    seepage audit compare/standard --jobs 1 --no-pictures --out runs/standard
    seepage audit compare/standard --attack peer_packages:BreachingModern --no-pictures --out runs/modern
    python experiments/compare.py runs/standard runs/modern

`seepage audit compare/standard --attack mine:Attack` prints them below those of somebody's own attack. Rows of attacks
that do not apply are left out, and so is what an attack notes of its own run.
"""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import command
from page_parts import Lines, Part, table

from seepage.audit.folder import read_result
from seepage.audit.recipe.files import BUILT_IN
from seepage.audit.row import Row
from seepage.base.storage import read_json, write_whole

STORED = BUILT_IN / "compare" / "standard.json"
NAMES = {
    "peer_packages.BreachingInvertingGradients": "breaching 0.1.2 invertinggradients",
    "peer_packages.BreachingModern": "breaching 0.1.2 modern",
}
"""What rows of `experiments/peer_packages.py` are called."""
KEPT = {
    "case", "attack", "options", "status", "outcome", "examples", "side_information", "returned", "space", "scores",
    "certified", "cost",
}  # fmt: skip


def main(runs: tuple[Path, ...]) -> None:
    """Read the finished runs, write the rows."""
    results = [read_result(run) for run in runs]
    order = [case.name for case in results[0].cases]
    latest = {(row.case, row.attack): row for result in results for row in result.rows}
    rows = [row for row in latest.values() if row.gave_result and row.scored]
    rows.sort(key=lambda row: (order.index(row.case), -(row.mean("recovered") or 0), -(row.median("psnr") or 0)))
    libraries = f"seepage {version('seepage')}, PyTorch {version('torch').partition('+')[0]}, {platform.machine()}"
    made = f"stored with the recipe, not run now: other attacks on the same victims ({libraries})"
    lines = ",\n".join(json.dumps(_kept(row)) for row in rows)
    write_whole(STORED, f'{{"made": {json.dumps(made)}, "rows": [\n{lines}\n]}}\n')


def _kept(row: Row) -> dict[str, Any]:
    text = json.dumps(row.model_dump(mode="json", include=KEPT, exclude_none=True))
    record: dict[str, Any] = json.loads(text, parse_float=lambda number: float(f"{float(number):.5g}"))
    return record | {"attack": NAMES.get(row.attack, row.attack)}


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


PARTS = {"standard": Part("../results/compare/README.md", standard)}


if __name__ == "__main__":
    command(main)
