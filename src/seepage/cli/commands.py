"""The commands: `seepage audit`, what goes on from its run, and the verbs of the other files by what they are for"""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from seepage.cli.capturing import attack, record
from seepage.cli.checking import check
from seepage.cli.comparing import compare, hold_against
from seepage.cli.evidence import keygen, pack, verify
from seepage.cli.frontier import frontier
from seepage.cli.options import (
    MINUTES,
    AttackerOptions,
    GateOptions,
    JsonOption,
    KnownOption,
    MeasureOptions,
    OutOption,
    RecipeArgument,
    RetryOption,
    ShowOptions,
    SimulationOptions,
    WorkerOptions,
    ask_for,
    running_on,
    spread,
    tables_of,
)
from seepage.cli.proving import prove
from seepage.cli.reproducing import reproduce
from seepage.cli.showing import check_asked, command_line, conclude, condition_of, gate_on, present, write_pages
from seepage.cli.stopping import began
from seepage.errors import SeepageError, printable, unknown


class Interrupted(Exception):
    """Ctrl-C, under a name that typer does not answer in its own way."""


class NobodyReads(Exception):
    """A broken pipe, under a name that typer does not end with 1 for, which is a gate's."""


class _Command(TyperCommand):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        for one in self.params:
            if one.nargs == -1 or getattr(one, "multiple", False):
                one.metavar = one.metavar or "TEXT"  # in place of <list[str]>


class _Verbs(TyperGroup):
    """A group whose first word must be a verb of it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands and not word.startswith("-"):
            known = list(self.commands)
            if ctx.parent is not None and self.name == "evidence":
                raise SeepageError(f"seepage evidence takes {', '.join(known)}; type seepage evidence pack {word}")
            raise unknown("command", word, known)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        panels = [*PANELS]
        place = {name: str(getattr(one, "rich_help_panel", "")) for name, one in self.commands.items()}
        return sorted(place, key=lambda name: panels.index(place[name]) if place[name] in panels else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error
        except BrokenPipeError as error:
            raise NobodyReads from error


def _group(**more: Any) -> typer.Typer:
    return typer.Typer(
        cls=_Verbs,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        **more,
    )


app = _group(name="seepage")


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
    """How much private data can be reconstructed from a federated-learning update?

    Start with `seepage audit`: it needs no arguments, no download and a minute. Then point it at your own images
    with `seepage audit --data FOLDER`.
    """


def audit(
    recipe: RecipeArgument = None,
    *,
    own: SimulationOptions,
    attacker: AttackerOptions,
    known: KnownOption = None,
    more: MeasureOptions,
    gate: GateOptions,
    out: OutOption = None,
    shown: ShowOptions,
    workers: WorkerOptions,
    retry_failed: RetryOption = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check the recipe without running anything; code that it names is imported only with --trust.",
        ),
    ] = False,
) -> None:
    """Audit a model: simulate clients, attack their updates, score the reconstructions, and write a report.

    A network of your own, of torchvision or timm, or with --weights is attacked as it is; --set training.steps=100
    trains it first. The networks of this package are audited fresh and trained.
    """
    from seepage.audit.recipe.resolve import resolve_cases

    if dry_run and not own.trust:
        from seepage.audit.recipe.files import find_recipe, read_recipe
        from seepage.audit.recipe.trust import refuse_code

        # Models are built by an audit, and not here.
        refuse_code(read_recipe(find_recipe(recipe)), str(recipe), models=False)
    tables = tables_of(recipe, own, attacks=attacker.attack, known=known)
    ask_for(tables, more, defended=bool(own.defense))
    if attacker.all_attacks:
        tables["all_attacks"] = True
    cases = resolve_cases(tables)  # a mistake in the recipe is said before the stages of an audit are loaded
    if dry_run:
        for case in cases:
            print(printable(f"ok: {case.case}: {case.model} on {case.data}, {len(case.attack)} attacks"))
        return
    from seepage.audit.run import run
    from seepage.cli.stored import stored_rows
    from seepage.cli.terminal import progress_bar

    condition = condition_of(gate.fail_if, tables)
    check_asked(condition, tables)
    with running_on(workers.on) as runner, progress_bar(off=shown.silent) as show:
        finished = run(
            tables,
            out=out,
            jobs=workers.jobs,
            on=runner,
            show=show,
            command=command_line(),
            retry_failed=retry_failed,
            minutes=attacker.time(MINUTES if recipe is None else None, own.settings),
            began=began(),
            repeats=_folder_of(recipe),
            reuse=gate.reuse or (condition is None and gate.baseline is None),
        )
        write_pages(finished.folder, show, again=finished.fresh, pictures=shown.pictures)
    present(finished, shown, stored=stored_rows(recipe, cases))
    gate_on(finished.result, condition, silent=shown.silent)
    hold_against(finished.result, gate.baseline)
    conclude(finished.result, allow=gate.allow)


def _folder_of(recipe: str | None) -> Path | None:
    """The run folder whose own recipe this is; None where it is no such file."""
    path = None if recipe is None else Path(recipe)
    return (
        path.parent if path is not None and path.name == "recipe.toml" and (path.parent / "attacks").is_dir() else None
    )


def report(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    truth: Annotated[
        Path | None,
        typer.Option(
            "--truth",
            help="Score a run of `seepage attack` first, against the private/ folder or the batch itself: an image "
            "folder, or .npz with x and y (or inputs and labels).",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="With --truth: a threshold, such as score.exact_db=45. Repeatable."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that the run folder names; it is yours.")
    ] = False,
    *,
    gate: GateOptions,
    shown: ShowOptions,
) -> None:
    """Show a finished run and write its report.html and grid.png again; with --truth, score it first."""
    from seepage.audit.recipe.overrides import change
    from seepage.audit.recorded import score_run
    from seepage.base.vouching import refuse_foreign
    from seepage.report.run import open_run

    scoring = [setting for setting in settings or [] if setting.strip().startswith("score.")]
    condition = condition_of(gate.fail_if, change({}, scoring) if gate.fail_if else {})
    if (condition is not None or gate.baseline is not None) and not gate.reuse:
        refuse_foreign(run)
    open_run(run)  # what is no finished run is refused before the truth is read
    finished = score_run(run, truth, settings or [], trust=trust)
    write_pages(run, lambda *_: None, again=True, pictures=shown.pictures)
    present(finished, shown, note_old=False)
    gate_on(finished.result, condition, silent=shown.silent)
    hold_against(finished.result, gate.baseline)
    conclude(finished.result, allow=gate.allow)


def list_(
    kind: Annotated[str | None, typer.Argument(help="Only this kind, with all options; e.g. attacks.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List attacks, defenses, clients, models, data sets, metrics and recipes."""
    from seepage.cli.catalog import catalog, explained, print_catalog, print_kind

    found = catalog()
    if kind is not None and kind not in found:
        raise unknown("kind", kind, found)
    if as_json:
        print(json.dumps(found if kind is None else {kind: found[kind]}))
    elif kind is None:
        print_catalog(found)
    else:
        print_kind(found[kind], explained(kind))


