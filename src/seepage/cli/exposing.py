"""`seepage exposure`: what an update gives away in closed form, before any attack."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seepage.cli.options import DefenseOption, JsonOption, ModelOption, QuietOption, SetOption, SizeOption, tables_of
from seepage.errors import SeepageError, printable

if TYPE_CHECKING:
    from seepage.leakage import Exposure
    from seepage.leakage.layers import LayerLeak

NOTHING = "no closed form found, which is no proof"
MOST_SILENT = 6
"""Tensors that give nothing away, and layers that read positions, up to which each has a line of its own."""
PROOF = "No attack was run: what is not named here may leak all the same. Attack it with: "


def exposure(
    folder: Annotated[
        Path | None, typer.Argument(help="An observed/ folder, also somebody else's; or --recipe.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Record this recipe's updates and look at them.")
    ] = None,
    round_: Annotated[int, typer.Option("--round", min=0, help="The round to look at.")] = 0,
    model: ModelOption = None,
    batch_size: SizeOption = None,
    defense: DefenseOption = None,
    settings: SetOption = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that the folder names, such as its loss; it is yours.")
    ] = False,
    most: Annotated[
        int | None, typer.Option("--fail-above", min=0, help="Exit with code 1 if more examples are given away.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Take ten seconds more for the rank behind convolutions.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """What an update gives away by itself, layer by layer, with no attack run. Takes a second."""
    if (folder is None) == (recipe is None):
        raise SeepageError("give either an observed/ folder or --recipe NAME, and not both")
    if folder is not None:
        if defense or settings:
            raise SeepageError("--defense and --set are for --recipe; a recorded update is looked at as it is")
        found = list(_of_folder(folder, round_, model, batch_size, trust=trust, thorough=thorough))
    else:
        tables = tables_of(recipe, model=model, batch_size=batch_size, defenses=defense, settings=settings)
        found = list(_of_recipe(tables, round_, thorough))
    if as_json:
        cells = [{"cell": name, **one.table()} for name, one in found]
        print(json.dumps({"schema": 1, "cells": cells}, allow_nan=False))
    else:
        for name, one in found:
            _print(name, one, quiet)
        print(f"{PROOF}{'seepage attack FOLDER' if folder is not None else 'seepage audit RECIPE'}")
    if most is not None and any(one.examples > most for _, one in found):
        many = "example" if most == 1 else "examples"
        print(f"failed: an update gives away more than {most} {many} exactly", file=sys.stderr)
        raise typer.Exit(1)


def _of_folder(
    folder: Path,
    t: int,
    model: str | None = None,
    batch_size: int | None = None,
    *,
    trust: bool = False,
    thorough: bool = False,
) -> Iterator[tuple[str, "Exposure"]]:
    from seepage.cli.parts import part_of
    from seepage.leakage import exposure as look
    from seepage.registry import models
    from seepage.transcript.recorded import list_transcripts, open_transcript

    architecture = None if model is None else part_of(model, "--model", models)
    for one in list_transcripts(folder):
        seen = open_transcript(one, architecture=architecture, batch_size=batch_size, trust=trust)
        yield one.name, look(seen, t=t, thorough=thorough)


def _of_recipe(tables: dict[str, object], t: int, thorough: bool) -> Iterator[tuple[str, "Exposure"]]:
    from seepage.audit.run import record_only
    from seepage.core.lock import scratch

    with scratch() as place:
        run = place / "run"
        record_only(tables, out=run)
        shutil.rmtree(run / "private")  # the look needs none of it
        yield from _of_folder(run / "observed", t, trust=True, thorough=thorough)


def _print(name: str, found: "Exposure", quiet: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from seepage.cli.console import open_console

    console = open_console()
    console.print(Text(printable(f"{name}, round {found.t}: {found.line}"), style="bold"), soft_wrap=True)
    if quiet:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("gives away, with its layer", overflow="fold", ratio=1)
    silent = [says.name for says in found.tensors if not says.withhold]
    folded = set(silent if len(silent) > MOST_SILENT else ())
    for mark, says in zip(found.fingerprints, found.tensors, strict=True):
        if says.name not in folded:
            shape = "x".join(map(str, mark.shape)) or "1"
            words = says.gives or NOTHING
            table.add_row(Text(printable(says.name)), shape, Text(words), style="red" if says.withhold else "dim")
    if folded:
        table.add_row(f"{len(folded)} further tensors", "", NOTHING, style="dim")
    console.print(table)
    for line in _facts(found):
        console.print(Text(printable(line)), soft_wrap=True)
    console.print()


def _facts(found: "Exposure") -> Iterator[str]:
    if not found.sent.whole:
        yield found.sent.line
    for adapter in found.adapters:
        yield f"{adapter.layer}: adapter of rank {adapter.rank} gives {adapter.words}"
    yield from _layer_lines(found.layers)
    if found.labels is not None:
        yield _label_words(found)
    modes = sorted({norm.mode for norm in found.norms})
    if modes:
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
