"""The command line: `seepage audit`, and its parts `record`, `attack`, `score`, `report`, `list`, `validate`."""

import json
import shlex
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from seepage.errors import SeepageError, unknown


class _Interrupted(Exception):
    """Ctrl-C, under a name that typer does not answer in its own way."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


app = typer.Typer(
    cls=_Commands,
    name="seepage",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

DataOption = Annotated[str | None, typer.Option("--data", help="Name, image folder, .zip or .npz of private examples.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="fc2, convnet, torchvision:NAME, timm:NAME or module:factory.")
]
SizeOption = Annotated[int | None, typer.Option("--batch-size", min=1, help="Private examples behind one update.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seeds everything.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps.")]
DefenseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--defense", help="Let clients use this defense; options by --set defense.OPTION=VALUE. Repeatable, in order."
    ),
]
ToldOption = Annotated[
    list[str] | None,
    typer.Option("--told", help="Tell the attacker more: labels, or the indices of rounds. Repeatable."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Any recipe value, such as attack.steps=500. Repeatable.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder to write to.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="Attacks at a time; default: one per core.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print the result in one line and nothing else.")]
GateOption = Annotated[
    str | None, typer.Option("--fail-if", help="Exit with code 1 if any row meets this, e.g. 'recovered>0'.")
]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        help="A recipe: FILE.toml or a name from `seepage list`. It may name code of its own (module:name), which is "
        "run: read a stranger's recipe first."
    ),
]


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2, Ctrl-C is 130.

    A fault of ours shows its traceback and ends with 2 as well: 1 is for a gate that was passed.
    """
    try:
        app()
    except SeepageError as error:
        _fail(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}; check the path, its permissions and the space on the disk")
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            _fault()
        _fail("the memory is used up; use a smaller batch, model or image size, or --jobs 1")
    except (KeyboardInterrupt, _Interrupted):
        print("interrupted; what is finished is kept, and the same command goes on from there", file=sys.stderr)
        sys.exit(130)
    except Exception:
        _fault()


def _fault() -> NoReturn:
    """End with the traceback of what is being handled."""
    traceback.print_exc()
    _fail("this is a fault of seepage or of your own code in the traceback above; if it is seepage's, please report it")


def _fail(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch has a class of its own for this on accelerators only."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


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


def _tables(
    recipe: str | None,
    data: str | None,
    model: str | None,
    batch_size: int | None,
    seed: int | None,
    device: str | None,
    told: list[str] | None,
    attacks: list[str] | None,
    defenses: list[str] | None,
    settings: list[str] | None,
) -> dict[str, Any]:
    """A recipe's tables with the command line's changes."""
    from seepage.recipe import find_recipe, read_recipe
    from seepage.settings import change, choose_part, drop_cases, put

    tables = read_recipe(find_recipe("default" if recipe is None else recipe))
    for key, names in (("attack", attacks), ("defense", defenses)):
        if names:
            listed = tables.get(key)
            listed = [table for table in listed if isinstance(table, dict)] if isinstance(listed, list) else []
            known = {table.get("use"): table for table in listed}
            drop_cases(tables, key)
            put(tables, key, [known.get(use, {"use": use}) for use in names])
    for key, chosen in (("data", data), ("model", model)):
        if chosen is not None:
            choose_part(tables, key, chosen)
    for key, value in (("batch.size", batch_size), ("seed", seed), ("device", device), ("knowledge.told", told)):
        if value is not None:
            drop_cases(tables, key.partition(".")[0])
            put(tables, key, value)
    return change(tables, settings or [])


@app.command()
def audit(
    recipe: RecipeArgument = None,
    data: DataOption = None,
    model: ModelOption = None,
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
    tables = _tables(recipe, data, model, batch_size, seed, device, told, attack, defense, settings)
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

    tables = _tables(recipe, data, model, batch_size, seed, device, told, None, defense, settings)
    with progress_bar(off=as_json or quiet) as show:
        folder = record_only(tables, out=out, show=show)
    if as_json:
        print(json.dumps({"schema": 1, "run": str(folder)}))
    else:
        print(f"recorded: {folder}/observed (what a server sees) and {folder}/private (the truth; keep it)")


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
    truth: Annotated[Path | None, typer.Option("--truth", help="The private/ folder with the truth.")] = None,
    settings: SetOption = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that the run folder names; it is yours.")
    ] = False,
    fail_if: GateOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a run that was attacked without the truth, or show an audit's scores again."""
    from seepage.audit import score_run
    from seepage.results import parse_condition

    condition = None if fail_if is None else parse_condition(fail_if)
    finished = score_run(run, truth, settings or [], trust=trust)
    _write_pages(run, lambda *_: None, again=finished.fresh)
    _present(run, finished, as_json, quiet, note_old=False)
    _gate(finished.result, condition)


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
    from seepage.recipe import cells, find_recipe, read_recipe
    from seepage.settings import change

    if Path(path).is_dir():
        for line in validate_folder(Path(path)):
            print(line)
        return
    for recipe in cells(change(read_recipe(find_recipe(path)), settings or [])):
        print(f"ok: {recipe.cell}: {recipe.model} on {recipe.data}, {len(recipe.attack)} attacks")


if __name__ == "__main__":
    main()
