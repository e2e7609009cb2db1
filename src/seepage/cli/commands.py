"""The commands: `seepage audit`, its parts `record`, `attack` and `score`, and what goes on from a run"""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from seepage.cli.capturing import attack, observe
from seepage.cli.checking import check
from seepage.cli.comparing import compare, hold_against
from seepage.cli.evidence import evidence, keygen, verify
from seepage.cli.frontier import frontier
from seepage.cli.judging import JudgementsOption, count_judgements, judge
from seepage.cli.membership import membership
from seepage.cli.options import (
    AllOption,
    AllowOption,
    AttackOption,
    BaselineOption,
    BoundsOption,
    ClientOption,
    DataOption,
    DefenseOption,
    DeviceOption,
    GateOption,
    JobsOption,
    JsonOption,
    LossOption,
    MembershipOption,
    MinutesOption,
    ModelOption,
    NoPicturesOption,
    NormalizeOption,
    OnOption,
    OutOption,
    ProveOption,
    QuietOption,
    RecipeArgument,
    RetryOption,
    ReuseOption,
    SeedOption,
    SetOption,
    SizeOption,
    ToldOption,
    TrustModelOption,
    TuneOption,
    UndefendedOption,
    WeightsOption,
    WhyOption,
    ask_for,
    minutes_of,
    running_on,
    tables_of,
    tune_by,
)
from seepage.cli.proving import prove
from seepage.cli.reproducing import reproduce
from seepage.cli.settings_file import use_settings
from seepage.cli.showing import check_asked, command_line, conclude, condition_of, gate, present, write_pages
from seepage.errors import SeepageError, printable, unknown


class Interrupted(Exception):
    """Ctrl-C, under a name that typer does not answer in its own way."""


class NobodyReads(Exception):
    """A broken pipe, under a name that typer does not end with 1 for, which is a gate's."""


GONE = {
    "exposure": "seepage check FOLDER, or seepage check --recipe NAME",
    "probe": "seepage check --recipe NAME, or seepage check --data FOLDER",
}
"""Verbs that there were, and what does their work."""


class _Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in GONE:
            raise SeepageError(f"seepage {cmd_name} is a part of seepage check now; type {GONE[cmd_name]}")
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error
        except BrokenPipeError as error:
            raise NobodyReads from error


app = typer.Typer(
    cls=_Commands,
    name="seepage",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"seepage {version('seepage')}")
        raise typer.Exit


@app.callback()
def _seepage(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    no_settings: Annotated[
        bool, typer.Option("--no-settings", help="Pass over seepage.toml and pyproject.toml of this folder.")
    ] = False,
) -> None:
    """How much private data can be read back out of a federated-learning update?

    Start with `seepage audit`: it needs no arguments, no download and a minute. Then point it at your own images
    with `seepage audit --data FOLDER`.
    """
    if not no_settings:
        use_settings(context)


