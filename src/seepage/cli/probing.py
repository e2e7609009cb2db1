"""`seepage probe`: in seconds, whether gradient matching has a way back to the data, before hours of attacking."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seepage.cli.options import (
    ClientOption,
    DataOption,
    DefenseOption,
    DeviceOption,
    JsonOption,
    LossOption,
    ModelOption,
    QuietOption,
    RecipeArgument,
    SeedOption,
    SetOption,
    SizeOption,
    WeightsOption,
    tables_of,
)
from seepage.errors import printable

if TYPE_CHECKING:
    from seepage.audit.probing import Probe

MEANING = {
    "expected": "gradient matching is expected to bring examples back",
    "open": "gradient matching may bring examples back: attack it",
    "not expected": "gradient matching is not expected to bring examples back",
}
LIMIT = (
    "The probe starts beside the truth, which only its owner can, and judges gradient matching alone: closed forms, "
    "membership tests and other searches need no such slope. No outlook says that data are safe."
)


def probe(
    recipe: RecipeArgument = None,
    data: DataOption = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    client: ClientOption = None,
    loss: LossOption = None,
    batch_size: SizeOption = None,
    defense: DefenseOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Whether gradient matching has a way back to the data, and what batch norm gives away. Takes seconds."""
    from seepage.audit.probing import probe_cells
    from seepage.cli.terminal import progress_bar

    tables = tables_of(
        recipe, data=data, model=model, weights=weights, client=client, loss=loss, batch_size=batch_size,
        seed=seed, device=device, defenses=defense, settings=settings,
    )  # fmt: skip
    with progress_bar(off=as_json or quiet) as show:
        found = probe_cells(tables, show=show)
    if as_json:
        print(json.dumps({"schema": 1, "cells": [one.model_dump(mode="json") for one in found]}, allow_nan=False))
        return
    for one in found:
        print(printable(_line(one)))
    if not quiet:
        _print(found)
        print(LIMIT)


def _line(one: "Probe") -> str:
    if one.outlook is None:
        return f"{one.title}: not probed, since {one.reason}"
    from seepage.leakage.landscape import PROBE_NOISE

    near = next(at for at in one.cosines if at.noise == PROBE_NOISE)
    return f"{one.title}: {MEANING[one.outlook]} (cosine {near.cosine:.2f} at noise {near.noise:g})"


def _print(found: Sequence["Probe"]) -> None:
    """The cosines of every cell that was probed, as a table."""
    from rich.table import Table
    from rich.text import Text

    from seepage.cli.console import open_console

    probed = [one for one in found if one.outlook is not None]
    if not probed:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("cosine of descent with the way back, at noise", overflow="fold")
    for at in probed[0].cosines:
        table.add_column(f"{at.noise:g}", justify="right")
    for heading in ("chance", "batch norm", "variances read", "seconds"):
        table.add_column(heading, justify="right")
    for one in probed:
        norms = (one.batch_norm or "none read", f"{one.variances} of {one.channels}" if one.channels else "")
        cosines = (f"{at.cosine:.3f}" for at in one.cosines)
        table.add_row(Text(printable(one.title)), *cosines, f"{one.chance:.3f}", *norms, f"{one.seconds:.1f}")
    print()
    open_console(140).print(table)
    print()
