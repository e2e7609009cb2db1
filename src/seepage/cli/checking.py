"""`seepage check`: before any attack, what is known of a client, what its update reveals, and what to type."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seepage.cli.capturing import (
    capture_of,
    is_files,
    is_recipe,
    named_tables,
    refuse_facts,
    refuse_own,
    refuse_recorded,
)
from seepage.cli.options import AfterArgument, FileOptions, PrintOptions, SimulationOptions, tables_of, typed
from seepage.errors import SeepageError, printable, say

if TYPE_CHECKING:
    from rich.table import Table

    from seepage.attacks.exposure import Exposure
    from seepage.audit.checking import Check, Checks, Look
    from seepage.audit.facts import Fact
    from seepage.cli.console import PlainConsole

IN_FACTS = ("labels", "batch-norm", "columns")
"""Findings that the table of facts has as well."""
MOST_NAMED = 4
"""Tensors of one kind that the table names; more are counted."""
LIMIT = (
    "No attack was run: what is not listed here may leak all the same. An example is what the network was given: an "
    "augmented one, or a mixture of two under mixup."
)


def check(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|BEFORE|FOLDER]",
            help="The weights that were sent out, with AFTER or --gradient; an observed/ or run folder; or a recipe. "
            "Without it, your own batch: --data.",
        ),
    ] = None,
    after: AfterArgument = None,
    *,
    own: SimulationOptions,
    facts: FileOptions,
    round_: Annotated[int, typer.Option("--round", min=0, help="The round to look at.")] = 0,
    fail_if: Annotated[
        str | None,
        typer.Option("--fail-if", help="CI gate: exit 1 if an update meets this: exposed>0, examples revealed."),
    ] = None,
    printed: PrintOptions,
) -> None:
    """Before any attack, in seconds: what is known of the client, what its update leaks, and what to type next.

    No attack is run. Closed forms are looked at.
    """
    from seepage.audit.checking import Look
    from seepage.audit.gate import parse_condition
    from seepage.cli.terminal import progress_bar

    condition = None if fail_if is None else parse_condition(fail_if, scores=("exposed",))
    folder = None if source is None or is_files(Path(source)) else Path(source)
    with progress_bar(off=printed.silent) as show:
        look = Look(t=round_, show=show)
        if folder is not None:
            found, words = _of_folder(folder, after, own, facts, look)
        elif is_recipe(source, after, facts):
            found, words = _of_recipe(source, own, facts, look)
        else:
            found, words = _of_files(Path(str(source)), after, own, facts, look)
    command = shlex.join(["seepage", *words])
    if printed.as_json:
        cases = [one.table() for one in found.cases]
        looked = {"cases": cases, "skipped": dict(found.skipped), "command": command}
        print(json.dumps({"schema": 1, **looked}, allow_nan=False))
    else:
        _print(found, command, quiet=printed.quiet)
    exposed = [one.exposure.examples for one in found.cases]
    met = [count for count in exposed if condition is not None and condition.meets(count)]
    if met:
        say(f"failed: {condition}, as an update reveals {max(met)} exactly")
        raise typer.Exit(1)


def _of_recipe(
    recipe: str | None, own: SimulationOptions, facts: FileOptions, look: "Look"
) -> tuple["Checks", list[str]]:
    """The looks at one's own batch, and the command that attacks it."""
    from seepage.audit.checking import check_recipe

    if recipe is None and own.data is None and own.model is None and own.weights is None:
        raise SeepageError(
            "there is nothing to look at; name BEFORE AFTER, an observed/ folder, a recipe, or your own batch with "
            "--data FOLDER"
        )
    refuse_facts(facts)
    words = ["audit", *([recipe] if recipe else []), *_spelled(typed(own))]
    return check_recipe(tables_of(recipe, own), look), words


def _of_folder(
    folder: Path, after: Path | None, own: SimulationOptions, facts: FileOptions, look: "Look"
) -> tuple["Checks", list[str]]:
    """The looks at recorded updates, and the command that attacks them."""
    from seepage.audit.checking import check_folder
    from seepage.base.registry import models
    from seepage.cli.parts import part_of

    refuse_own(own)
    refuse_recorded(folder, after, own, facts)
    if own.settings:
        raise SeepageError("--set is for files and recipes; a recorded update is looked at as it is")
    named = None if own.model is None else part_of(own.model, "--model", models)
    found = check_folder(folder, look, trust=own.trust, model=named, batch_size=own.batch_size)
    return found, ["attack", str(folder), *_spelled(typed(own))]


