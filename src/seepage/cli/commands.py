"""The commands: `seepage audit`, its parts `record`, `attack` and `score`, and what goes on from a run"""

import json
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from seepage.cli.exposing import exposure
from seepage.cli.frontier import frontier
from seepage.cli.judging import JudgementsOption, count_judgements, judge
from seepage.cli.options import (
    ClientOption,
    DataOption,
    DefenseOption,
    DeviceOption,
    GateOption,
    JobsOption,
    JsonOption,
    ModelOption,
    OutOption,
    QuietOption,
    RecipeArgument,
    SeedOption,
    SetOption,
    SizeOption,
    ToldOption,
    WeightsOption,
    tables_of,
)
from seepage.errors import SeepageError, unknown


class Interrupted(Exception):
    """Ctrl-C, under a name that typer does not answer in its own way."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error


app = typer.Typer(
    cls=_Commands,
    name="seepage",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"seepage {version('seepage')}")
        raise typer.Exit


@app.callback()
def _seepage(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How much private data can be read back out of a federated-learning update?

    Start with `seepage audit`: it needs no arguments, no download and a minute. Then point it at your own images
    with `seepage audit --data FOLDER`.
    """


def _command() -> str:
    return shlex.join(["seepage", *sys.argv[1:]])


@app.command()
def audit(
    recipe: RecipeArgument = None,
    data: DataOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    client: ClientOption = None,
    batch_size: SizeOption = None,
    attack: Annotated[list[str] | None, typer.Option("--attack", help="Only this attack. Repeatable.")] = None,
    defense: DefenseOption = None,
    told: ToldOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    jobs: JobsOption = None,
    fail_if: GateOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Record real updates, attack them, score what came back, and write a report."""
    from seepage.audit import run
    from seepage.results import parse_condition
    from seepage.terminal import progress_bar

    condition = None if fail_if is None else parse_condition(fail_if)
    tables = tables_of(recipe, data, model, weights, client, batch_size, seed, device, told, attack, defense, settings)
    with progress_bar(off=as_json or quiet) as show:
        finished = run(tables, out=out, jobs=jobs, show=show, command=_command())
        _write_pages(finished.folder, show, again=False)
    _present(finished.folder, finished, as_json, quiet)
    _gate(finished.result, condition)


def _write_pages(folder: Path, show: Any, *, again: bool) -> None:
    """Pictures first, the report last; a run that has both is left as it is."""
    from seepage.report import write_grid, write_report

    if again or not (folder / "report.html").exists():
        show(0.99, 1, "writing the report")
        write_grid(folder)
        write_report(folder)


def _present(folder: Path, finished: Any, as_json: bool, quiet: bool, *, note_old: bool = True) -> None:
    from seepage.report.run import open_run
    from seepage.terminal import print_result

    if not finished.fresh:
        open_run(folder)  # it may be somebody else's, and damaged
    if as_json:
        keys = ("verdict", "verdict_level", "rows", "cells", "thresholds")
        result = {key: finished.result[key] for key in keys}
        found = {"schema": 1, "run": str(folder), "finished_earlier": not finished.fresh, **result}
        print(json.dumps(found, allow_nan=False))
    else:
        print_result(folder, finished.result, quiet=quiet, note_old=note_old and not finished.fresh)


def _gate(result: Any, condition: tuple[str, str, float] | None) -> None:
    from seepage.results import violations

    if condition is None:
        return
    found = violations(result["rows"], condition)
    if found:
        key, sign, number = condition
        titles = {cell["name"]: cell["title"] for cell in result["cells"]}
        worst = "; ".join(f"{row['attack']} on {titles[row['cell']]}: {key} {row[key]:g}" for row in found[:3])
        print(f"failed: {len(found)} rows have {key} {sign} {number:g}: {worst}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def record(
    recipe: RecipeArgument = None,
    data: DataOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    client: ClientOption = None,
    batch_size: SizeOption = None,
    defense: DefenseOption = None,
    told: ToldOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Only let the simulated client compute its updates: writes observed/ and private/."""
    from seepage.audit import record_only
    from seepage.terminal import progress_bar

    tables = tables_of(recipe, data, model, weights, client, batch_size, seed, device, told, None, defense, settings)
    with progress_bar(off=as_json or quiet) as show:
        folder = record_only(tables, out=out, show=show)
    if as_json:
        print(json.dumps({"schema": 1, "run": str(folder)}))
    else:
        print(f"recorded: {folder}/observed (what a server sees) and {folder}/private (the truth; keep it)")


@app.command("observe")
def observe_(
    before: Annotated[Path, typer.Argument(help="Weights that the server sent out: .safetensors, or a state_dict.")],
    after: Annotated[Path | None, typer.Argument(help="Weights that came back; or else --gradient.")] = None,
    gradient: Annotated[Path | None, typer.Option("--gradient", help="The gradient that came back.")] = None,
    model: Annotated[str, typer.Option("--model", help="The model; options by --set model.OPTION=VALUE.")] = "fc2",
    shape: Annotated[str, typer.Option("--shape", help="Shape of one example, such as 3,32,32.")] = "3,32,32",
    classes: Annotated[int, typer.Option("--classes", help="Classes of the model.")] = 10,
    client: ClientOption = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate, where one SGD step was made.")] = None,
    batch_size: SizeOption = None,
    settings: SetOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path("observed"),
) -> None:
    """Make an observed/ folder of two checkpoints, or of a gradient, that somebody captured."""
    from seepage.observing import Files, observe_files, parse_shape
    from seepage.parts import Part
    from seepage.settings import change
    from seepage.types import Architecture

    tables = change({"model": {"use": model}, "client": {"use": client or "fedsgd"}}, settings or [])
    if set(tables) - {"model", "client"}:
        raise SeepageError("seepage observe takes --set model.OPTION=VALUE and --set client.OPTION=VALUE")
    architecture = Architecture(str(tables["model"].pop("use")), tables["model"])
    remarks = observe_files(
        Files(before=before, after=after, gradient=gradient, lr=lr),
        out,
        architecture=architecture,
        input_shape=parse_shape(shape),
        num_classes=classes,
        client=Part(str(tables["client"].pop("use")), tables["client"]),
        batch_size=batch_size,
    )
    for remark in remarks:
        print(remark)
    print(f"observed: {out}; attack it with: seepage attack {out}")


@app.command()
def attack(
    folder: Annotated[Path, typer.Argument(help="An observed/ folder, also somebody else's.")],
    use: Annotated[
        list[str] | None,
        typer.Option("--use", help="Attack name or module:Attack; default: those of `seepage audit`. Repeatable."),
    ] = None,
    model: ModelOption = None,
    batch_size: SizeOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Attack recorded updates without the truth at hand."""
    from seepage.audit import attack_only
    from seepage.recipe import find_recipe, read_recipe
    from seepage.settings import change
    from seepage.terminal import progress_bar
    from seepage.types import Architecture

    asked = {"attack": [{"use": name} for name in use] if use else read_recipe(find_recipe("default"))["attack"]}
    tables = change(asked if model is None else {**asked, "model": {"use": model}}, settings or [])
    if set(tables) - {"attack", "model"} or ("model" in tables and model is None):
        raise SeepageError(
            "seepage attack takes --set attack.OPTION=VALUE and, beside --model, --set model.OPTION=VALUE; "
            "all else was decided when the update was recorded"
        )
    options = tables.get("model", {})
    architecture = None if model is None else Architecture(str(options.pop("use")), options)
    with progress_bar(off=as_json or quiet) as show:
        finished = attack_only(
            folder,
            tables["attack"],
            model=architecture,
            batch_size=batch_size,
            seed=seed or 0,
            device=device or "cpu",
            out=out,
            jobs=jobs,
            show=show,
            command=_command(),
        )
        _write_pages(finished.folder, show, again=finished.fresh)
    _present(finished.folder, finished, as_json, quiet)


@app.command()
def score(
    run: Annotated[Path, typer.Argument(help="A run folder of `seepage attack` or `seepage audit`.")],
    truth: Annotated[
        Path | None, typer.Option("--truth", help="The private/ folder, or the batch itself: image folder or .npz.")
    ] = None,
    judgements: JudgementsOption = None,
    settings: SetOption = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that the run folder names; it is yours.")
    ] = False,
    fail_if: GateOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a run that was attacked without the truth, show an audit's scores again, or count what people judged."""
    from seepage.audit import score_run
    from seepage.results import parse_condition

    if judgements:
        if truth is not None or settings or fail_if or trust:
            raise SeepageError("--judgements counts what people said and nothing else; leave out the other options")
        count_judgements(run, judgements, as_json=as_json, quiet=quiet)
        return
    condition = None if fail_if is None else parse_condition(fail_if)
    finished = score_run(run, truth, settings or [], trust=trust)
    _write_pages(run, lambda *_: None, again=finished.fresh)
    _present(run, finished, as_json, quiet, note_old=False)
    _gate(finished.result, condition)


app.command()(judge)
app.command()(frontier)
app.command()(exposure)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    sheet: Annotated[
        Path | None, typer.Option("--sheet", help="Write all pictures, private and rebuilt, to this PNG instead.")
    ] = None,
    cell: Annotated[str | None, typer.Option("--cell", help="For --sheet: this cell.")] = None,
    attack: Annotated[str | None, typer.Option("--attack", help="For --sheet: this attack.")] = None,
) -> None:
    """Write report.html and grid.png of a finished run again, or all its pictures on one sheet."""
    from seepage.report import write_grid, write_report, write_sheet

    if sheet is not None:
        print(write_sheet(run, sheet, cell=cell, attack=attack))
        return
    if cell or attack:
        raise SeepageError("--cell and --attack choose what --sheet FILE.png shows; add it")
    write_grid(run)
    print(write_report(run))


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="Only this kind, with all options; e.g. attacks.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List attacks, defenses, clients, models, data sets, metrics and recipes."""
    from seepage.catalog import catalog
    from seepage.terminal import print_catalog, print_kind

    found = catalog()
    if kind is not None and kind not in found:
        raise unknown("kind", kind, found)
    if as_json:
        print(json.dumps(found if kind is None else {kind: found[kind]}))
    elif kind is None:
        print_catalog(found)
    else:
        print_kind(found[kind])


@app.command()
def validate(
    path: Annotated[str, typer.Argument(help="A recipe, or an observed/ folder.")],
    settings: SetOption = None,
) -> None:
    """Check a recipe or a recorded folder without running anything."""
    from seepage.audit import validate_folder
    from seepage.recipe import find_recipe, read_recipe
    from seepage.resolve import cells
    from seepage.settings import change

    if Path(path).is_dir():
        for line in validate_folder(Path(path)):
            print(line)
        return
    for recipe in cells(change(read_recipe(find_recipe(path)), settings or [])):
        print(f"ok: {recipe.cell}: {recipe.model} on {recipe.data}, {len(recipe.attack)} attacks")
