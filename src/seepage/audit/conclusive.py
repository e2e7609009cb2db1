"""Where nothing came back: whether that says anything, and if not, why."""

from collections.abc import Sequence

from seepage.audit.cell import Cell, Diagnostic
from seepage.audit.outcome import PASSED_OVER
from seepage.audit.row import Outcome, Row

UNTRUSTED = {
    "failed": "{attack} failed",
    "diverged": "{attack} diverged",
    "confident-examples": "the model is already sure of examples, whose part of the update is next to nothing",
}
"""Warnings with which a count of nothing is no finding, in words for the headline."""

UNSHOWN = "nothing in this run shows that these attacks work here without the defense"


def inconclusive(rows: Sequence[Row], cells: Sequence[Cell], flags: Sequence[Diagnostic] = ()) -> dict[str, str]:
    """Cells whose attacks recovered nothing, to why that says nothing; the others are left out.

    Args:
        rows: All rows.
        cells: All cells.
        flags: The diagnostics of the run.

    >>> row = Row(cell="a", attack="x", outcome="nothing_recovered", scores={"psnr": {"mean": 9.0}})
    >>> inconclusive([row], [Cell(name="a", defense="noise")])["a"].partition(";")[0]
    'nothing in this run shows that these attacks work here without the defense'
    >>> inconclusive([row], [Cell(name="a")])
    {}
    """
    found = {}
    for cell in cells:
        own = [row for row in rows if row.cell == cell.name]
        if cell.control or not any(row.scored for row in own) or _gives(cell, own):
            continue
        flagged = [flag for flag in flags if flag.cell == cell.name and flag.severity == "warning"]
        why = [UNTRUSTED[flag.name].format(attack=flag.attack) for flag in flagged if flag.name in UNTRUSTED]
        why += [f"{row.attack} was not tried for want of time" for row in own if row.outcome is Outcome.NOT_TRIED]
        why += [words] if cell.defense and (words := _unshown(cell, rows, cells)) else []
        if why:
            found[cell.name] = "; ".join(dict.fromkeys(why))
    return found


def _gives(cell: Cell, rows: Sequence[Row]) -> bool:
    """Whether anything of the examples came back, by an attack or in closed form."""
    proved = any(row.leaks or row.named_tokens or row.certified_examples for row in rows)
    return proved or bool(cell.given_away)


def _unshown(cell: Cell, rows: Sequence[Row], cells: Sequence[Cell]) -> str:
    """That nothing shows that the attacks on a defended cell would work without the defense; empty where that is shown.

    An attack that does not apply behind the defense is one that it stops; one that failed or was passed over is not.
    """
    tried = {row.attack for row in rows if row.cell == cell.name and row.status not in ("error", *PASSED_OVER)}
    twin = cell.undefended
    elsewhere = [row for row in rows if row.cell == twin] if twin is not None else rows
    if tried & {row.attack for row in elsewhere if row.leaks or row.named_tokens}:
        return ""
    compared = {one.name for one in cells if not one.defense} if twin is None else {twin}
    if any(row.scored and row.cell in compared for row in rows):
        return "these attacks recover nothing without the defense either; raise attack.steps or lower batch.size"
    return f"{UNSHOWN}; leave out --no-undefended, or put undefended = true into the recipe"
