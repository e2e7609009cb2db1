"""`seepage observe` and `seepage attack`: updates that somebody captured, with no truth at hand."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from seepage.cli.comparing import hold_against
from seepage.cli.completing import names_of
from seepage.cli.options import (
    MINUTES,
    AllOption,
    AllowOption,
    BaselineOption,
    ClientOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    LossOption,
    MinutesOption,
    ModelOption,
    NoPicturesOption,
    NormalizeOption,
    OnOption,
    OutOption,
    QuietOption,
    ReuseOption,
    SeedOption,
    SetOption,
    SizeOption,
    TrustModelOption,
    TrustOption,
    WhyOption,
    add_to_model,
    minutes_of,
    running_on,
)
from seepage.cli.showing import command_line, conclude, condition_of, gate, present, write_pages
from seepage.errors import SeepageError, printable

if TYPE_CHECKING:
    from seepage.audit.captured import Capture
    from seepage.audit.observe import Files
    from seepage.types import Target

ShapeOption = Annotated[
    str | None, typer.Option("--shape", help="Shape of one example, such as 3,32,32; default: one the weights fit.")
]
ClassesOption = Annotated[
    int | None,
    typer.Option(
        "--classes",
        help="How many classes the model tells apart, as many as it has outputs; default: as many as the weights fit.",
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--lr",
        help="The client's learning rate; default: inferred, where the last bias tells it.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Task: class, value (regression), map (segmentation) or input (an autoencoder, with its --loss); default: "
        "from the model's outputs and the loss.",
    ),
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", help="Steps that the client took at that rate; default: inferred, else 1.")
]
DecayOption = Annotated[
    float | None,
    typer.Option(
        "--weight-decay",
        help="Weight decay of that SGD, which is taken out of the update; default: inferred for cross-entropy, else 0.",
    ),
]
GradientOption = Annotated[Path | None, typer.Option("--gradient", help="The gradient that came back.")]
AfterArgument = Annotated[Path | None, typer.Argument(help="Weights that came back, after one file of weights.")]


def observe(
    before: Annotated[Path, typer.Argument(help="Weights that the server sent out: .safetensors, or a state_dict.")],
    after: AfterArgument = None,
    gradient: GradientOption = None,
    model: ModelOption = None,
    normalize: NormalizeOption = None,
    shape: ShapeOption = None,
    classes: ClassesOption = None,
    client: ClientOption = None,
    loss: LossOption = None,
    target: TargetOption = None,
    lr: RateOption = None,
    steps: StepsOption = None,
    weight_decay: DecayOption = None,
    batch_size: SizeOption = None,
    settings: SetOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path("observed"),
    trust: TrustModelOption = False,
) -> None:
    """Turn two checkpoints, or a gradient, into an observed/ folder, without attacking."""
    from seepage.recipe.overrides import change

    tables = change(named_tables(model or "fc2", client or "fedsgd", loss, normalize, trust=trust), settings or [])
    if set(tables) - {"model", "client"}:
        raise SeepageError("seepage observe takes --set model.OPTION=VALUE and --set client.OPTION=VALUE")
    files = files_of(before, after, gradient, lr, weight_decay)
    for remark in capture_of(files, tables, shape, classes, steps, batch_size, target).observe(out):
        print(remark)
    print(f"observed: {out}; attack it with: seepage attack {out}")


def named_tables(
    model: str | None, client: str | None, loss: str | None, normalize: str | None, *, trust: bool
) -> dict[str, dict[str, Any]]:
    """The tables of the model and the client where they are named; a loss is the client's."""
    from seepage.cli.parts import part_of
    from seepage.registry import KINDS

    typed = (("model", model), ("client", client))
    tables = {key: part_of(name, f"--{key}", KINDS[f"{key}s"]).table() for key, name in typed if name is not None}
    if loss is not None:
        tables["client"]["loss"] = loss
    add_to_model(tables, normalize, trust=trust)
    return tables


def files_of(
    before: Path, after: Path | None, gradient: Path | None, lr: float | None, weight_decay: float | None
) -> "Files":
    from seepage.audit.observe import Files

    return Files(before=before, after=after, gradient=gradient, lr=lr, weight_decay=weight_decay)


def capture_of(
    files: "Files",
    tables: Mapping[str, Any],
    shape: str | None,
    classes: int | None,
    steps: int | None,
    batch_size: int | None,
    target: str | None,
) -> "Capture":
    from seepage.audit.captured import Capture
    from seepage.audit.observe import parse_shape
    from seepage.registry import Spec

    client = Spec.of(tables["client"])
    if target == "input":  # which the client's rule says, as it is no number of an attacker's
        client, target = client.with_options(target="input"), None
    return Capture(
        files=files,
        architecture=Spec.of(tables["model"]),
        client=client,
        input_shape=None if shape is None else parse_shape(shape),
        num_classes=classes,
        steps=steps,
        batch_size=batch_size,
        target=_known_target(target),
    )


def _known_target(target: str | None) -> "Target | None":
    from seepage.errors import unknown
    from seepage.types import Target

    if target not in (None, *get_args(Target)):
        raise unknown("--target", str(target), [*get_args(Target), "input"])
    return cast("Target | None", target)


