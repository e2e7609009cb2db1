"""Run a recipe into a run folder. The only place that wires data, models, clients, attacks and metrics together.

RUN/  recipe.toml  env.json                fully resolved: `seepage audit RUN/recipe.toml` repeats the run
observed/[CELL/]                     all an attacker may read
private/[CELL/]                      the truth and what only the audit knows
attacks/[CELL/]ATTACK/000000.*       raw outcomes; a run resumes from what exists
reconstructions/[CELL/]ATTACK.*      aligned with the truth, for the report
progress.jsonl  scores.jsonl  flags.json  result.json
"""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from seepage.attacking import Source, attack_cells, own_source, threads_for
from seepage.errors import SeepageError
from seepage.named import bind
from seepage.recipe import Part, Recipe, Scoring, cells, make_attack, resolved, run_name
from seepage.recording import Show, quiet, record_cells
from seepage.settings import change
from seepage.storage import SCHEMA, check_schema, check_space, read_json, write_json, write_whole
from seepage.summary import summarize
from seepage.transcript import list_transcripts, open_transcript
from seepage.types import Architecture


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: The run folder.
        result: Content of `result.json`: verdict, rows, cells, thresholds.
        fresh: Whether it was computed now; False: it was found finished and left as it was.
    """

    folder: Path
    result: Mapping[str, Any]
    fresh: bool


def run(
    tables: Mapping[str, Any],
    *,
    out: Path | None = None,
    jobs: int | None = None,
    show: Show = quiet,
    command: str = "",
) -> Run:
    """Audit: record every cell of a recipe, run every attack on it, score, and write the run folder.

    Args:
        tables: A recipe's tables (see `recipe`).
        out: The run folder; None: `runs/NAME-HASH`. A finished run there is returned as it is, an unfinished one
            of the same recipe is gone on with.
        jobs: Attacks at a time; None: one per core.
        show: Progress.
        command: The command that asked for this, for the record.

    Raises:
        SeepageError: For mistakes in the recipe or the data, and where the folder holds another run.
    """
    recipes = cells(tables)
    text = resolved(tables, recipes)
    folder = out or Path("runs") / run_name(text, recipes[0].name)
    if (folder / "result.json").exists():
        return _finished(folder, text)
    started = time.time()
    _claim(folder, text)
    record_cells(recipes, folder, show)
    sources = [own_source(recipe, recipes, folder) for recipe in recipes]
    jobs = attack_cells(sources, recipes[0].attack, folder, recipes, jobs, show)
    write_json(folder / "env.json", environment(command, started, recipes[0].device, jobs))
    result = summarize(sources, recipes, folder, show)
    return Run(folder, result, fresh=True)


def _finished(folder: Path, text: str) -> Run:
    result = _read_result(folder)
    if (folder / "recipe.toml").exists() and (folder / "recipe.toml").read_text(encoding="utf-8") != text:
        raise SeepageError(f"{folder} holds a finished run of another recipe; choose another folder with --out")
    return Run(folder, result, fresh=False)


def _claim(folder: Path, text: str) -> None:
    """Make the folder this recipe's, or go on with it if it already is."""
    if folder.exists() and not folder.is_dir():
        raise SeepageError(f"{folder} is a file; choose another folder with --out")
    recipe = folder / "recipe.toml"
    if recipe.exists() and recipe.read_text(encoding="utf-8") != text:
        raise SeepageError(f"{folder} holds an unfinished run of another recipe; choose another folder with --out")
    if folder.exists() and not recipe.exists() and any(folder.iterdir()):
        raise SeepageError(f"{folder} is not empty and holds no run; choose another folder with --out")
    check_space(folder, 64 * 2**20)
    write_whole(recipe, text)


def environment(command: str, started: float, device: str, jobs: int) -> dict[str, Any]:
    """Where and how a run was made."""
    return {
        "schema": SCHEMA,
        "seepage": version("seepage"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "threads": threads_for(jobs, device),
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 1),
    }


# --- the parts by themselves -------------------------------------------------------------------------------------


def record_only(tables: Mapping[str, Any], *, out: Path | None = None, show: Show = quiet) -> Path:
    """Write `observed/` and `private/` of a recipe and nothing more; returns the folder."""
    recipes = cells(tables)
    text = resolved(tables, recipes)
    folder = out or Path("runs") / run_name(text, f"{recipes[0].name}-recorded")
    _claim(folder, text)
    record_cells(recipes, folder, show)
    return folder


