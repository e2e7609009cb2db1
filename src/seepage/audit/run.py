"""Run a recipe into a run folder. The only place that wires data, models, clients, attacks and metrics together.

RUN/  recipe.toml  env.json                fully resolved: `seepage audit RUN/recipe.toml` repeats the run
observed/[CASE/]                     all an attacker may read
private/[CASE/]                      the truth and what only the audit knows
attacks/[CASE/]ATTACK/000000.*       raw outcomes; a run resumes from what exists
reconstructions/[CASE/]ATTACK.*      aligned with the truth, for the report
steps.json                           of a run that repeats another: how many steps its stopped searches made
progress.jsonl  scores.jsonl  flags.json  exposure.json  result.json
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seepage.audit.attack import attack_cases, own_source, ready_for
from seepage.audit.bounded import bound_cases
from seepage.audit.folder import (
    MIN_FREE_BYTES,
    Run,
    check_device,
    claim,
    read_result,
    take,
    undone_on_mistake,
    write_environment,
)
from seepage.audit.measured import measure_cases
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.contents import run_text
from seepage.audit.recipe.places import kind_of
from seepage.audit.recipe.resolve import resolve_cases, run_name
from seepage.audit.record import record_cases
from seepage.audit.retry import REPEATED, failures, forget_failures, reopened, stopped_steps, unfinished
from seepage.audit.summary import looks_of, summarize
from seepage.base.clock import check_minutes, deadline
from seepage.base.executor import Executor
from seepage.base.lock import locked
from seepage.base.progress import ProgressCallback, no_progress
from seepage.base.storage import check_space, read_json, write_json
from seepage.measure.privacy.accounting import check_installed


def run(
    tables: Mapping[str, Any],
    *,
    out: Path | None = None,
    jobs: int | None = None,
    on: Executor | None = None,
    show: ProgressCallback = no_progress,
    command: str = "",
    retry_failed: bool = False,
    minutes: float | None = None,
    began: float | None = None,
    repeats: Path | None = None,
    reuse: bool = True,
) -> Run:
    """Audit: record every case of a recipe, run every attack on it, score, and write the run folder.

    Args:
        tables: A recipe's tables (see `recipe`).
        out: The run folder; None: `runs/NAME-HASH`. A finished run of the same recipe there is returned unchanged,
            an unfinished one is continued; so is one whose searches the clock has stopped, where `minutes` are given.
        jobs: Number of attacks that run in parallel; None: one per core.
        on: Executor that runs the attacks, such as `seepage.recorder.ray.cluster()`; None: on this machine.
        show: Called with progress messages.
        command: The command line, stored with the run.
        retry_failed: Whether what failed in a finished run is run again.
        minutes: What all of it may take, from `began`: what still searches then is stopped with its best guess. None:
            no limit.
        began: When the command began, by `time.monotonic`; None: now.
        repeats: The folder of a run of the same recipe: searches that its clock stopped make as many steps here, so
            that they give the same bits. None: there is none.
        reuse: Whether a run in the folder that this user's seepage did not make is returned, or resumed.

    Raises:
        SeepageError: For mistakes in the recipe or the data, and where the folder holds another run.
    """
    check_minutes(minutes)
    until, goes_on = deadline(minutes, began), minutes is not None
    recipes = resolve_cases(tables, controls=True)
    text = run_text(tables, recipes)
    folder = out or Path("runs") / run_name(text, _name_of(recipes[0]))
    finished = claim(folder, "recipe.toml", text, reuse=reuse)
    if finished and not ((retry_failed and failures(folder)) or (goes_on and unfinished(folder))):
        return Run(folder, read_result(folder), fresh=False)
    for device in {recipe.device for recipe in recipes}:
        check_device(device)
    if any(recipe.epsilon is not None for recipe in recipes):
        check_installed()
    started = time.time()
    check_space(folder, MIN_FREE_BYTES)
    with locked(folder) as made:
        finished = claim(folder, "recipe.toml", text, sweeps=True, reuse=reuse)  # by another process, meanwhile
        if finished and not ((retry_failed and forget_failures(folder)) or (goes_on and reopened(folder))):
            return Run(folder, read_result(folder), fresh=False)
        resumed = (folder / "observed").exists()
        with undone_on_mistake(made):
            take(folder, "recipe.toml", text)
            if repeats is not None and not resumed and repeats.resolve() != folder.resolve():
                made_there = stopped_steps(repeats)
                if made_there:
                    write_json(folder / REPEATED, made_there)
        with ready_for(recipes, folder, jobs, on) as workers:
            with undone_on_mistake(made):
                record_cases(recipes, folder, show)
            sources = [own_source(recipe, recipes, folder) for recipe in recipes]
            looks = looks_of(sources, show)
            repeated = read_json(folder / REPEATED) if (folder / REPEATED).exists() else None
            plan = attack_cases(sources, folder, jobs, show, on=workers, until=until, repeated=repeated)
        bound_cases(sources, show)
        measure_cases(sources, folder, show)
        # Of a run that was killed nobody knows what it took.
        more = {"resumed": True} if resumed and not (folder / "env.json").exists() else {}
        write_environment(folder, command, started, recipes[0].device, plan.jobs, threads=plan.threads, **more)
        return Run(folder, summarize(sources, folder, show, looks=looks), fresh=True)


def record_only(tables: Mapping[str, Any], *, out: Path | None = None, show: ProgressCallback = no_progress) -> Path:
    """Write `observed/` and `private/` of a recipe and nothing more; returns the folder."""
    recipes = resolve_cases(tables)
    text = run_text(tables, recipes)
    folder = out or Path("runs") / run_name(text, f"{_name_of(recipes[0])}-recorded")
    claim(folder, "recipe.toml", text)
    for device in {recipe.device for recipe in recipes}:
        check_device(device)
    check_space(folder, MIN_FREE_BYTES)
    with locked(folder) as made:
        claim(folder, "recipe.toml", text, sweeps=True)
        with undone_on_mistake(made):
            take(folder, "recipe.toml", text)
            record_cases(recipes, folder, show)
    return folder


def _name_of(recipe: Recipe) -> str:
    """The name of a run: that of its recipe, and the data set where it is not the packaged album."""
    data = recipe.data.use
    return (
        recipe.name if data == "album" else f"{recipe.name}-{Path(data).stem if recipe.score.names else kind_of(data)}"
    )
