"""Read the texts of a run, and put what each attack read beside what the client holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Texts:
    """The texts of one case.

    Attributes:
        attacks: Those that returned texts.
        rows: In batch order each text, and what each attack read.
        total: Number of texts, of which `rows` are the first.
    """

    attacks: list[str]
    rows: list[tuple[str, list[Guess]]]
    total: int


def texts_of(run: RunFolder, case: Case, found: Examples) -> Texts | None:
    """The texts of a case; None where its examples are none.

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
        beside = [(None, False) if one is None else (_words(one, pieces), one.equal(text)) for one in read]
        rows.append((_words(text, pieces), beside))
    return Texts(list(found.guesses), rows, len(found.places))


def _pieces(path: Path) -> Sequence[str]:
    pieces = read_json(path).get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise SeepageError(f"{path} holds no list of words; make the run again")
    return pieces


def _words(row: Tensor, pieces: Sequence[str]) -> str:
    """The text of token numbers `[tokens]`, without what would steer a terminal or turn the line around."""
    known = (pieces[t] if t < len(pieces) else "\N{REPLACEMENT CHARACTER}" for t in row.tolist() if t >= 0)
    return printable("".join(known))[:LONGEST].strip()
