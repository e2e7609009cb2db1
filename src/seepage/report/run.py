"""Read a run folder. It may come from a third party, so everything is validated; unknown keys are ignored."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from seepage.audit.recipe.places import asks_for_names, paths_in, shown_command
from seepage.audit.row import Result
from seepage.base.manifest import JudgedFile
from seepage.base.schema import Finding, JsonRecord, parse, parse_all
from seepage.base.storage import check_regular, check_schema, each_line, read_json, refuse_links
from seepage.base.toml import LARGEST, load_toml
from seepage.errors import SeepageError

MOST_SCORES = 2_000_000
"""Scores that are kept of `scores.jsonl`, some 400 MB of memory."""

SHOWN = ("psnr", "ssim", "likeness")
"""Metrics of single examples that the page shows."""


class Environment(JsonRecord):
    """Versions, platform and command of the run, and the files that it attacked where they lie outside of it.

    Of a run that was interrupted and `resumed`, `started` and `seconds` are those of its last part.
    """

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
    resumed: bool = False
    files: list[JudgedFile] = []


class ExampleScore(JsonRecord):
    """The value of one metric for one private example."""

    case: str
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
        scores: `(case, attack, round, example, metric)` to its value, for the metrics in `SHOWN`.
    """

    folder: Path
    result: Result
    flags: list[Finding]
    env: Environment
    recipe: str | None
    scores: Mapping[tuple[str, str, int, int, str], float | None]

    @property
    def name(self) -> str:
        """The folder's name without its path, which would reveal details of the machine."""
        return self.folder.resolve().name

    @property
    def scored(self) -> bool:
        """Whether any attack of this run was scored against a truth."""
        return any(row.scored for row in self.result.rows)

    @property
    def has_truth(self) -> bool:
        """Whether the private examples are at hand: what is scored without an attack was scored against them."""
        return self.scored or any(case.baselines for case in self.result.cases)

    @cached_property
    def attacks(self) -> list[str]:
        """Names of the attacks, in row order."""
        return list(dict.fromkeys(row.attack for row in self.result.rows))

    @cached_property
    def tables(self) -> Mapping[str, Any]:
        """The recipe's tables; none where it has no recipe, or one that cannot be read."""
        try:
            return load_toml(self.recipe or "")
        except tomllib.TOMLDecodeError:
            return {}

    @property
    def shown_command(self) -> str | None:
        """The command, without the places of private data unless the recipe asks for names."""
        if self.env.command is None or asks_for_names(self.tables):
            return self.env.command
        return shown_command(self.env.command, paths_in(self.tables))

    @property
    def seed(self) -> Any:
        """The seed that the recipe names, or None."""
        return self.tables.get("seed")


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
        flags=parse_all(Finding, flags.get("flags"), f"{folder / 'flags.json'}"),
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
    check_regular(path, LARGEST)
    try:
        return path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise SeepageError(f"cannot read {path} ({error}); copy it again") from error


def _scores(path: Path) -> dict[tuple[str, str, int, int, str], float | None]:
    """Those scores that the page shows: files of others can hold any number of lines and of metrics."""
    found: dict[tuple[str, str, int, int, str], float | None] = {}
    words: dict[str, str] = {}  # each once, as every line brings its own copy of them
    for record in each_line(path):
        line = parse(ExampleScore, record, f"{path}")
        if line.metric not in SHOWN:
            continue
        case, attack, metric = (words.setdefault(word, word) for word in (line.case, line.attack, line.metric))
        found[case, attack, line.round, line.example, metric] = line.value
        if len(found) > MOST_SCORES:
            raise SeepageError(f"{path} has more than {MOST_SCORES} scores, which no run has; make the run again")
    return found
