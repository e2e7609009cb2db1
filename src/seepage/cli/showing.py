"""What several commands do with a finished run: its pages, its table in the terminal or as JSON, its gate."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seepage.errors import SeepageError, printable, say

if TYPE_CHECKING:
    from seepage.audit.folder import Run
    from seepage.audit.gate import Condition
    from seepage.audit.row import Result
    from seepage.base.progress import ProgressCallback
    from seepage.cli.options import ShowOptions
    from seepage.cli.stored import Stored


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["seepage", *sys.argv[1:]])


def write_pages(folder: Path, show: "ProgressCallback", *, again: bool, pictures: bool | None = None) -> None:
    """Pictures first, the report last; a run that has both is left as it is.

    Args:
        folder: The run folder.
        show: Progress.
        again: Write them although they are there.
        pictures: Whether the pages may show any, now and whenever they are written again; without, the report is
            written anew and `grid.png` goes. None: as the run remembers, with pictures where nobody said otherwise.
    """
    from seepage.base.lock import held
    from seepage.base.manifest import renew
    from seepage.base.progress import Doing, Phase
    from seepage.report import write_grid, write_report
    from seepage.report.picture_choice import keep_choice, shows_pictures
    from seepage.report.run import open_run

    if pictures is None and not again and shows_pictures(folder) and (folder / "report.html").exists():
        return
    run = open_run(folder)  # what is refused is refused before anything is written, the lock too
    with held(folder):
        if pictures is not None:
            keep_choice(folder, pictures=pictures)
        show(0.99, 1, Doing("the report", Phase.WRITING))
        if shows_pictures(folder):
            write_grid(run)
        else:
            (folder / "grid.png").unlink(missing_ok=True)
            renew(folder, ["grid.png"])
        write_report(run)


def present(finished: "Run", shown: "ShowOptions", *, note_old: bool = True, stored: "Stored | None" = None) -> None:
    """Print a finished run, and that it was finished earlier where that is so; `stored` rows stand below its own."""
    from seepage.base.storage import read_json
    from seepage.cli.stored import Stored
    from seepage.cli.terminal import print_result
    from seepage.report.run import open_run

    folder = finished.folder
    if not finished.fresh:
        open_run(folder)  # it may be somebody else's, and damaged
    if shown.as_json:
        found = {**read_json(folder / "result.json"), "run": str(folder), "finished_earlier": not finished.fresh}
        print(json.dumps(found, allow_nan=False))
    else:
        note_old = note_old and not finished.fresh
        print_result(
            folder,
            finished.result,
            quiet=shown.quiet,
            note_old=note_old,
            details=shown.details,
            stored=stored or Stored(),
        )


def condition_of(text: str | None, tables: Mapping[str, Any]) -> "Condition | None":
    """What `--fail-if` says, of any metric that a recipe's tables have measured; None where it says nothing.

    Raises:
        SeepageError: Where it is no condition or names no score.
    """
    if text is None:
        return None
    from seepage.audit.gate import parse_condition
    from seepage.measure.metrics import METRICS

    scoring = tables.get("score")
    asked = scoring.get("metrics", ()) if isinstance(scoring, Mapping) else ()
    own = [str(use).rpartition(":")[2] for use in asked] if isinstance(asked, list | tuple) else []
    return parse_condition(text, (*METRICS, *own))


def check_asked(condition: "Condition | None", tables: Mapping[str, Any]) -> None:
    """Raise where a gate's score is of a part of the verdict that the recipe's tables do not ask for."""
    from seepage.audit.gate import REMEDIES

    cases = tables.get("case")
    asked = [tables, *(case for case in cases if isinstance(case, Mapping))] if isinstance(cases, list) else [tables]
    for kind, (scores, remedy) in REMEDIES.items():
        table = "bounds" if kind == "bound" else kind
        if condition is not None and condition.score in scores and not any(table in one for one in asked):
            raise SeepageError(f"--fail-if {condition} needs what was not asked for; {remedy}")


def gate_on(result: "Result", condition: "Condition | None", *, silent: bool) -> None:
    """End with exit code 1 where a row meets the condition of `--fail-if`; else say that none does, unless silent."""
    from seepage.audit.gate import met

    if condition is None:
        return
    titles, stated = result.titles, met(result, condition)
    if stated:
        worst = "; ".join(f"{one.name} on {titles[one.case]}: {condition.score} {one.value:g}" for one in stated[:3])
        worst += f"; and {len(stated) - 3} more" * (len(stated) > 3)
        rows = "1 row has" if len(stated) == 1 else f"{len(stated)} rows have"
        say(f"failed: {rows} {condition}: {printable(worst)}")
        raise typer.Exit(1)
    if not silent:
        left = ", as far as anything could be scored: the gate is undecided" if result.is_open else ""
        say(f"gate passed: no row has {condition}" if not left else f"no row has {condition}{left}")


def conclude(result: "Result", *, allow: bool) -> None:
    """End with exit code 2 where nobody can say from the run what can be reconstructed.

    Args:
        result: The result.
        allow: Take that for an answer.

    Raises:
        SeepageError: Where nothing could be scored, or it says nothing that nothing was reconstructed.
    """
    if allow or not result.is_open:
        return
    from seepage.audit.outcome import Outcome

    why = "nothing could be scored" if result.verdict_level == "unscored" else "the run is inconclusive"
    guesses = any(row.outcome is Outcome.NOT_SCORED for row in result.rows)
    remedy = "score it with seepage report RUN --truth FILE" if guesses else "see the verdict for what would tell"
    raise SeepageError(
        f"{why}, so it is not known what can be reconstructed; {remedy}, or end with exit code 0 all the same with "
        "--allow-inconclusive"
    )
