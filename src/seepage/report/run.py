"""Read a run folder. It may come from a third party, so everything is validated; unknown keys are ignored."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from seepage.audit.row import Cell, Diagnostic, Result, Row
from seepage.core.schema import JsonRecord, parse, parse_all
from seepage.core.storage import check_regular, check_schema, read_json, read_lines, refuse_links
from seepage.errors import SeepageError

LARGEST_RECIPE = 2**24
"""Largest accepted size of `recipe.toml`, in bytes."""


class Environment(JsonRecord):
    """Versions, platform and command of the run."""

    seepage: str | None = None
    python: str | None = None
    torch: str | None = None
    platform: str | None = None
    device: str | None = None
    threads: int | None = None
    jobs: int | None = None
    command: str | None = None
    started: str | None = None
    seconds: float | None = None


class ExampleScore(JsonRecord):
    """The value of one metric for one private example."""

    cell: str
    attack: str
    round: int
    example: int
    metric: str
    value: float | None = None


@dataclass(frozen=True)
class RunFolder:
    """Everything a report needs, except the pictures.

    Attributes:
        folder: The run folder.
        result: The content of `result.json`.
        flags: Diagnostics.
        env: Versions, platform and command of the run.
        recipe: Text of `recipe.toml`; None where the run has none.
        scores: `(cell, attack, round, example, metric)` to its value.
    """

    folder: Path
    result: Result
    flags: list[Diagnostic]
    env: Environment
    recipe: str | None
    scores: Mapping[tuple[str, str, int, int, str], float | None]

    @property
    def name(self) -> str:
        """The folder's name without its path, which would reveal details of the machine."""
        return self.folder.resolve().name

    @property
    def cells(self) -> list[Cell]:
        """The settings of the clients."""
        return self.result.cells

    @property
    def rows(self) -> list[Row]:
        """One per attack and cell, in the recipe's order of attacks."""
        return self.result.rows

    @property
    def scored(self) -> bool:
        """Whether any attack of this run was scored against a truth."""
        return any(row.scored for row in self.rows)

    @property
    def has_truth(self) -> bool:
        """Whether the private examples are at hand: what is scored without an attack was scored against them."""
        return self.scored or any(cell.baselines for cell in self.cells)

    @cached_property
    def attacks(self) -> list[str]:
        """Names of the attacks, in row order."""
        return list(dict.fromkeys(row.attack for row in self.rows))

    def rows_of(self, cell: Cell) -> list[Row]:
        """The rows of one cell, in order."""
        return self.result.rows_of(cell)

    @property
    def seed(self) -> Any:
        """The seed that the recipe names, or None."""
        try:
            return tomllib.loads(self.recipe or "").get("seed")
        except (tomllib.TOMLDecodeError, RecursionError):
            return None


def open_run(folder: Path) -> RunFolder:
    """Read a finished run.

    Raises:
        SeepageError: Where a file is missing, damaged, or of another schema version.
    """
    refuse_links(folder)
    result = _checked(folder / "result.json")
    flags = _checked(folder / "flags.json")
    env = _checked(folder / "env.json")
    return RunFolder(
        folder=folder,
        result=parse(Result, result, f"{folder / 'result.json'}"),
        flags=parse_all(Diagnostic, flags.get("flags"), f"{folder / 'flags.json'}"),
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


def _scores(path: Path) -> dict[tuple[str, str, int, int, str], float | None]:
    lines = [parse(ExampleScore, line, f"{path}") for line in read_lines(path)]
    return {(line.cell, line.attack, line.round, line.example, line.metric): line.value for line in lines}
