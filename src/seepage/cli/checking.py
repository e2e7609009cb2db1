"""`seepage check`: before any attack, what is known of a client, what its update gives away, and what to type."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seepage.cli.capturing import (
    AfterArgument,
    ClassesOption,
    DecayOption,
    GradientOption,
    RateOption,
    ShapeOption,
    StepsOption,
    TargetOption,
    attack_tables,
    capture_of,
    files_of,
    named_tables,
    recorded_already,
)
from seepage.cli.options import (
    MINUTES,
    ClientOption,
    DataOption,
    DefenseOption,
    DeviceOption,
    JsonOption,
    LossOption,
    ModelOption,
    NormalizeOption,
    QuietOption,
    SeedOption,
    SetOption,
    SizeOption,
    TrustOption,
    WeightsOption,
    tables_of,
)
from seepage.errors import SeepageError, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from seepage.audit.checking import Check, Checks, Look, Matching
    from seepage.audit.facts import Fact
    from seepage.audit.recorded import AttackRequest
    from seepage.leakage import Exposure
    from seepage.leakage.layers import LayerLeak

MOST_SILENT = 6
"""Layers that read positions, up to which each has a line of its own."""
MEANING = {
    "expected": "is expected to bring examples back",
    "open": "may bring examples back",
    "not expected": "is not expected to bring examples back",
}
LIMIT = "No attack was run: what is not named here may leak all the same, and no outlook says that data are safe."


def check(
    captured: Annotated[
        Path | None,
        typer.Argument(
            help="The weights that were sent out, with AFTER or --gradient; or an observed/ or run folder. Without it, "
            "your own batch: --recipe or --data."
        ),
    ] = None,
    after: AfterArgument = None,
    gradient: GradientOption = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Record this recipe's updates and look at them.")
    ] = None,
    data: DataOption = None,
    model: ModelOption = None,
    normalize: NormalizeOption = None,
    weights: WeightsOption = None,
    shape: ShapeOption = None,
    classes: ClassesOption = None,
    client: ClientOption = None,
    loss: LossOption = None,
    target: TargetOption = None,
    lr: RateOption = None,
    steps: StepsOption = None,
    weight_decay: DecayOption = None,
    batch_size: SizeOption = None,
    defense: DefenseOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    round_: Annotated[int, typer.Option("--round", min=0, help="The round to look at.")] = 0,
    trust: TrustOption = False,
    most: Annotated[
        int | None, typer.Option("--fail-above", min=0, help="Exit with code 1 if more examples are given away.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Take ten seconds more for the rank behind convolutions.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Before any attack, in seconds: what is known of the client, what its update leaks, and what to type next.

    No attack is run. Closed forms are looked at, whether gradient matching has a way back, and the attacks are timed.
    """
    from seepage.audit.checking import Look
    from seepage.cli.terminal import progress_bar

    typed = {
        "--gradient": gradient, "--recipe": recipe, "--data": data, "--model": model, "--normalize": normalize,
        "--weights": weights, "--shape": shape, "--classes": classes, "--client": client, "--loss": loss,
        "--target": target, "--lr": lr, "--steps": steps, "--weight-decay": weight_decay, "--batch-size": batch_size,
        "--defense": defense, "--seed": seed, "--device": device, "--set": settings, "--trust": trust or None,
    }  # fmt: skip
    with progress_bar(off=as_json or quiet) as show:
        look = Look(t=round_, thorough=thorough, timed=not quiet, show=show)
        if captured is None:
            found, words = _of_recipe(typed, look)
        elif captured.is_dir():
            found, words = _of_folder(captured, after, typed, look)
        else:
            found, words = _of_files(captured, after, typed, look)
    command = shlex.join(["seepage", *words])
    if any((fact.name, fact.origin) == ("learning rate", "unknown") for one in found.cells for fact in one.facts):
        command += " --lr RATE"  # without which no attack is begun
    if as_json:
        estimate = None if found.estimate is None else found.estimate.model_dump(mode="json")
        cells = [one.table() for one in found.cells]
        skipped = dict(found.skipped)
        print(
            json.dumps(
                {"schema": 1, "cells": cells, "skipped": skipped, "command": command, "time": estimate}, allow_nan=False
            )
        )
    else:
        _print(found, command, quiet=quiet)
    if most is not None and any(one.exposure.examples > most for one in found.cells):
        many = "example" if most == 1 else "examples"
        print(f"failed: an update gives away more than {most} {many} exactly", file=sys.stderr)
        raise typer.Exit(1)


