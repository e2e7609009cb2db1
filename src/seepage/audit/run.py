"""Run a recipe into a run folder. The only place that wires data, models, clients, attacks and metrics together.

RUN/  recipe.toml  env.json                fully resolved: `seepage audit RUN/recipe.toml` repeats the run
observed/[CASE/]                     all an attacker may read
private/[CASE/]                      the truth and what only the audit knows
attacks/[CASE/]ATTACK/000000.*       raw outcomes; a run resumes from what exists
reconstructions/[CASE/]ATTACK.*      aligned with the truth, for the report
plan.json                            with minutes: what of the attacks was cut to fit
tune/                                with [tune]: a run of its own, on batches that are not scored
progress.jsonl  scores.jsonl  flags.json  exposure.json  result.json
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seepage.audit.attack import attack_cases, own_source, ready_for
from seepage.audit.bounded import bound_cases
from seepage.audit.budget import read_budget, write_budget
from seepage.audit.case import RunBudget
from seepage.audit.folder import (
    MIN_FREE_BYTES,
    Run,
    check_device,
    claim,
    environment,
    read_result,
    take,
    undone_on_mistake,
)
from seepage.audit.measured import measure_cases
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.contents import run_text
from seepage.audit.recipe.places import kind_of
from seepage.audit.recipe.resolve import resolve_cases, run_name
from seepage.audit.record import record_cases
from seepage.audit.retry import failures, forget_failures
from seepage.audit.row import TunedRow
from seepage.audit.summary import summarize
from seepage.audit.tune import TUNING, chosen_options, tuning_tables, with_options
from seepage.base.executor import Executor
from seepage.base.lock import locked
from seepage.base.progress import ProgressCallback, no_progress
from seepage.base.storage import check_space, write_json
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
    budget: RunBudget | None = None,
    reuse: bool = True,
) -> Run:
    """Audit: record every case of a recipe, run every attack on it, score, and write the run folder.

    Args:
        tables: A recipe's tables (see `recipe`).
        out: The run folder; None: `runs/NAME-HASH`. A finished run of the same recipe there is returned unchanged,
            an unfinished one is continued.
        jobs: Number of attacks that run in parallel; None: one per core.
        on: Executor that runs the attacks, such as `seepage.recorder.ray.cluster()`; None: on this machine.
        show: Called with progress messages.
        command: The command line, stored with the run.
        retry_failed: Whether what failed in a finished run is run again.
        budget: The plan of an earlier run of the same recipe, to keep to; None: one is made where minutes are given.
        reuse: Whether a run in the folder that this user's seepage did not make is returned, or resumed.

    Raises:
        SeepageError: For mistakes in the recipe or the data, and where the folder holds another run.
    """
    recipes = resolve_cases(tables, controls=True)
    text = run_text(tables, recipes)
    folder = out or Path("runs") / run_name(text, _name_of(recipes[0]))
    if claim(folder, "recipe.toml", text, reuse=reuse) and not (retry_failed and failures(folder)):
        return Run(folder, read_result(folder), fresh=False)
    sweep_tables = None if recipes[0].tune is None else tuning_tables(tables, recipes)
    if sweep_tables is not None:
        resolve_cases(sweep_tables)  # a value that an attack does not take is reported before anything is written
    for device in {recipe.device for recipe in recipes}:
        check_device(device)
    if any(recipe.epsilon is not None for recipe in recipes):
        check_installed()
    started = time.time()
    check_space(folder, MIN_FREE_BYTES)
    with locked(folder) as made:
        finished = claim(folder, "recipe.toml", text, sweeps=True, reuse=reuse)  # by another process, meanwhile
        if finished and not (retry_failed and forget_failures(folder)):
            return Run(folder, read_result(folder), fresh=False)
        resumed = (folder / "observed").exists()
        with undone_on_mistake(made):
            take(folder, "recipe.toml", text)
            if budget is not None and budget.minutes == recipes[0].minutes and read_budget(folder) is None:
                write_budget(folder, budget)
            tuned: list[TunedRow] = []
            if sweep_tables is not None:
                tried = run(
                    sweep_tables, out=folder / TUNING, jobs=jobs, on=on, show=show, command=command, reuse=reuse
                )
                tuned = chosen_options(tables, recipes, tried.result)
                recipes = resolve_cases(with_options(tables, tuned), controls=True)
        with ready_for(recipes, folder, jobs, on) as workers:
            with undone_on_mistake(made):
                record_cases(recipes, folder, show)
            sources = [own_source(recipe, recipes, folder) for recipe in recipes]
            plan = attack_cases(sources, recipes, folder, jobs, show, on=workers)
        bound_cases(sources, recipes, show)
        measure_cases(sources, recipes, folder, show)
        found = environment(command, started, recipes[0].device, plan.jobs)
        write_json(folder / "env.json", found | {"threads": plan.threads} | ({"resumed": True} if resumed else {}))
        return Run(folder, summarize(sources, recipes, folder, show, tuned), fresh=True)


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