def attack_only(
    observed: Path,
    attacks: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
    jobs: int | None = None,
    show: Show = quiet,
    command: str = "",
) -> Run:
    """Attack recorded updates, with no truth at hand.

    Args:
        observed: An `observed/` folder or one with several below it.
        attacks: Attack tables, each with `use` and options.
        model: Use this model instead of the recorded one.
        batch_size: Batch size, where the record has none.
        seed: Seeds the attacks.
        device: Where to attack.
        out: Run folder; None: `runs/attack-HASH`.
        jobs: Attacks at a time.
        show: Progress.
        command: The command, for the record.
    """
    started = time.time()
    asked = {
        "schema": SCHEMA,
        "observed": str(observed),
        "attacks": [dict(table) for table in attacks],
        "seed": seed,
        "model": model,
        "batch_size": batch_size,
    }
    parts = _parts(asked)
    for part in parts:
        make_attack(part.use, part.options)
    sources = _foreign_sources(asked)
    text = json.dumps(asked, indent=2) + "\n"
    folder = out or Path("runs") / run_name(text, "attack")
    if (folder / "result.json").exists():
        return Run(folder, _read_result(folder), fresh=False)
    for source in sources:
        source.open("cpu")[0]  # a damaged folder is refused before anything is written
    write_whole(folder / "attack.json", text)
    jobs = attack_cells(sources, parts, folder, None, jobs, show, seed=seed, device=device)
    write_json(folder / "env.json", environment(command, started, device, jobs))
    recipes = [Recipe(name="attack", seed=seed, attack=parts, cell=source.name) for source in sources]
    return Run(folder, summarize(sources, recipes, folder, show), fresh=True)


def _parts(asked: Mapping[str, Any]) -> tuple[Part, ...]:
    tables = [dict(table) for table in asked["attacks"]]
    return tuple(Part(str(table.pop("use")), table) for table in tables)


def _foreign_sources(asked: Mapping[str, Any], truth: Path | None = None) -> list[Source]:
    found = list_transcripts(Path(asked["observed"]))
    names = ["cell"] if len(found) == 1 else [folder.name for folder in found]
    architecture = None if asked["model"] is None else Architecture(asked["model"])
    return [
        Source(name, place, _truth_of(name, truth), architecture, asked["batch_size"])
        for name, place in zip(names, found, strict=True)
    ]


def _truth_of(name: str, truth: Path | None) -> Path | None:
    if truth is None or (truth / "truth.safetensors").exists():
        return truth
    return truth / name


def score_run(folder: Path, truth: Path | None, settings: Sequence[str]) -> Run:
    """Score a run of `attack_only` against the truth, or show an audit's scores.

    Args:
        folder: The run folder.
        truth: A `private/` folder, with one folder per cell where the run has several; None shows what is there.
        settings: `score.KEY=VALUE` thresholds.
    """
    result = _read_result(folder)
    if truth is None:
        if settings:
            raise SeepageError("--set changes thresholds only together with --truth FOLDER; add it")
        return Run(folder, result, fresh=False)
    if not (folder / "attack.json").exists():
        raise SeepageError(f"{folder} is a finished audit and is never rewritten; audit again with other --set score.…")
    asked = read_json(folder / "attack.json")
    check_schema(asked, folder / "attack.json")
    chosen = change({}, settings).get("score", {})
    bind(Scoring, chosen, "[score]")
    scoring, parts = Scoring(**chosen), _parts(asked)
    sources = _foreign_sources(asked, truth)
    recipes = [Recipe(name="attack", attack=parts, cell=source.name, score=scoring) for source in sources]
    return Run(folder, summarize(sources, recipes, folder), fresh=True)


def _read_result(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = read_json(folder / "result.json")
    check_schema(result, folder / "result.json")
    return result


def validate_folder(folder: Path) -> list[str]:
    """Open every transcript at or below a folder and read all its rounds; a line for each."""
    lines = []
    for place in list_transcripts(folder):
        transcript = open_transcript(place)
        for t in range(len(transcript)):
            transcript[t]
        use = transcript.knowledge.architecture.use if transcript.knowledge.architecture else "?"
        lines.append(f"ok: {place}: {len(transcript)} rounds of {use}, inputs {transcript.knowledge.input_shape}")
    return lines