def _of_files(
    before: Path, after: Path | None, own: SimulationOptions, facts: FileOptions, look: "Look"
) -> tuple["Checks", list[str]]:
    """The look at captured files, and the command that attacks them."""
    from seepage.audit.checking import check_capture
    from seepage.audit.recipe.overrides import change

    refuse_own(own)
    tables = change(named_tables(own, of_files=True), own.settings or [])
    capture = capture_of(before, after, own, facts, tables)
    found = check_capture(capture, look, named=own.model is not None)
    return found, ["attack", str(before), *([str(after)] if after else []), *_spelled(typed(own) | typed(facts))]


def _spelled(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as they were typed, for another command."""
    for name, value in options.items():
        if value is not None:
            for one in value if isinstance(value, list) else [value]:
                yield from [name] if one is True else [name, str(one)]


def _print(found: "Checks", command: str, *, quiet: bool) -> None:
    from rich.text import Text

    from seepage.cli.console import open_console

    console = open_console()
    for one in found.cases:
        # The table has what the update looks like.
        says = one.exposure.given if one.facts and not quiet else one.exposure.line
        words = f"{one.title}{f', round {one.exposure.t}' * (one.rounds > 1)}: {says}"
        if quiet:
            print(printable(words))
            continue
        if one.facts:
            console.print(_facts_table(one.facts))
            console.print()
        console.print(Text(printable(words), style="bold"), soft_wrap=console.whole_lines)
        _print_exposure(one, console)
        console.print()
    for title, why in found.skipped.items():
        print(printable(f"{title}: {why}"))
    if quiet:
        return
    print(LIMIT)
    print(f"attack it with:\n  {printable(command)}")
    open_ = [fact.option for one in found.cases for fact in one.facts if fact.option.startswith("--")]
    if open_:
        print(f"with what you know {_to_type(open_)}")


def _to_type(options: Sequence[str]) -> str:
    """Options as they are typed, … for their values; all of the client's rule are parts of one option.

    >>> _to_type(["--shape", "--client fedsgd:mode=eval"])
    'of the rest: --shape … --client fedsgd:mode=eval'
    >>> _to_type(["--steps", "--client fedavg:clip_norm"]).partition("; ")[2]
    'of another rule --client fedavg:lr=…,steps=…,clip_norm=… in place of --lr and --steps'
    """
    rules = [one.partition(":")[2] for one in dict.fromkeys(options) if one.startswith("--client ")]
    plain = [name for one in options if not one.startswith("--client ") for name in one.split(", ")]
    words = " ".join(f"{name} …" for name in dict.fromkeys(plain))
    if rules in ([], ["mode=eval"]):
        return " ".join(["of the rest:", *[words] * bool(words), *(f"--client fedsgd:{one}" for one in rules)])
    own = ",".join(one if "=" in one else f"{one}=…" for one in ("lr", "steps", *rules))
    rest = f"of the rest: {words}; " if words else ""
    return f"{rest}of another rule --client fedavg:{own} in place of --lr and --steps"


def _facts_table(facts: Sequence["Fact"]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("fact", no_wrap=True)
    table.add_column("value", overflow="fold", ratio=1)
    table.add_column("origin", no_wrap=True)
    table.add_column("option", overflow="fold", max_width=28)
    styles = {"stated": "dim", "read": "", "inferred": "yellow", "assumed": "yellow", "unknown": "red"}
    for one in facts:
        style = styles[one.origin]
        table.add_row(one.name, Text(printable(one.value)), Text(one.origin, style=style), one.option)
    return table


def _print_exposure(one: "Check", console: "PlainConsole") -> None:
    """What gives something away, tensor by tensor, and what the update says besides."""
    from rich.table import Table
    from rich.text import Text

    found = one.exposure
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("reveals, with its layer", overflow="fold", ratio=1)
    telling = [says for says in found.tensors if says.withhold]
    for gives, names in groupby(telling, key=lambda says: says.gives):
        own = [printable(says.name) for says in names]
        listed = own if len(own) <= MOST_NAMED else [*own[: MOST_NAMED - 1], f"and {len(own) - MOST_NAMED + 1} more"]
        table.add_row(Text("\n".join(listed)), Text(gives or ""), style="red")
    silent = len(found.tensors) - len(telling)
    if silent:
        many = "1 tensor" if silent == 1 else f"{silent} tensors"
        table.add_row(f"{'further ' * bool(telling)}{many}", "no closed form found, which is no proof", style="dim")
    console.print(table)
    for line in _facts(found, stated=bool(one.facts)):
        console.print(Text(printable(line)), soft_wrap=console.whole_lines)


def _facts(found: "Exposure", *, stated: bool) -> Iterator[str]:
    """Lines on an update; what the table of facts has is left out where that was `stated`."""
    if not (found.sent.whole or stated):
        yield found.sent.line
    for one in found.findings:
        if not (stated and one.name in IN_FACTS):
            yield from one.lines
    yield from (f"note: {note}" for note in found.notes)
