"""`seepage attack` and `seepage record`: updates that somebody captured, with no truth at hand, or simulated ones."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from seepage.cli.comparing import hold_against
from seepage.cli.membership import CandidateOptions, infer
from seepage.cli.options import (
    MINUTES,
    AfterArgument,
    AttackerOptions,
    CertifiedGateOptions,
    FileOptions,
    KnownOption,
    NetworkOptions,
    OutOption,
    OwnOptions,
    PrintOptions,
    ShowOptions,
    SimulationOptions,
    WorkerOptions,
    add_to_model,
    running_on,
    tables_of,
    typed,
)
from seepage.cli.showing import command_line, conclude, condition_of, gate_on, present, write_pages
from seepage.cli.stopping import began
from seepage.errors import SeepageError, printable, say, short

if TYPE_CHECKING:
    from seepage.audit.capture import Capture
    from seepage.federation.types import Target


def is_recipe(source: str | None, after: Path | None, facts: FileOptions) -> bool:
    """Whether the first argument is a recipe, or none at all, and no file of weights."""
    from seepage.audit.recipe.files import list_recipes

    if after is not None or facts.gradient is not None or facts.difference is not None:
        return False
    return source is None or source.endswith(".toml") or source in list_recipes() or not Path(source).exists()


def is_files(path: Path) -> bool:
    """Whether this is a file of weights, or a folder that a library saved them in, and no recording."""
    from seepage.federation.models.weights import weights_in

    return not path.is_dir() or weights_in(path) is not None


def refuse_facts(facts: FileOptions) -> None:
    """Raise for facts of captured files where there are none."""
    for name in given(typed(facts)):
        raise SeepageError(f"{name} is for captured files, and none are given; leave it out, or give BEFORE AFTER")


def refuse_recorded(folder: Path, after: Path | None, own: NetworkOptions, facts: FileOptions) -> None:
    """Raise for facts of files beside a folder, which states them."""
    if after is not None or any(given(typed(facts))) or own.normalize or own.client or own.loss:
        raise SeepageError(
            f"{folder} is a folder, in which all was recorded; leave out AFTER, --gradient, --difference, --normalize, "
            "--shape, --classes, --client, --loss, --target, --lr, --steps and --weight-decay, which are for files"
        )


def refuse_own(own: SimulationOptions) -> None:
    """Raise for options of one's own batch, beside files or a folder."""
    options = typed(own)
    for name in (*typed(OwnOptions()), "--seed", "--device"):
        if options[name] is not None:
            raise SeepageError(
                f"{name} is for a batch of your own, which is recorded first; leave it out, or the files"
            )


def given(options: Mapping[str, Any]) -> Iterator[str]:
    """The options that were typed."""
    return (name for name, value in options.items() if value is not None)


def record(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|BEFORE]",
            help="A recipe, which is simulated; or the weights that the server sent out (.safetensors, or a "
            "state_dict), with AFTER or --gradient.",
        ),
    ] = None,
    after: AfterArgument = None,
    *,
    own: SimulationOptions,
    facts: FileOptions,
    known: KnownOption = None,
    out: OutOption = None,
    printed: PrintOptions,
) -> None:
    """Write an observed/ folder without attacking: of simulated clients, of two checkpoints, or of a gradient."""
    if not is_recipe(source, after, facts):
        refuse_own(own)
        _record_files(Path(str(source)), after, own, facts, out or Path("observed"), printed)
        return
    from seepage.audit.run import record_only
    from seepage.cli.terminal import progress_bar

    refuse_facts(facts)
    tables = tables_of(source, own, known=known)
    with progress_bar(off=printed.silent) as show:
        folder = record_only(tables, out=out, show=show)
    if printed.as_json:
        print(json.dumps({"schema": 1, "run": str(folder)}))
    else:
        print(f"recorded: {folder}/observed (what a server sees) and {folder}/private (the truth; keep it)")


