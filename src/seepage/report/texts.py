"""Read the texts of a run, and put what each attack read beside what the client holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from seepage.audit.record import PIECES, case_folder
from seepage.audit.row import Case
from seepage.base.storage import read_json, read_tensors
from seepage.errors import SeepageError, printable
from seepage.federation.transcript.truth import open_truth
from seepage.report.pictures import inside
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


def open_texts(run: RunFolder, case: Case) -> Texts | None:
    """The texts of a case; None where its examples are none.

    Raises:
        SeepageError: For damaged files.
    """
    private = case_folder(run.folder, "private", case.name, len(run.cases))
    if not any(row.of_text for row in run.rows_of(case)) or not (private / PIECES).is_file():
        return None
    pieces = _pieces(private / PIECES)
    truth = [row for batch in open_truth(private) for row in batch.inputs]
    found: dict[str, list[Tensor | None]] = {}
    for row in run.rows_of(case):
        path = inside(run.folder / "reconstructions", case.name, f"{row.attack}.safetensors")
        if path is not None and path.exists() and row.of_text:
            found[row.attack] = _guesses(path)
    rows = [
        (_words(text, pieces), [_beside(guesses, place, text, pieces) for guesses in found.values()])
        for place, text in enumerate(truth[:SHOWN])
    ]
    return Texts(list(found), rows, len(truth))


def _pieces(path: Path) -> Sequence[str]:
    pieces = read_json(path).get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise SeepageError(f"{path} holds no list of words; make the run again")
    return pieces


def _guesses(path: Path) -> list[Tensor | None]:
    """The guesses in the order of the texts, None where there is none."""
    tensors, found = read_tensors(path), list[Tensor | None]()
    for key in sorted(key for key in tensors if key.endswith("/inputs")):
        matched = tensors.get(key.replace("/inputs", "/matched"))
        if tensors[key].ndim != 2 or matched is None or matched.shape != tensors[key].shape[:1]:
            raise SeepageError(f"{path} is damaged: {key} are no texts; make the run again")
        found += [row if there else None for row, there in zip(tensors[key], matched, strict=True)]
    return found


def _beside(guesses: list[Tensor | None], place: int, text: Tensor, pieces: Sequence[str]) -> Guess:
    guess = guesses[place] if place < len(guesses) else None
    return (None, False) if guess is None else (_words(guess, pieces), guess.tolist() == text.tolist())


def _words(row: Tensor, pieces: Sequence[str]) -> str:
    """The text of token numbers `[tokens]`, without what would steer a terminal or turn the line around."""
    known = (pieces[t] if t < len(pieces) else "\N{REPLACEMENT CHARACTER}" for t in row.tolist() if t >= 0)
    return printable("".join(known))[:LONGEST].strip()
