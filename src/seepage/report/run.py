"""A run folder, read with suspicion: it may come from somebody else, and unknown keys are passed over."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from seepage.core.storage import check_regular, check_schema, read_json, read_lines, refuse_links
from seepage.errors import SeepageError

LARGEST_RECIPE = 2**24
"""Bytes of `recipe.toml`."""

Number = float | None
T = TypeVar("T")


@dataclass(frozen=True)
class Baseline:
    """What a guess scores that never saw the update."""

    psnr: Number = None
    ssim: Number = None


@dataclass(frozen=True)
class Rounds:
    """Rounds that draw their batches from one data set."""

    count: int
    samples: int


@dataclass(frozen=True)
class Cell:
    """What one client did; the fields are the keys of `result.json`."""

    name: str
    title: str = ""
    model: str | None = None
    model_options: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    batch_size: int | None = None
    batches: int | None = None
    training_steps: int | None = None
    history: str | None = None
    accuracy: Number = None
    accuracy_examples: int | None = None
    defense: str | None = None
    client: str | None = None
    classes: list[Any] = field(default_factory=list)
    baselines: dict[str, Any] | None = None
    parameters: int | None = None
    rounds: dict[str, Any] | None = None
    federation: dict[str, Any] | None = None
    inferred: dict[str, Any] | None = None
    promise: dict[str, Any] | None = None
    skipped: str | None = None

    @property
    def heading(self) -> str:
        """The title, or the name where there is none."""
        return self.title or self.name

    @property
    def drawn(self) -> Rounds | None:
        """How the batches were drawn, where they were drawn from one data set."""
        return None if self.rounds is None else parse(Rounds, self.rounds, f"the rounds of cell {self.name!r}")

    def baseline(self, name: str) -> Baseline:
        """One baseline; empty where it was not measured."""
        found = (self.baselines or {}).get(name)
        return Baseline() if found is None else parse(Baseline, found, f"the baselines of cell {self.name!r}")


@dataclass(frozen=True)
class Row:
    """One attack on one cell; the fields are the keys of `result.json`."""

    cell: str
    attack: str
    outcome: str
    status: str = "ok"
    options: str = ""
    reason: str | None = None
    told: list[Any] = field(default_factory=list)
    told_extra: list[Any] = field(default_factory=list)
    examples: int | None = None
    recovered: Number = None
    exact: Number = None
    psnr: Number = None
    psnr_median: Number = None
    psnr_low: Number = None
    psnr_high: Number = None
    ssim: Number = None
    gain_db: Number = None
    label_accuracy: Number = None
    alignment: str | None = None
    seconds: Number = None
    steps: Number = None
    evaluations: Number = None
    objective: Number = None
    objective_at_truth: Number = None
    vouched: int | None = None
    notes: list[Any] = field(default_factory=list)

    @property
    def applies(self) -> bool:
        """Whether the attack could be tried at all."""
        return self.status != "inapplicable"

    @property
    def scored(self) -> bool:
        """Whether there is a truth that the attack was measured against."""
        return self.psnr is not None or self.recovered is not None

    @property
    def nothing_recovered(self) -> bool:
        """Whether the guesses are no closer than a flat color."""
        return self.outcome == "nothing recovered"


@dataclass(frozen=True)
class Caution:
    """One diagnostic."""

    name: str
    severity: str
    message: str
    cell: str | None = None
    attack: str | None = None


@dataclass(frozen=True)
class Thresholds:
    """From where on an example counts as recovered, or as exact."""

    recovered_ssim: float = 0.6
    recovered_gain_db: float = 3.0
    exact_db: float = 40.0


@dataclass(frozen=True)
class Environment:
    """How the run was made."""

    seepage: str | None = None
    python: str | None = None
    torch: str | None = None
    platform: str | None = None
    device: str | None = None
    threads: int | None = None
    jobs: int | None = None
    command: str | None = None
    started: str | None = None
    seconds: Number = None


@dataclass(frozen=True)
class ExampleScore:
    """One number about one private example."""

    cell: str
    attack: str
    round: int
    example: int
    metric: str
    value: Number = None


@dataclass(frozen=True)
class Run:
    """Everything a report needs, except the pictures.

    Attributes:
        folder: The run folder.
        verdict: One paragraph.
        level: `exact`, `recognizable`, `traces`, `nothing`, or another word where nothing could be scored.
        cells: What the clients did.
        rows: One per attack and cell, cheapest attack first.
        thresholds: Meaning of "recovered" and "exact".
        flags: Diagnostics.
        env: How the run was made.
        recipe: Text of `recipe.toml`; None where the run has none.
        scores: `(cell, attack, round, example, metric)` to its value.
    """

    folder: Path
    verdict: str
    level: str
    cells: list[Cell]
    rows: list[Row]
    thresholds: Thresholds
    flags: list[Caution]
    env: Environment
    recipe: str | None
    scores: Mapping[tuple[str, str, int, int, str], Number]

    @property
    def name(self) -> str:
        """The folder's name: a full path would tell strangers about somebody's machine."""
        return self.folder.resolve().name

    @property
    def scored(self) -> bool:
        """Whether any number in this run was measured against a truth."""
        return any(row.scored for row in self.rows)

    @cached_property
    def attacks(self) -> list[str]:
        """Names of the attacks, in row order."""
        return list(dict.fromkeys(row.attack for row in self.rows))

    def rows_of(self, cell: Cell) -> list[Row]:
        """The rows of one cell, in order."""
        return [row for row in self.rows if row.cell == cell.name]

    @property
    def seed(self) -> Any:
        """The seed that the recipe names, or None."""
        try:
            return tomllib.loads(self.recipe or "").get("seed")
        except (tomllib.TOMLDecodeError, RecursionError):
            return None


def open_run(folder: Path) -> Run:
    """Read a finished run.

    Raises:
        SeepageError: Where a file is missing, damaged, or of another schema version.
    """
    refuse_links(folder)
    result = _checked(folder / "result.json")
    flags = _checked(folder / "flags.json")
    env = _checked(folder / "env.json")
    where = f"{folder / 'result.json'}"
    return Run(
        folder=folder,
        verdict=str(result.get("verdict", "")),
        level=str(result.get("verdict_level", "")),
        cells=parse_all(Cell, result.get("cells"), where),
        rows=parse_all(Row, result.get("rows"), where),
        thresholds=parse(Thresholds, result.get("thresholds") or {}, where),
        flags=parse_all(Caution, flags.get("flags"), f"{folder / 'flags.json'}"),
        env=parse(Environment, env, f"{folder / 'env.json'}"),
        recipe=_recipe(folder / "recipe.toml"),
        scores=_scores(folder / "scores.jsonl"),
    )


def _checked(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        raise SeepageError(
            f"{path.parent} has no {path.name}, so it is no finished run; name a folder that seepage audit finished"
        )
    record: Mapping[str, Any] = read_json(path)
    check_schema(record, path)
    return record


def _recipe(path: Path) -> str | None:
    check_regular(path, LARGEST_RECIPE)
    try:
        return path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise SeepageError(f"cannot read {path} ({error}); copy it again") from error


def _scores(path: Path) -> dict[tuple[str, str, int, int, str], Number]:
    lines = [parse(ExampleScore, line, f"{path}") for line in read_lines(path)]
    return {(line.cell, line.attack, line.round, line.example, line.metric): line.value for line in lines}


def parse_all(kind: type[T], records: object, where: str) -> list[T]:
    """A list of dataclasses from JSON; see `parse`."""
    if not isinstance(records, list):
        raise SeepageError(f"{where} is damaged: it must hold a list of {kind.__name__.lower()}s; make the run again")
    return [parse(kind, record, where) for record in records]


def parse(kind: type[T], record: object, where: str) -> T:
    """A dataclass from JSON, each field checked against its annotation. Unknown keys are passed over.

    Args:
        kind: The dataclass.
        record: What was read.
        where: The file, for the message.

    Raises:
        SeepageError: Where a field is missing or is not what it must be.

    >>> parse(Baseline, {"psnr": 17, "newer": 1}, "here")
    Baseline(psnr=17, ssim=None)
    """
    if not isinstance(record, Mapping):
        raise SeepageError(f"{where} is damaged: {record!r:.40} is no table; make the run again")
    found = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name not in record:
            if item.default is MISSING and item.default_factory is MISSING:
                raise SeepageError(f"{where} is damaged: an entry lacks {item.name!r}; make the run again")
            continue
        if not _fits(record[item.name], item.type):
            raise SeepageError(
                f"{where} is damaged: {item.name!r} cannot be {record[item.name]!r:.40}; make the run again"
            )
        found[item.name] = record[item.name]
    return kind(**found)


def _fits(value: object, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_fits(value, part) for part in get_args(kind))
    if kind in (float, int):
        return isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind)