def _record_files(
    before: Path, after: Path | None, own: NetworkOptions, facts: FileOptions, out: Path, printed: PrintOptions
) -> None:
    from seepage.audit.observe import observe_files
    from seepage.audit.recipe.overrides import change

    tables = change(named_tables(own, of_files=True), own.settings or [])
    if set(tables) - {"model", "client"}:
        raise SeepageError("of files seepage record takes --set model.OPTION=VALUE and --set client.OPTION=VALUE")
    remarks = observe_files(capture_of(before, after, own, facts, tables), out)
    if printed.as_json:
        print(json.dumps({"schema": 1, "observed": str(out), "remarks": remarks}))
        return
    for remark in remarks if not printed.quiet else ():
        print(remark)
    print(f"observed: {out}; attack it with: seepage attack {out}")


def named_tables(own: NetworkOptions, *, of_files: bool) -> dict[str, dict[str, Any]]:
    """The tables of the model and the client where they are named; of files they are fc2 and fedsgd otherwise."""
    from seepage.base.registry import KINDS
    from seepage.cli.parts import part_of

    names = {
        "model": own.model or ("fc2" if of_files else None),
        "client": own.client or ("fedsgd" if of_files else None),
    }
    tables = {key: part_of(name, f"--{key}", KINDS[f"{key}s"]).table() for key, name in names.items() if name}
    if own.loss is not None:
        tables["client"]["loss"] = own.loss
    add_to_model(tables, own.normalize, trust=own.trust)
    return tables


def capture_of(
    before: Path, after: Path | None, own: NetworkOptions, facts: FileOptions, tables: Mapping[str, Any]
) -> "Capture":
    """Captured files, with what is known of them."""
    from seepage.audit.capture import Capture
    from seepage.audit.observe import parse_shape
    from seepage.base.registry import Spec
    from seepage.errors import unknown
    from seepage.federation.types import Target

    client, target = Spec.of(tables["client"]), facts.target
    if target not in (None, "input", *get_args(Target)):
        raise unknown("--target", str(target), [*get_args(Target), "input"])
    if target == "input":  # which the client's rule says, as it is no number of an attacker's
        client, target = client.with_options(target="input"), None
    return Capture(
        before=before,
        after=after,
        gradient=facts.gradient,
        difference=facts.difference,
        lr=facts.lr,
        weight_decay=facts.weight_decay,
        architecture=Spec.of(tables["model"]),
        client=client,
        input_shape=None if facts.shape is None else parse_shape(facts.shape),
        num_classes=facts.classes,
        steps=facts.steps,
        batch_size=own.batch_size,
        target=cast("Target | None", target),
        values=None if facts.values is None else _range_of(facts.values),
        blocks=() if facts.blocks is None else _blocks_of(facts.blocks),
    )


def _range_of(text: str) -> tuple[float, float]:
    """The two numbers of `--values`.

    >>> _range_of("-3,3.5")
    (-3.0, 3.5)
    """
    parts = text.split(",")
    try:
        low, high = map(float, parts)
    except ValueError:
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise SeepageError(f"--values takes the smallest and the largest number, such as -3,3, got {short(text)}")
    return low, high


def _blocks_of(text: str) -> tuple[tuple[int, int], ...]:
    """The pairs of `--blocks`.

    >>> _blocks_of("4:3,7:2")
    ((4, 3), (7, 2))
    """
    pairs = [part.split(":") for part in text.split(",")]
    if not all(len(pair) == 2 and all(number.strip().isdecimal() for number in pair) for pair in pairs):
        raise SeepageError(f"--blocks takes pairs of first place and width, such as 4:3,7:2, got {short(text)}")
    return tuple((int(first), int(width)) for first, width in pairs)


