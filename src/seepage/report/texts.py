"""Read the texts of a run, and put what each attack read beside what the client holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from seepage.audit.record import PIECES
from seepage.audit.row import Case
from seepage.base.storage import read_json
from seepage.errors import SeepageError, printable
from seepage.report.pictures import Examples, truth_folder
from seepage.report.run import RunFolder

SHOWN = 32
"""Texts of a case that a page shows."""
LONGEST = 4000
"""Characters of a text that a page shows."""


Guess = tuple[str | None, bool]
"""What an attack read, None where it returned nothing, and whether all of it is right."""


def texts_of(run: RunFolder, case: Case, found: Examples) -> dict[str, Any] | None:
    """The texts of a case, in batch order; None where its examples are none.

    Returns:
        `attacks` that returned texts; `rows`: each text, and what each attack read; the `total` of which these are the
        first.

    Raises:
        SeepageError: For damaged files.
    """
    folder = truth_folder(run, case)
    if found.kind != "texts" or folder is None or not (folder / PIECES).is_file():
        return None
    pieces, rows = _pieces(folder / PIECES), list[tuple[str, list[Guess]]]()
    for place in found.places[:SHOWN]:
        text = found.private(place)
        assert text is not None
        read = [guess.at(place) for guess in found.guesses.values()]
        beside: list[Guess] = [(None, False) if one is None else (_words(one, pieces), one.equal(text)) for one in read]
        rows.append((_words(text, pieces), beside))
    return {"attacks": list(found.guesses), "rows": rows, "total": len(found.places)}


def _pieces(path: Path) -> Sequence[str]:
    pieces = read_json(path).get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise SeepageError(f"{path} holds no list of words; make the run again")
    return pieces


def _words(row: Tensor, pieces: Sequence[str]) -> str:
    """The text of token numbers `[tokens]`, without what would steer a terminal or turn the line around."""
    known = (pieces[t] if t < len(pieces) else "\N{REPLACEMENT CHARACTER}" for t in row.tolist() if t >= 0)
    return printable("".join(known))[:LONGEST].strip()