def audit(
    recipe: RecipeArgument = None,
    data: DataOption = None,
    model: ModelOption = None,
    normalize: NormalizeOption = None,
    weights: WeightsOption = None,
    client: ClientOption = None,
    loss: LossOption = None,
    batch_size: SizeOption = None,
    attack: AttackOption = None,
    defense: DefenseOption = None,
    told: ToldOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    tune: TuneOption = None,
    out: OutOption = None,
    jobs: JobsOption = None,
    on: OnOption = None,
    membership: MembershipOption = False,
    bounds: BoundsOption = False,
    prove: ProveOption = False,
    no_undefended: UndefendedOption = False,
    fail_if: GateOption = None,
    baseline: BaselineOption = None,
    allow: AllowOption = False,
    all_attacks: AllOption = False,
    minutes: MinutesOption = None,
    retry_failed: RetryOption = False,
    reuse: ReuseOption = False,
    no_pictures: NoPicturesOption = False,
    trust: TrustModelOption = False,
    why: WhyOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Audit a model: simulate clients, attack their updates, score the reconstructions, and write a report.

    A network of your own, of torchvision or timm, or with --weights is attacked as it is; --set training.steps=100
    trains it first. The networks of this package are audited fresh and trained.
    """
    from seepage.recipe.resolve import cells

    tables = tables_of(
        recipe, data=data, model=model, weights=weights, client=client, loss=loss, batch_size=batch_size,
        seed=seed, device=device, told=told, attacks=attack, defenses=defense, settings=settings,
        normalize=normalize, trust=trust,
    )  # fmt: skip
    ask_for(tables, membership=membership, bounds=bounds, prove=prove, defended=bool(defense))
    tune_by(tables, tune)
    if all_attacks:
        tables["all_attacks"] = True
    if defense and not no_undefended:
        tables["undefended"] = True
    elif no_undefended:
        tables.pop("undefended", None)
    own = tables.pop("minutes", None)
    given = minutes_of(minutes, own, all_attacks=all_attacks, parts=attack, settings=settings)
    if given is not None:
        tables["minutes"] = given
    cases = cells(tables)  # a mistake in the recipe is said before the stages of an audit are loaded
    from seepage.audit.budget import recorded_plan
    from seepage.audit.run import run
    from seepage.cli.stored import stored_rows
    from seepage.cli.terminal import progress_bar

    condition = condition_of(fail_if, tables)
    check_asked(condition, tables)
    with running_on(on) as runner, progress_bar(off=as_json or quiet) as show:
        finished = run(
            tables,
            out=out,
            jobs=jobs,
            on=runner,
            show=show,
            command=command_line(),
            retry_failed=retry_failed,
            budget=recorded_plan(recipe),
            reuse=reuse or (condition is None and baseline is None),
        )
        again = retry_failed and finished.fresh
        write_pages(finished.folder, show, again=again, pictures=False if no_pictures else None)
    present(finished.folder, finished, as_json, quiet, why=why, stored=stored_rows(recipe, cases))
    gate(finished.result, condition)
    hold_against(finished.result, baseline)
    conclude(finished.result, allow=allow)


def record(
    recipe: RecipeArgument = None,
    data: DataOption = None,
    model: ModelOption = None,
    normalize: NormalizeOption = None,
    weights: WeightsOption = None,
    client: ClientOption = None,
    loss: LossOption = None,
    batch_size: SizeOption = None,
    defense: DefenseOption = None,
    told: ToldOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    trust: TrustModelOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Simulate clients and record their updates (observed/ and private/), without attacking."""
    from seepage.audit.run import record_only
    from seepage.cli.terminal import progress_bar

    tables = tables_of(
        recipe, data=data, model=model, weights=weights, client=client, loss=loss, batch_size=batch_size,
        seed=seed, device=device, told=told, defenses=defense, settings=settings, normalize=normalize,
        trust=trust,
    )  # fmt: skip
    with progress_bar(off=as_json or quiet) as show:
        folder = record_only(tables, out=out, show=show)
    if as_json:
        print(json.dumps({"schema": 1, "run": str(folder)}))
    else:
        print(f"recorded: {folder}/observed (what a server sees) and {folder}/private (the truth; keep it)")


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
    allow: AllowOption = False,
    why: WhyOption = False,
    reuse: ReuseOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a finished attack against the private examples."""
    from seepage.audit.recorded import score_run
    from seepage.core.vouching import refuse_foreign
    from seepage.recipe.overrides import change

    if judgements:
        if truth is not None or settings or fail_if or trust:
            raise SeepageError("--judgements counts what people said and nothing else; leave out the other options")
        count_judgements(run, judgements, as_json=as_json, quiet=quiet)
        return
    own = [setting for setting in settings or [] if setting.strip().startswith("score.")]
    condition = condition_of(fail_if, change({}, own) if fail_if else {})
    if condition is not None and not reuse:
        refuse_foreign(run)
    finished = score_run(run, truth, settings or [], trust=trust)
    write_pages(run, lambda *_: None, again=finished.fresh)
    present(run, finished, as_json, quiet, note_old=False, why=why)
    gate(finished.result, condition)
    conclude(finished.result, allow=allow)


def report(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    sheet: Annotated[
        Path | None, typer.Option("--sheet", help="Write all pictures, private and rebuilt, to this PNG instead.")
    ] = None,
    cell: Annotated[str | None, typer.Option("--cell", help="For --sheet: this cell.")] = None,
    attack: Annotated[str | None, typer.Option("--attack", help="For --sheet: this attack.")] = None,
    no_pictures: NoPicturesOption = False,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Show pictures again after --no-pictures, which a run remembers.")
    ] = False,
) -> None:
    """Write report.html and grid.png of a finished run again."""
    from seepage.report import write_sheet

    if sheet is not None and no_pictures:
        raise SeepageError("--sheet writes nothing but pictures; leave out --no-pictures")
    if sheet is not None:
        print(write_sheet(run, sheet, cell=cell, attack=attack))
        return
    if pictures and no_pictures:
        raise SeepageError("--pictures and --no-pictures are each other's opposite; leave one out")
    if cell or attack:
        raise SeepageError("--cell and --attack choose what --sheet FILE.png shows; add it")
    write_pages(run, lambda *_: None, again=True, pictures=True if pictures else False if no_pictures else None)
    print(run / "report.html")


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


def validate(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Recipes, or observed/ folders.")],
    settings: SetOption = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the code that a recipe names, to check its options; it is yours.")
    ] = False,
) -> None:
    """Check recipes and recorded folders without running anything."""
    for path in paths:
        _validate(path, settings or [], trust)


def _validate(path: str, settings: list[str], trust: bool) -> None:
    if Path(path).is_dir():
        from seepage.audit.recorded import validate_folder

        for line in validate_folder(Path(path)):
            print(printable(line))
        return
    from seepage.recipe.files import find_recipe, read_recipe
    from seepage.recipe.overrides import change
    from seepage.recipe.resolve import cells
    from seepage.recipe.trust import refuse_code

    tables = read_recipe(find_recipe(path))
    if not trust:
        refuse_code(tables, path, models=False)  # which are built by an audit, and not here
    for recipe in cells(change(tables, settings)):
        print(printable(f"ok: {recipe.cell}: {recipe.model} on {recipe.data}, {len(recipe.attack)} attacks"))


PANELS: dict[str, dict[Callable[..., None], tuple[str, ...]]] = {
    "Audit": {
        audit: ("seepage audit --data photos/ --set data.size=32", "seepage audit --model mynet:factory --minutes 5"),
        check: (
            "seepage check before.pt after.pt --model mynet:factory",
            "seepage check --data photos/ --batch-size 2",
        ),
        attack: (
            "seepage attack before.pt after.pt --lr 0.1 --model mynet:factory",
            "seepage attack observed/ --use linear --use gradient_matching",
        ),
        score: ("seepage score RUN --truth my-batch.npz", "seepage score RUN --truth private/"),
        membership: (
            "seepage membership observed/ --candidates batch.npz --public others.npz",
            "seepage membership observed/ --candidates photos/ --public more-photos/",
        ),
        report: ("seepage report RUN", "seepage report RUN --no-pictures"),
        record: ("seepage record --data photos/ --set data.size=32", "seepage record recipe.toml --out recorded"),
        observe: ("seepage observe before.pt after.pt --lr 0.1", "seepage observe --gradient grad.pt model.pt"),
    },
    "Defenses and epsilon": {
        frontier: ("seepage frontier", "seepage frontier --data digits"),
        prove: (
            "seepage prove --defense gaussian_noise:sigma=2.4,clip=1 --epsilon 2",
            "seepage prove --function mine:filter --trust --epsilon 8",
        ),
    },
    "CI and evidence": {
        compare: ("seepage compare OLD NEW", "seepage compare OLD NEW --json"),
        evidence: ("seepage evidence RUN --pdf", "seepage evidence RUN --sign auditor.pem"),
        verify: ("seepage verify RUN", "seepage verify RUN-evidence --key auditor.pem.pub"),
        keygen: ("seepage keygen auditor.pem",),
    },
    "Research": {
        reproduce: ("seepage reproduce", "seepage reproduce cafe/table-3"),
        judge: ("seepage judge RUN",),
    },
    "Tools": {
        list_: ("seepage list attacks", "seepage list recipes"),
        validate: ("seepage validate recipe.toml", "seepage validate observed/"),
    },
}
"""The verbs by what they are for, each with examples, in the order of `seepage --help`."""

for _panel, _verbs in PANELS.items():
    for _verb, _examples in _verbs.items():
        _text = "\n\n".join(("Examples:", *_examples))
        app.command(_verb.__name__.rstrip("_"), rich_help_panel=_panel, epilog=_text)(_verb)
