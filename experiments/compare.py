"""The rows that are stored beside the recipe `compare/standard`, from a finished run of it.

    seepage audit compare/standard --jobs 1 --no-pictures --out runs/standard
    seepage audit compare/standard --attack peer_packages:BreachingModern --no-pictures --out runs/modern
    python experiments/compare.py runs/standard runs/modern

`seepage audit compare/standard --attack mine:Attack` prints them below those of somebody's own attack. Rows of attacks
that do not apply are left out, and so is what an attack notes of its own run.
"""

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from seepage.audit.folder import read_result
from seepage.core.storage import write_json
from seepage.recipe.files import BUILT_IN

STORED = BUILT_IN / "compare" / "standard.json"
NAMES = {
    "peer_packages.BreachingInvertingGradients": "breaching 0.1.2 invertinggradients",
    "peer_packages.BreachingModern": "breaching 0.1.2 modern",
}
"""What rows of `experiments/peer_packages.py` are called."""
NOT_KEPT = ("told", "told_extra", "notes", "inner", "reason", "alignment")


def main() -> None:
    """Read the run, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="finished runs of compare/standard")
    results = [read_result(run) for run in parser.parse_args().runs]
    order = [cell.name for cell in results[0].cells]
    latest = {(row.cell, row.attack): row for result in results for row in result.rows}
    rows = [row for row in latest.values() if row.gave_result and row.scored]
    rows.sort(key=lambda row: (order.index(row.cell), -(row.mean("recovered") or 0), -(row.median("psnr") or 0)))
    libraries = f"seepage {version('seepage')}, PyTorch {version('torch').partition('+')[0]}, {platform.machine()}"
    made = f"stored with the recipe, not run now: other attacks on the same victims ({libraries})"
    write_json(STORED, {"made": made, "rows": [_kept(row.record()) for row in rows]})


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    rounded = json.loads(json.dumps(record), parse_float=lambda number: float(f"{float(number):.5g}"))
    rounded["attack"] = NAMES.get(rounded["attack"], rounded["attack"])
    return {name: value for name, value in rounded.items() if name not in NOT_KEPT and value not in (None, {}, [])}


if __name__ == "__main__":
    main()
