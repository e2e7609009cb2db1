"""`judgements.json`: what people said of the guesses of a run."""

from pathlib import Path
from typing import Any

from seepage.core.schema import JsonRecord, parse, parse_all
from seepage.core.storage import check_schema, read_json

FILE = "judgements.json"


class Judge(JsonRecord):
    """One person.

    Attributes:
        name: Name or initials.
        guesses: Guesses judged.
        controls: Planted pairs judged.
        missed: Planted pairs answered wrongly, "cannot tell" included.
        left_out: Why this judge does not count; None: does count.
    """

    name: str
    guesses: int
    controls: int
    missed: int
    left_out: str | None = None


class JudgedRow(JsonRecord):
    """One attack on one cell, as people saw it.

    Attributes:
        cell: Cell.
        attack: Attack.
        pairs: Guesses that at least one counted judge judged.
        judges: Counted judges who judged any of them.
        asr: Attack success rate: share of these guesses judged "same content", mean over judges per guess; in [0, 1].
        asr_low: Lower end of its 95 % interval; None where there is none.
        asr_high: Upper end.
        interval: How the interval was made: `wilson`, `bootstrap over pairs` or `none`.
        cannot_tell: Share judged "cannot tell", which does not count as success.
        returned: Examples that the attack returned a guess for.
        examples: Private examples of the cell.
        asr_of_examples: `asr` times `returned / examples`: an example without a guess is no success.
    """

    cell: str
    attack: str
    pairs: int
    judges: int
    asr: float
    asr_low: float | None
    asr_high: float | None
    interval: str
    cannot_tell: float
    returned: int
    examples: int
    asr_of_examples: float


class Judged(JsonRecord):
    """What `judgements.json` holds.

    Attributes:
        rows: One per attack and cell that was judged.
        judges: Everybody whose file was read.
        kappa: Agreement on the guesses: Cohen's kappa, its mean over pairs of judges; None: not defined.
        agreement: Share of guesses that two judges answered alike, mean over pairs of judges; None: one judge.
        flat_same: Share of mean-color squares that counted judges called "same content": what no recovery gets.
    """

    rows: list[JudgedRow]
    judges: list[Judge]
    kappa: float | None = None
    agreement: float | None = None
    flat_same: float | None = None


def open_judged(folder: Path) -> Judged | None:
    """Read what people judged of a run; None where nobody has.

    Raises:
        SeepageError: Where the file is damaged or of another schema version.
    """
    path = folder / FILE
    if not path.exists():
        return None
    record: dict[str, Any] = read_json(path)
    check_schema(record, path)
    rows = parse_all(JudgedRow, record.get("rows"), f"{path}")
    judges = parse_all(Judge, record.get("judges"), f"{path}")
    return parse(Judged, {**record, "rows": rows, "judges": judges}, f"{path}")