OWN = ("--recipe", "--data", "--weights", "--defense", "--seed", "--device")
OF_FILES = (
    "--normalize",
    "--shape",
    "--classes",
    "--client",
    "--loss",
    "--target",
    "--lr",
    "--steps",
    "--weight-decay",
)


def _of_recipe(typed: Mapping[str, Any], look: "Look") -> tuple["Checks", list[str]]:
    """The looks at one's own batch, and the command that attacks it."""
    from seepage.audit.checking import check_recipe

    if all(typed[name] is None for name in ("--recipe", "--data", "--model", "--weights")):
        raise SeepageError(
            "there is nothing to look at; name BEFORE AFTER, an observed/ folder, or your own batch with --recipe NAME "
            "or --data FOLDER"
        )
    strange = [
        name
        for name in ("--gradient", "--shape", "--classes", "--target", "--lr", "--steps", "--weight-decay")
        if typed[name] is not None
    ]
    if strange:
        raise SeepageError(
            f"{strange[0]} is for captured files, and none are named; leave it out, or name BEFORE AFTER"
        )
    tables = tables_of(
        typed["--recipe"], data=typed["--data"], model=typed["--model"], weights=typed["--weights"],
        client=typed["--client"], loss=typed["--loss"], batch_size=typed["--batch-size"], seed=typed["--seed"],
        device=typed["--device"], defenses=typed["--defense"], settings=typed["--set"],
        normalize=typed["--normalize"], trust=bool(typed["--trust"]),
    )  # fmt: skip
    recipe = [typed["--recipe"]] if typed["--recipe"] else []
    return check_recipe(tables, look), ["audit", *recipe, *_spelled(typed, but=("--recipe",))]


def _of_folder(folder: Path, after: Path | None, typed: Mapping[str, Any], look: "Look") -> tuple["Checks", list[str]]:
    """The looks at recorded updates, and the command that attacks them."""
    from seepage.audit.checking import check_folder
    from seepage.cli.parts import part_of
    from seepage.registry import models

    _refuse_own(typed)
    if after is not None or any(typed[name] is not None for name in ("--gradient", *OF_FILES)):
        raise recorded_already(folder, "--gradient")
    if typed["--set"]:
        raise SeepageError("--set is for files and recipes; a recorded update is looked at as it is")
    named = None if typed["--model"] is None else part_of(typed["--model"], "--model", models)
    found = check_folder(folder, _request(typed), look, model=named, batch_size=typed["--batch-size"])
    return found, ["attack", str(folder), *_spelled(typed)]


def _of_files(before: Path, after: Path | None, typed: Mapping[str, Any], look: "Look") -> tuple["Checks", list[str]]:
    """The look at captured files, and the command that attacks them."""
    from seepage.audit.checking import check_capture
    from seepage.recipe.overrides import change

    _refuse_own(typed)
    gradient = None if typed["--gradient"] is None else Path(typed["--gradient"])
    model, client = typed["--model"], typed["--client"]
    tables = named_tables(
        model or "fc2", client or "fedsgd", typed["--loss"], typed["--normalize"], trust=bool(typed["--trust"])
    )
    tables = change(tables, typed["--set"] or [])
    files = files_of(before, after, gradient, typed["--lr"], typed["--weight-decay"])
    capture = capture_of(
        files, tables, typed["--shape"], typed["--classes"], typed["--steps"], typed["--batch-size"], typed["--target"]
    )
    found = check_capture(capture, _request(typed), look, named=model is not None)
    names = [str(before), str(after)] if gradient is None else [str(gradient), "--params", str(before)]
    return found, ["attack", *names, *_spelled(typed, but=("--gradient",))]


