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
        `attacks` that returned texts; `rows`: each text, None where the truth is not in the folder, and what each
        attack read; the `total` of which these are the first; whether the truth is `held` in the folder, and whether
        the words are known (`named`), else tokens stand by their numbers.

    Raises:
        SeepageError: For damaged files.
    """
    folder = truth_folder(run, case)
    if found.kind != "texts":
        return None
    file, rows = None if folder is None else folder / PIECES, list[tuple[str | None, list[Guess]]]()
    pieces = None if file is None or not file.is_file() else _pieces(file)
    for place in found.places[:SHOWN]:
        text, beside = found.private(place), list[Guess]()
        for guess in found.guesses.values():
            one = guess.at(place)
            right = one is not None and text is not None and one.equal(text)
            beside.append((None if one is None else _words(one, pieces), right))
        rows.append((None if text is None else _words(text, pieces), beside))
    attacks, held = list(found.guesses), found.truth is not None
    return {"attacks": attacks, "rows": rows, "total": len(found.places), "held": held, "named": pieces is not None}


def _pieces(path: Path) -> Sequence[str]:
    pieces = read_json(path).get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise SeepageError(f"{path} holds no list of words; make the run again")
    return pieces


def _words(row: Tensor, pieces: Sequence[str] | None) -> str:
    """The text of token numbers `[tokens]`, without what would steer a terminal or turn the line around."""
    if pieces is None:
        return " ".join(str(t) for t in row.tolist() if t >= 0)[:LONGEST]
    known = (pieces[t] if t < len(pieces) else "\N{REPLACEMENT CHARACTER}" for t in row.tolist() if t >= 0)
    return printable("".join(known))[:LONGEST].strip()
