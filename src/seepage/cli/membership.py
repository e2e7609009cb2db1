"""`seepage attack --candidates`: which candidates were in the batch behind a recorded update."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seepage.cli.options import NetworkOptions, PrintOptions
from seepage.errors import SeepageError, printable, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from seepage.attacks.membership import Membership
    from seepage.base.units import Units
    from seepage.federation.data import Dataset
    from seepage.federation.types import Batch

_members = partial(typer.Option, rich_help_panel="Membership inference")


@dataclass(frozen=True, kw_only=True)
class CandidateOptions:
    """Examples that may have been in the batch, and how they are tested."""

    candidates: Annotated[
        str | None,
        _members(
            "--candidates",
            help="Test which of these examples were in the batch: a folder, zip, npz or name of data. --attack names "
            "the test; default: span_or_filter.",
        ),
    ] = None
    public: Annotated[
        str | None,
        _members(
            "--public",
            help="Known non-members from the same distribution, for calibration: some hundreds, with every class.",
        ),
    ] = None
    level: Annotated[
        float, _members("--level", help="False positive rate at which a candidate counts as a member.")
    ] = 0.01
    round_: Annotated[
        list[int] | None,
        _members(
            "--round",
            min=0,
            help="The round to look at, or several with the same data behind them. Of a folder that a recorder wrote "
            "for several clients: whose candidates are they?",
        ),
    ] = None


def infer(
    observed: Path, asked: CandidateOptions, tests: list[str] | None, own: NetworkOptions, printed: PrintOptions
) -> None:
    """Membership inference on a recorded update: a p-value for each candidate. No truth is needed."""
    from seepage.attacks.base import Shown
    from seepage.attacks.membership import MEMBERSHIP_TESTS, MembershipInference, infer_membership, whose
    from seepage.base.progress import Doing
    from seepage.base.registry import models
    from seepage.cli.parts import part_of
    from seepage.cli.terminal import progress_bar
    from seepage.federation.transcript.recorded import open_transcript

    candidates, public, level = asked.candidates, asked.public, asked.level
    if candidates is None or public is None:
        raise SeepageError("--candidates FILE and --public FILE go together: what is tested, and what calibrates it")
    if len(tests or ()) > 1:
        raise SeepageError("--candidates are tested by one membership test; leave out all but one --attack")
    tester = part_of((tests or ["span_or_filter"])[0], "--attack", MEMBERSHIP_TESTS)
    chosen = MEMBERSHIP_TESTS.build(tester)
    if not 0 < level < 1:
        raise SeepageError(f"--level must lie between 0 and 1, got {level}; 0.01 is usual")
    where = own.device or "cpu"
    architecture = None if own.model is None else part_of(own.model, "--model", models)
    clients = _clients(observed, asked.round_)
    all_seen = [
        open_transcript(one, architecture=architecture, batch_size=own.batch_size, device=where, trust=own.trust)
        for one in clients or [observed]
    ]
    seen, rounds = all_seen[0], [0] if clients else asked.round_ or [0]
    for t in rounds:
        if not 0 <= t < len(seen):
            count = "1 round" if len(seen) == 1 else f"{len(seen)} rounds"
            raise SeepageError(f"{observed} has {count}, and round {t} was asked for; they count from 0")
    (known, _), (tested, resized) = (_load(use, seen.knowledge.input_shape) for use in (public, candidates))
    classes = seen.knowledge.num_classes
    if len(known.classes) != classes:
        raise SeepageError(
            f"{public} has {len(known.classes)} classes and the model {classes}; give public examples of every class, "
            "so that labels are numbered as the model's are"
        )
    suspects, shown = _numbered(tested, known.classes, candidates), _numbered(known, known.classes, public)
    twice = len(_digests(suspects.inputs) & _digests(shown.inputs))
    if twice:
        raise SeepageError(
            f"{twice} candidates are among the public examples too, which must have been in no batch; take them out of "
            f"{public}"
        )
    with progress_bar(off=printed.silent) as show:
        progress = Shown(lambda done, total: show(done, total, Doing(tester.use)))
        seed, suspects, shown = own.seed or 0, suspects.to(where), shown.to(where)
        if clients:
            inference = MembershipInference(chosen, seen, shown, seed=seed, progress=progress)
            found, places = whose([inference.of(one[0], suspects, progress=progress) for one in all_seen])
            owners = [clients[place].name.split("-client-")[1] for place in places.tolist()]
        else:
            owners = None
            found = infer_membership(seen, chosen, suspects, shown, t=rounds, seed=seed, progress=progress)
    names = _names(tested, suspects)
    _present(found, names, level, tester.use, resized, printed, owners)


def _clients(observed: Path, rounds: list[int] | None) -> list[Path]:
    """The folders of one round's clients, where a recorder wrote them there; none where this is one client's.

    Raises:
        SeepageError: Where the folder holds several rounds, and not one of them is named.
    """
    found = sorted(one for one in observed.glob("*-client-*") if one.name.split("-")[0].isdigit())
    held = sorted({int(one.name.split("-")[0]) for one in found})
    asked = held if rounds is None else rounds
    if found and (len(asked) != 1 or asked[0] not in held):
        raise SeepageError(f"{observed} holds clients of the rounds {held}; name one of them with --round")
    return [one for one in found if int(one.name.split("-")[0]) == asked[0]]


def _digests(inputs: "Tensor") -> set[bytes]:
    """A digest of each example."""
    return {hashlib.sha256(row.numpy().tobytes()).digest() for row in inputs.cpu().contiguous()}


def _load(use: str, shape: tuple[int, ...]) -> tuple["Dataset", str | None]:
    """A data set in the model's shape, and in words what was done to bring it there; None: nothing."""
    from seepage.federation import data

    plain = None
    with suppress(SeepageError):  # such as images of several sizes
        plain = data.load(use)
    if plain is not None and tuple(plain.input_shape) == shape:
        return plain, None
    size, channels = (shape[-1], shape[0]) if len(shape) == 3 else (None, None)
    before = "several sizes" if plain is None else " x ".join(map(str, plain.input_shape))
    return data.load(use, size=size, channels=channels), f"{before} to {' x '.join(map(str, shape))}"


