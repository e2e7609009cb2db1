"""`seepage frontier`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from seepage.cli.options import (
    AttackOption,
    MembershipOption,
    OutOption,
    PrintOptions,
    RecipeArgument,
    SimulationOptions,
    WorkerOptions,
    running_on,
    tables_of,
)
from seepage.cli.showing import command_line, write_pages

if TYPE_CHECKING:
    from seepage.report.frontier import DefenseRow


def frontier(
    recipe: RecipeArgument = None,
    *,
    own: SimulationOptions,
    attack: AttackOption = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Federated rounds that the accuracy is measured after.")
    ] = None,
    membership: MembershipOption = False,
    out: OutOption = None,
    workers: WorkerOptions,
    printed: PrintOptions,
) -> None:
    """Compare defenses: leakage against accuracy, time and bytes, with advice.

    With --defense only this one is swept, of those of the recipe, or at strengths of yours, such as
    gaussian_noise:clip=1,sigma=[0.01,0.1].
    """
    from seepage.base.registry import defenses
    from seepage.cli.parts import part_of
    from seepage.cli.terminal import progress_bar
    from seepage.report.frontier import run_frontier

    more = [] if rounds is None else [f"utility.rounds={rounds}"]
    swept = replace(own, defense=None, settings=[*(own.settings or []), *more])
    tables = tables_of("frontier" if recipe is None else recipe, swept, attacks=attack)
    if membership:
        tables.setdefault("membership", {})
    only = [part_of(name, "--defense", defenses) for name in own.defense or ()]
    with running_on(workers.on) as runner, progress_bar(off=printed.silent) as show:
        found = run_frontier(
            tables, only=only, out=out, jobs=workers.jobs, on=runner, show=show, command=command_line()
        )
        write_pages(found.folder, show, again=False)
    if printed.as_json:
        rows = [row.record() for row in found.rows]
        print(json.dumps({"schema": 1, "run": str(found.folder), "advice": found.advice, "rows": rows}))
        return
    if not printed.quiet:
        _print_table(found.rows)
        _print_lacking(found.rows)
    print(found.advice)
    if not printed.quiet:
        shown = "pictures" if any(row.best and "ssim" in row.best.scores for row in found.rows) else "report"
        print(f"\npage: {found.folder / 'frontier.html'}; {shown}: {found.folder / 'report.html'}")


_CLOSENESS = {"median": "psnr_median", "SSIM": "ssim"}
"""How close guesses come: a column for each that any row has, since texts have none and rows of a table no SSIM."""


def _print_table(rows: "Sequence[DefenseRow]") -> None:
    from rich.table import Table
    from rich.text import Text

    from seepage.cli.console import open_console

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("defense", overflow="fold")
    tested = any(row.test or row.untested for row in rows)
    close = [
        name for name, key in _CLOSENESS.items() if any(row.best and row.best.value(key) is not None for row in rows)
    ]
    for name in (rows[0].measure, "found", *(["identified"] if tested else []), *close, "epsilon", "ms", "kB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("best attack", overflow="fold")
    for i, row in enumerate(rows):
        first = i == 0 or rows[i - 1].defense != row.defense
        table.add_row(
            *map(Text, _entries(row, first, tested, close)), style="red" if row.recovered and row.recovered.hits else ""
        )
    console = open_console()
    console.print(table)
    console.print(Text(_legend(rows), style="dim"))
    console.print()


def _legend(rows: "Sequence[DefenseRow]") -> str:
    from seepage.measure.privacy.accounting import VACUOUS

    close = "median: PSNR in dB. " * any(row.best and row.best.value("psnr_median") is not None for row in rows)
    words = (
        f"{rows[0].measure}: after federated training with it. found: examples recovered by the best attack. "
        f"{close}ms: one client's update. kB: sent by it. A second line: the attacker knows the defense."
    )
    tested = next((row.test for row in rows if row.test), None)
    if tested is not None:
        level = f"{100 * (tested.level or 0):g} %"
        words += (
            f" identified: members of the batches that the best membership test identifies at {level} false alarms."
        )
    none = [row.recovered for row in rows if row.recovered is not None and not row.recovered.hits]
    if none:
        widest = max(none, key=lambda share: share.high)
        words += f" 0/{widest.of} found: the 95 % interval goes up to {100 * widest.high:.0f} %."
    if any(row.epsilon is not None and row.epsilon > VACUOUS for row in rows):
        words += f" An epsilon above {VACUOUS:g} promises nothing."
    return words


def _print_lacking(rows: "Sequence[DefenseRow]") -> None:
    """Why no epsilon could be counted, where that is a matter of this machine; why membership was not tested."""
    caveats = [doubt for row in rows if row.promise is not None for doubt in row.promise.caveats]
    lacking = [row.untested for row in rows if row.untested]
    for reason in dict.fromkeys(lacking):
        print(f"membership was not tested: {reason}\n")
    for doubt in dict.fromkeys(doubt for doubt in caveats if "not installed" in doubt):
        print(f"{doubt}\n")


def _entries(row: "DefenseRow", first: bool, tested: bool, close: "Sequence[str]") -> list[str]:
    from seepage.report.formatting import number, scientific
    from seepage.report.table import plain_text

    price = [
        scientific(row.epsilon),
        number(None if row.seconds is None else 1000 * row.seconds),
        number(None if row.bytes is None else row.bytes / 1000),
    ]
    accuracy = "-" if row.accuracy is None else f"{row.accuracy:.1%}"
    count = "-" if row.recovered is None else f"{row.recovered.hits}/{row.recovered.of}"
    texts = [
        row.defense if first else "  attacker knows it",
        accuracy if first else "",
        count,
        *([f"{row.identified.hits}/{row.identified.of}" if row.identified else "-"] if tested else []),
        *(
            number(None if row.best is None else row.best.value(_CLOSENESS[name]), 2 if name == "SSIM" else 1)
            for name in close
        ),
        *(price if first else ["", "", ""]),
    ]
    return [*map(plain_text, texts), row.best.attack if row.best else row.reason or "-"]