def _refuse_own(typed: Mapping[str, Any]) -> None:
    """Raise for options that are for one's own batch, beside files or a folder."""
    strange = next((name for name in OWN if typed[name] is not None), None)
    if strange is not None:
        raise SeepageError(f"{strange} is for a batch of your own, which is recorded first; leave it out, or the files")


def _request(typed: Mapping[str, Any]) -> "AttackRequest":
    """The attacks of `seepage attack` where nobody chooses any."""
    from seepage.audit.recorded import AttackRequest

    attacks = attack_tables(None, {}, None)["attack"]
    return AttackRequest(attacks=attacks, default=True, minutes=MINUTES, trust=bool(typed["--trust"]))


def _spelled(typed: Mapping[str, Any], but: Sequence[str] = ()) -> Iterator[str]:
    """Options as they were typed, for another command."""
    for name, value in typed.items():
        if value is not None and name not in but:
            for one in value if isinstance(value, list) else [value]:
                yield from [name] if one is True else [name, str(one)]


def _print(found: "Checks", command: str, *, quiet: bool) -> None:
    from rich.text import Text

    from seepage.cli.console import open_console

    console = open_console()
    for one in found.cells:
        # The table has what the update looks like.
        says = one.exposure.given if one.facts and not quiet else one.exposure.line
        words = f"{one.title}{f', round {one.exposure.t}' * (one.rounds > 1)}: {says}"
        if quiet:
            print(printable(f"{words}; {_matching_words(one.matching)}"))
            continue
        if one.facts:
            console.print(_facts_table(one.facts))
            console.print()
        console.print(Text(printable(words), style="bold"), soft_wrap=True)
        _print_exposure(one, console)
        console.print(Text(printable(_matching_words(one.matching))), soft_wrap=True)
        console.print()
    for title, why in found.skipped.items():
        print(printable(f"{title}: {why}"))
    if quiet:
        return
    print(LIMIT)
    if found.estimate is not None:
        print(f"time: {found.estimate.line}")
    print(f"attack it with:\n  {printable(command)}")
    open_ = [fact.option for one in found.cells for fact in one.facts if fact.option.startswith("--")]
    if open_:
        print(f"with what you know of the rest: {_to_type(open_)}")


def _to_type(options: Sequence[str]) -> str:
    """Options as they are typed, … for their values; all of the client's rule are parts of one option.

    >>> _to_type(["--shape", "--client fedsgd:mode=eval"])
    '--shape … --client fedsgd:mode=eval'
    >>> _to_type(["--steps", "--client fedavg:clip_norm"]).partition("; ")[2]
    'of another rule --client fedavg:lr=…,steps=…,clip_norm=… in place of --lr and --steps'
    """
    rules = [one.partition(":")[2] for one in dict.fromkeys(options) if one.startswith("--client ")]
    plain = [name for one in options if not one.startswith("--client ") for name in one.split(", ")]
    words = " ".join(f"{name} …" for name in dict.fromkeys(plain))
    if rules in ([], ["mode=eval"]):
        return " ".join([words, *(f"--client fedsgd:{one}" for one in rules)])
    own = ",".join(one if "=" in one else f"{one}=…" for one in ("lr", "steps", *rules))
    return f"{words}; of another rule --client fedavg:{own} in place of --lr and --steps"