Verbs = dict[Callable[..., None], tuple[str, ...]]

PANELS: dict[str, Verbs] = {
    "Audit": {
        audit: ("seepage audit --data photos/ --set data.size=32", "seepage audit --model mynet:factory --minutes 5"),
        check: (
            "seepage check before.pt after.pt --model mynet:factory",
            "seepage check --data photos/ --batch-size 2",
        ),
        attack: (
            "seepage attack before.pt after.pt --lr 0.1 --model mynet:factory",
            "seepage attack observed/ --candidates batch.npz --public others.npz",
        ),
        record: ("seepage record --data photos/ --set data.size=32", "seepage record before.pt after.pt --lr 0.1"),
        report: ("seepage report RUN --no-pictures", "seepage report RUN --truth my-batch.npz"),
    },
    "Defenses and epsilon": {
        frontier: ("seepage frontier", "seepage frontier --data digits"),
        prove: (
            "seepage prove --of defense:gaussian_noise:sigma=2.4,clip=1 --epsilon 2",
            "seepage prove --of function:mine:filter --trust --epsilon 8",
        ),
    },
    "CI and evidence": {
        compare: ("seepage compare OLD NEW", "seepage compare OLD NEW --json"),
    },
    "Research": {
        reproduce: ("seepage reproduce", "seepage reproduce cafe/table-3"),
    },
    "Tools": {
        list_: ("seepage list attacks", "seepage list recipes"),
    },
}
"""The verbs by what they are for, each with examples, in the order of `seepage --help`."""

GROUPS: dict[str, tuple[str, str, Verbs]] = {
    "evidence": (
        "CI and evidence",
        "What is filed of a run: a pack, its signature, and the check that it is unchanged.",
        {
            pack: ("seepage evidence pack RUN --pdf", "seepage evidence pack RUN --sign auditor.pem"),
            verify: ("seepage evidence verify RUN", "seepage evidence verify RUN-evidence --key auditor.pem.pub"),
            keygen: ("seepage evidence keygen auditor.pem",),
        },
    ),
}
"""Verbs with verbs of their own: the panel, what they are for, and these."""


def _add(to: typer.Typer, verbs: Verbs, panel: str | None = None) -> None:
    for verb, examples in verbs.items():
        name, text = verb.__name__.rstrip("_"), "\n\n".join(("Examples:", *examples))
        to.command(name, cls=_Command, rich_help_panel=panel, epilog=text)(spread(verb))


for _panel, _verbs in PANELS.items():
    _add(app, _verbs, _panel)
    for _name, (_place, _help, _own) in GROUPS.items():
        if _place == _panel:
            _within = _group(help=_help)
            _add(_within, _own)
            app.add_typer(_within, name=_name, rich_help_panel=_panel)