def attack(
    captured: Annotated[
        Path,
        typer.Argument(
            help="An observed/ folder, also somebody else's; or the weights that were sent out, with AFTER or "
            "--gradient. Files are .safetensors, or a state_dict that torch.save wrote."
        ),
    ],
    after: AfterArgument = None,
    *,
    attacker: AttackerOptions,
    own: NetworkOptions,
    facts: FileOptions,
    candidates: CandidateOptions,
    out: OutOption = None,
    workers: WorkerOptions,
    gate: CertifiedGateOptions,
    shown: ShowOptions,
) -> None:
    """Attack captured updates: two checkpoints, a gradient, or a recorded folder. No private example is needed.

    What a file does not tell is inferred from the update where that is possible, and said. With --candidates it is
    tested which of these examples were in the batch.
    """
    from functools import partial

    from seepage.audit.captured import attack_captured, attack_folder
    from seepage.audit.recorded import AttackRequest
    from seepage.base.registry import Spec
    from seepage.cli.terminal import progress_bar

    files = is_files(captured)
    if files:
        _check_files(captured, after, facts.gradient or facts.difference)
    else:
        refuse_recorded(captured, after, own, facts)
    if candidates.candidates is not None or candidates.public is not None:
        if files:
            raise SeepageError(f"--candidates are tested on a recorded update; first: seepage record {captured} AFTER")
        unfit = next(given(typed(gate) | {"--minutes": attacker.minutes, "--on": workers.on, "--out": out}), None)
        if unfit is not None:
            raise SeepageError(f"a membership test writes no run and has no gate; leave out {unfit}")
        infer(captured, candidates, attacker.attack, own, shown)
        return
    named = named_tables(own, of_files=files)
    tables = attack_tables(attacker.attack, named, own.settings)
    if files:
        run = partial(attack_captured, capture_of(captured, after, own, facts, tables))
    else:
        model = Spec.of(tables["model"]) if "model" in tables else None
        run = partial(attack_folder, captured, model=model, batch_size=own.batch_size)
    condition = condition_of(gate.fail_if, {})
    with running_on(workers.on) as runner, progress_bar(off=shown.silent) as show:
        request = AttackRequest(
            attacks=tables["attack"],
            default=not attacker.attack and not any(one.strip().startswith("attack") for one in own.settings or []),
            seed=own.seed or 0,
            device=own.device or "cpu",
            out=out,
            jobs=workers.jobs,
            on=runner,
            show=show,
            command=command_line(),
            trust=own.trust,
            all_attacks=attacker.all_attacks,
            reuse=gate.reuse or (condition is None and gate.baseline is None),
            minutes=attacker.time(MINUTES, own.settings),
            began=began(),
            tell=None if shown.silent else lambda remark: say(printable(remark)),
        )
        finished = run(request=request)
        write_pages(finished.folder, show, again=finished.fresh, pictures=shown.pictures)
    present(finished, shown)
    gate_on(finished.result, condition, silent=shown.silent)
    hold_against(finished.result, gate.baseline)
    conclude(finished.result, allow=gate.allow)


def _check_files(captured: Path, after: Path | None, gradient: Path | None) -> None:
    if not captured.exists():
        raise SeepageError(f"{captured} does not exist; check the path")
    if (after is None) == (gradient is None):
        raise SeepageError(
            f"{captured} alone is no update; give the weights returned for it (BEFORE AFTER), or the gradient "
            "that was made at it with --gradient FILE, or what was sent in their place with --difference FILE, and "
            "one of them"
        )


def attack_tables(
    use: Sequence[str] | None, named: Mapping[str, dict[str, Any]], settings: Sequence[str] | None
) -> dict[str, Any]:
    """The tables of the attacks, beside those of the model and the client where they are named."""
    from seepage.audit.recipe.files import find_recipe, read_recipe
    from seepage.audit.recipe.overrides import change
    from seepage.base.registry import KINDS
    from seepage.cli.parts import part_of

    if use:
        attacks = [part_of(name, "--attack", KINDS["attacks"]).table() for name in use]
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
