"""`judgements.json`: what people, or a machine in their place, said of a run's guesses."""

from pathlib import Path
from typing import Any

from seepage.base.schema import JsonRecord, parse, parse_all
from seepage.base.storage import check_schema, read_json

FILE = "judgements.json"


class Judge(JsonRecord):
    """One person.

    Attributes:
        name: Name or initials.
        guesses: Number of judged guesses.
        controls: Number of judged control pairs, whose right answer is known.
        missed: Number of control pairs answered wrongly, "cannot tell" included.
        left_out: Why this judge is excluded; None: the judge is counted.
    """

    name: str
    guesses: int
    controls: int
    missed: int
    left_out: str | None = None


class JudgedRow(JsonRecord):
    """Human judgments of one attack on one case.

    Attributes:
        case: Case.
        attack: Attack.
        pairs: Number of guesses that at least one counted judge judged.
        judges: Number of counted judges who judged any of them.
        asr: Attack success rate: share of these guesses judged "same content", mean over judges per guess; in [0, 1].
        asr_low: Lower end of its 95 % interval; None where there is none.
        asr_high: Upper end.
        interval: How the interval was made: `clopper-pearson`, `bootstrap over pairs` or `none`.
        cannot_tell: Share judged "cannot tell", which does not count as success.
        returned: Number of examples for which the attack returned a guess.
        examples: Number of private examples of the case.
        asr_of_examples: `asr` times `returned / examples`, so that an example without a guess counts as failure.
    """

    case: str
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


class JudgedStudy(JsonRecord):
    """The content of `judgements.json`.

    Attributes:
        rows: One per attack and case that was judged.
        judges: All judges whose files were read.
        kappa: Agreement on the guesses: Cohen's kappa, its mean over pairs of judges; None: not defined.
        agreement: Share of guesses that two judges answered alike, mean over pairs of judges; None: one judge.
        flat_same: Share of mean-color squares that counted judges called "same content": the rate without recovery.
        machine: The rule of the machine that judged; None: people did.
    """

    rows: list[JudgedRow]
    judges: list[Judge]
    kappa: float | None = None
    agreement: float | None = None
    flat_same: float | None = None
    machine: str | None = None


def open_judged(folder: Path) -> JudgedStudy | None:
    """Read the judgments of a run; None where there are none.

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
    return parse(JudgedStudy, {**record, "rows": rows, "judges": judges}, f"{path}")