def attack(
    captured: Annotated[
        Path,
        typer.Argument(
            help="An observed/ folder, also somebody else's; or a file: the weights that were sent out, with AFTER, or "
            "a gradient, with --params. Files are .safetensors, or a state_dict that torch.save wrote."
        ),
    ],
    after: AfterArgument = None,
    params: Annotated[Path | None, typer.Option("--params", help="Weights that a gradient was made at.")] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(
            "--use",
            "--attack",
            help="Attack name or module:Attack, or NAME:OPTION=VALUE,...; default: those of an audit, or of text. "
            "Repeatable.",
            autocompletion=names_of("attacks"),
        ),
    ] = None,
    model: ModelOption = None,
    normalize: NormalizeOption = None,
    shape: ShapeOption = None,
    classes: ClassesOption = None,
    client: ClientOption = None,
    loss: LossOption = None,
    target: TargetOption = None,
    lr: RateOption = None,
    steps: StepsOption = None,
    weight_decay: DecayOption = None,
    batch_size: SizeOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    jobs: JobsOption = None,
    on: OnOption = None,
    trust: TrustOption = False,
    fail_if: Annotated[
        str | None,
        typer.Option(
            "--fail-if",
            help="Exit with code 1 if any row meets this: 'certified>0', all that can be judged without a truth.",
        ),
    ] = None,
    baseline: BaselineOption = None,
    all_attacks: AllOption = False,
    minutes: MinutesOption = None,
    reuse: ReuseOption = False,
    no_pictures: NoPicturesOption = False,
    allow: AllowOption = False,
    why: WhyOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Attack captured updates: two checkpoints, a gradient, or a recorded folder. No private example is needed.

    What a file does not tell is inferred from the update where that is possible, and said.
    """
    from functools import partial

    from seepage.audit.captured import attack_captured, attack_folder
    from seepage.audit.recorded import AttackRequest
    from seepage.cli.terminal import progress_bar
    from seepage.registry import Spec

    files = not captured.is_dir()
    told = (after, params, normalize, shape, classes, client, loss, target, lr, steps, weight_decay)
    if not files and any(x is not None for x in told):
        raise recorded_already(captured, "--params")
    named = named_tables(
        model or ("fc2" if files else None), client or ("fedsgd" if files else None), loss, normalize, trust=trust
    )
    tables = attack_tables(use, named, settings)
    if files:
        _check_files(captured, after, params)
        gradient = None if params is None else captured
        read = files_of(params or captured, after, gradient, lr, weight_decay)
        run = partial(attack_captured, capture_of(read, tables, shape, classes, steps, batch_size, target))
    else:
        run = partial(
            attack_folder,
            captured,
            model=Spec.of(tables["model"]) if "model" in tables else None,
            batch_size=batch_size,
        )
    condition = condition_of(fail_if, {})
    with running_on(on) as runner, progress_bar(off=as_json or quiet) as show:
        request = AttackRequest(
            attacks=tables["attack"],
            default=not use and not any(one.strip().startswith("attack") for one in settings or []),
            seed=seed or 0,
            device=device or "cpu",
            out=out,
            jobs=jobs,
            on=runner,
            show=show,
            command=command_line(),
            trust=trust,
            all_attacks=all_attacks,
            reuse=reuse or (condition is None and baseline is None),
            minutes=minutes_of(minutes, MINUTES, all_attacks=all_attacks, parts=use, settings=settings),
            tell=None if as_json or quiet else _tell,
        )
        finished = run(request=request)
        write_pages(finished.folder, show, again=finished.fresh, pictures=False if no_pictures else None)
    present(finished.folder, finished, as_json, quiet, why=why)
    gate(finished.result, condition)
    hold_against(finished.result, baseline)
    conclude(finished.result, allow=allow)


def recorded_already(folder: Path, weights: str) -> SeepageError:
    """The error for facts of files beside a folder, which states them; `weights` is the option beside a gradient."""
    return SeepageError(
        f"{folder} is a folder, in which all was recorded; leave out AFTER, {weights}, --normalize, --shape, "
        "--classes, --client, --loss, --target, --lr, --steps and --weight-decay, which are for files"
    )


def _tell(remark: str) -> None:
    print(printable(remark), file=sys.stderr)


def _check_files(captured: Path, after: Path | None, params: Path | None) -> None:
    if not captured.exists():
        raise SeepageError(f"{captured} does not exist; check the path")
    if (after is None) == (params is None):
        raise SeepageError(
            f"{captured} alone is no update; give the weights that came back after it (BEFORE AFTER), or, if it is a "
            "gradient, the weights it was made at with --params FILE, and not both"
        )


def attack_tables(
    use: Sequence[str] | None, named: Mapping[str, dict[str, Any]], settings: Sequence[str] | None
) -> dict[str, Any]:
    """The tables of the attacks, beside those of the model and the client where they are named."""
    from seepage.cli.parts import part_of
    from seepage.recipe.files import find_recipe, read_recipe
    from seepage.recipe.overrides import change
    from seepage.registry import KINDS

    if use:
        attacks = [part_of(name, "--use", KINDS["attacks"]).table() for name in use]
    else:
        attacks = read_recipe(find_recipe(None))["attack"]
    tables = change({"attack": attacks, **named}, settings or [])
    if set(tables) - {"attack", *named}:
        raise SeepageError(
            "seepage attack takes --set attack.OPTION=VALUE and, beside --model, --set model.OPTION=VALUE; "
            "all else was decided when the update was recorded"
        )
    labeled = [key for key in named if "label" in tables[key]]
    if labeled:
        raise SeepageError(f"a label names the rows of an attack, and {labeled[0]} has none; leave out its label")
    return tables
