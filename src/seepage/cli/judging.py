"""`seepage evidence judge`, and `seepage evidence count` of what people said."""

import json
from pathlib import Path
from typing import Annotated

import typer

from seepage.cli.options import JsonOption, PrintOptions
from seepage.errors import SeepageError, printable


def judge(
    run: Annotated[Path, typer.Argument(help="A finished run folder with its private pictures.")],
    case: Annotated[str | None, typer.Option("--case", help="Only this case.")] = None,
    attack: Annotated[str | None, typer.Option("--attack", help="Only this attack.")] = None,
    pairs: Annotated[
        int, typer.Option("--pairs", help="Most pairs that a person sees, controls included (20 or more).")
    ] = 60,
    seed: Annotated[int, typer.Option("--seed", help="Draws the pairs and their order.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Page to write.")] = Path("judge.html"),
    machine: Annotated[
        Path | None, typer.Option("--machine", help="Also let a machine judge the pairs, and save its answers here.")
    ] = None,
    features: Annotated[
        str | None, typer.Option("--features", help="For --machine: weights of torchvision's squeezenet1_1.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a page on which people judge which reconstructions show the private pictures."""
    from seepage.papers.judging import write_judge_page

    if features is not None and machine is None:
        raise SeepageError("--features are those of a machine judge; add --machine FILE")
    page = write_judge_page(
        run, out, case=case, attack=attack, pairs=pairs, seed=seed, machine=machine, features=features
    )
    if as_json:
        found = {"page": page.id, "path": str(page.path), "key": str(page.key)}
        print(json.dumps({"schema": 1, **found, "pairs": page.pairs, "guesses": page.guesses}))
        return
    controls = page.pairs - page.guesses
    print(f"{page.path}: {page.pairs} pairs, {page.guesses} guesses and {controls} control pairs among them")
    print("This page contains private pictures, so only you can open it: store, share and delete it like the data.")
    print(f"Open it in a browser, judge, save; then: seepage evidence count {run} judgements.json")
    if machine is not None:
        print(f"A machine judged too, which is no person: seepage evidence count {run} {machine}")


def count(
    run: Annotated[Path, typer.Argument(help="The run folder that was judged.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What people saved on its page.")],
    *,
    printed: PrintOptions,
) -> None:
    """Count what people said on a page of `seepage evidence judge`, and write it into the run and its report."""
    from seepage.base.lock import held
    from seepage.papers.judging import lines, read_answers, tally, write_judged
    from seepage.report import write_report
    from seepage.report.run import open_run

    opened = open_run(run)
    judged = tally(run, read_answers(files))
    with held(run):
        path = write_judged(run, judged)
        write_report(run)
    if printed.as_json:
        print(json.dumps({"schema": 1, "run": str(run), **judged.model_dump(mode="json")}, allow_nan=False))
        return
    found = lines(judged, {case.name: case.heading for case in opened.cases})
    for line in (
        found[: len(judged.rows) + bool(judged.machine)]
        if printed.quiet
        else [*found, f"written: {path} and {run / 'report.html'}"]
    ):
        print(printable(line))