def _facts_table(facts: Sequence["Fact"]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("fact", no_wrap=True)
    table.add_column("value", overflow="fold", ratio=1)
    table.add_column("origin", no_wrap=True)
    table.add_column("option", overflow="fold", max_width=28)
    styles = {"told": "dim", "read": "", "guessed": "yellow", "unknown": "red"}
    for one in facts:
        style = styles[one.origin]
        table.add_row(one.name, Text(printable(one.value)), Text(one.origin, style=style), one.option)
    return table


def _matching_words(found: "Matching") -> str:
    if found.outlook is None:
        return f"gradient matching: no outlook, since {found.reason}"
    from seepage.leakage.landscape import PROBE_NOISE

    near = next(at for at in found.cosines if at.noise == PROBE_NOISE)
    made_up = ", on a made-up batch in place of the client's" if found.made_up else ""
    words = f"gradient matching {MEANING[found.outlook]}{made_up} (cosine {near.cosine:.2f} at noise {near.noise:g}"
    more = [f"{at.cosine:.2f} at {at.noise:g}" for at in found.cosines if at is not near]
    return "; ".join([words, *more, f"by chance {found.chance:.3f})"])


def _print_exposure(one: "Check", console: "Console") -> None:
    """What gives something away, tensor by tensor, and what the update says besides."""
    from rich.table import Table
    from rich.text import Text

    found = one.exposure
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("gives away, with its layer", overflow="fold", ratio=1)
    telling = [says for says in found.tensors if says.withhold]
    for says in telling:
        table.add_row(Text(printable(says.name)), Text(says.gives or ""), style="red")
    silent = len(found.tensors) - len(telling)
    if silent:
        many = "1 tensor" if silent == 1 else f"{silent} tensors"
        table.add_row(f"{'further ' * bool(telling)}{many}", "no closed form found, which is no proof", style="dim")
    console.print(table)
    for line in _facts(found, told=bool(one.facts)):
        console.print(Text(printable(line)), soft_wrap=True)


def _facts(found: "Exposure", *, told: bool) -> Iterator[str]:
    """Lines on an update; what the table of facts has is left out where that was `told`."""
    if not (found.sent.whole or told):
        yield found.sent.line
    for adapter in found.adapters:
        yield f"{adapter.layer}: adapter of rank {adapter.rank} gives {adapter.words}"
    yield from _layer_lines(found.layers)
    if found.labels is not None and not told:
        yield _label_words(found)
    modes = sorted({norm.mode for norm in found.norms})
    if modes and not told:
        read, channels = sum(norm.variances for norm in found.norms), sum(norm.channels for norm in found.norms)
        yield f"batch norm: {' and '.join(modes)} mode; {read} of {channels} variances of the batch can be read"
    if found.features:
        yield f"head: {found.features}"
    if found.indexed is not None:
        yield from found.indexed.lines
    yield from (f"note: {note}" for note in found.notes)


def _layer_lines(layers: Sequence["LayerLeak"]) -> Iterator[str]:
    """A line for each fully connected layer, or one for all that read positions where these are many."""
    inner = [look for look in layers if look.reads == "positions"]
    folded = inner if len(inner) > MOST_SILENT else []
    for look in layers:
        if look not in folded:
            more = ", or more" if look.full else ""
            yield f"{look.layer or 'model'}: rank {look.rank}{more}, {look.neurons} neurons, reads {look.reads}"
    if folded:
        low, high = min(look.rank for look in folded), max(look.rank for look in folded)
        rank = f"{low}" if low == high else f"{low} to {high}"
        yield (
            f"{len(folded)} further layers: inner features at the positions of an example, such as tokens; rank "
            f"{rank}; no row is one example's"
        )


def _label_words(found: "Exposure") -> str:
    labels = found.labels
    assert labels is not None
    if not labels.sound:
        return "labels: the last bias gradient was changed, or is no cross-entropy's; nothing is read off it"
    words = f"labels: classes {', '.join(map(str, labels.present)) or 'none'} are there"
    if labels.counts is None or labels.doubt is None:
        return words
    counts = ", ".join(f"{count} of class {name}" for name, count in enumerate(labels.counts) if count)
    sure = ", ".join(f"{count} of class {name}" for name, count in enumerate(labels.least or ()) if count)
    off = f"before rounding up to {labels.doubt:.2f} off a whole number"
    return f"{words}; estimated counts: {counts} ({off}); at the least, whatever the outputs were: {sure or 'none'}"
