"""Run a frontier: an audit of all defenses, then federated trainings that measure their cost in accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seepage.audit import run as audit
from seepage.audit.recipe.contents import run_text
from seepage.audit.recipe.places import kind_of
from seepage.audit.recipe.resolve import resolve_cases, run_name
from seepage.base.executor import Executor, LocalExecutor
from seepage.base.progress import ProgressCallback, no_progress
from seepage.base.registry import Spec
from seepage.base.storage import write_lines
from seepage.report.frontier.advising import advice
from seepage.report.frontier.page import write_page
from seepage.report.frontier.rows import DefenseRow, rows_of
from seepage.report.frontier.sweep import sweep_of
from seepage.report.frontier.utility import measure_all


@dataclass(frozen=True)
class Frontier:
    """A finished frontier.

    Attributes:
        folder: The run folder.
        rows: One for each defense and kind of attacker.
        advice: A few sentences.
    """

    folder: Path
    rows: tuple[DefenseRow, ...]
    advice: str


def run_frontier(
    tables: Mapping[str, Any],
    *,
    only: Sequence[Spec] = (),
    out: Path | None = None,
    jobs: int | None = None,
    on: Executor | None = None,
    show: ProgressCallback = no_progress,
    command: str = "",
) -> Frontier:
    """Sweep defenses and write the run folder. An interrupted run continues where it stopped.

    Args:
        tables: A recipe's tables (see `sweep`).
        only: The defenses to run (see `sweep_of`); empty: all that the recipe sweeps.
        out: The run folder; None: `runs/NAME-HASH`.
        jobs: Number of attacks or trainings that run in parallel; None: one per core.
        on: Executor that runs attacks and trainings; None: on this machine.
        show: Called with progress messages.
        command: The command line, stored with the run.

    Raises:
        SeepageError: For mistakes in the recipe or the data, and where the folder holds another run.
    """
    sweep = sweep_of(tables, only)
    plain = sweep.entries[0].recipe
    text = run_text(sweep.tables, resolve_cases(sweep.tables))
    folder = out or Path("runs") / run_name(text, f"{plain.name}-{kind_of(plain.data.use)}")
    finished = audit.run(sweep.tables, out=folder, jobs=jobs, on=on, show=show, command=command)
    prices = measure_all(sweep.entries, sweep.utility, folder, jobs, show, on or LocalExecutor())
    result = finished.result
    facts = next(case for case in result.cases if not case.skipped)  # the first that could be recorded
    rows = rows_of(sweep.entries, prices, result)
    words = advice(rows, classes=len(facts.classes))
    write_lines(folder / "frontier.jsonl", [row.record() for row in rows])
    write_page(folder, rows, words, facts, sweep.utility.rounds)
    return Frontier(folder, tuple(rows), words)