def _numbered(dataset: "Dataset", classes: tuple[str, ...], what: str) -> "Batch":
    """All examples of a data set, with classes numbered by their names among `classes`, and values as in the file."""
    import torch

    from seepage.federation.types import Batch

    whole = dataset.batch(torch.arange(len(dataset)))
    if whole.labels.is_floating_point():
        units: Units | None = getattr(dataset, "units", None)
        return Batch(whole.inputs, whole.labels if units is None else units.own(whole.labels))

    for name in dataset.classes:
        if name not in classes:
            raise unknown(f"class in {what}", name, classes)
    numbers = torch.tensor([classes.index(name) for name in dataset.classes])
    # A pixel of a map may have no class.
    return Batch(whole.inputs, torch.where(whole.labels < 0, whole.labels, numbers[whole.labels.clamp(min=0)]))


def _names(dataset: "Dataset", batch: "Batch") -> list[str]:
    """What each example is called in a list: its class, the commonest one of a map, or its values."""
    if batch.labels.is_floating_point():
        return [", ".join(f"{value:.4g}" for value in row) for row in batch.labels.reshape(len(batch), -1).tolist()]
    return [dataset.classes[int(label)] for label in dataset.labels]


def _present(
    found: "Membership",
    names: list[str],
    level: float,
    test: str,
    resized: str | None,
    printed: PrintOptions,
    owners: Sequence[str] | None = None,
) -> None:
    identified = found.identified(level).tolist()
    rows = [
        {"candidate": place, "class": name, "statistic": round(float(value), 6), "p_value": float(p), "identified": hit}
        for place, (name, value, p, hit) in enumerate(
            zip(names, found.statistics, found.p_values, identified, strict=True)
        )
    ]
    for row, owner in zip(rows, owners or (), strict=False):
        row["client"] = owner if row["identified"] else None
    if printed.as_json:
        facts = {"test": test, "level": level, "reference": found.reference, "calibration": len(found.calibration)}
        facts |= {"resized": resized}
        print(json.dumps({"schema": 1, **facts, "candidates": rows}, allow_nan=False))
        return
    if not printed.quiet:
        from rich.table import Table

        from seepage.cli.console import open_console

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("candidate", "class", "statistic", "p-value", ""):
            table.add_column(title, justify="left" if title in ("class", "") else "right", no_wrap=True)
        for row in sorted(rows, key=lambda row: row["p_value"]):
            whose = f"identified in client {printable(str(row['client']))}" if "client" in row else "identified"
            words = [whose if row["identified"] else ""]
            numbers = [str(row["candidate"]), printable(str(row["class"])), f"{row['statistic']:.3f}"]
            table.add_row(*numbers, f"{row['p_value']:.4f}", *words, style="red" if row["identified"] else "dim")
        open_console().print(table)
    if resized is not None:
        print(
            f"The candidates were brought from {resized}, as the model takes them. If the client resized its images in "
            "another way, members are missed; give candidates as the client had them."
        )
    mistakes = f"{level * len(rows):.2g} of {len(rows)}"
    print(
        f"{test} identifies {sum(identified)} of {len(rows)} candidates at a level of {100 * level:g} %. Were none in "
        f"the batch, it would identify {mistakes} by mistake. The smallest p-value that {len(found.calibration)} "
        f"calibration examples allow is {1 / (len(found.calibration) + 1):.2g}. A candidate that is not identified "
        "is not proved absent."
    )
