"""`seepage reproduce`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seepage.cli.options import DeviceOption, PrintOptions, WorkerOptions, running_on
from seepage.errors import SeepageError, unknown

if TYPE_CHECKING:
    from seepage.papers import Done, Item, Job, Size


def reproduce(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables and figures such as cafe/table-3, a paper (cafe, cpa, fedleak), or all. None: list."
        ),
    ] = None,
    size: Annotated[
        Literal["small", "paper"], typer.Option("--size", help="small: two cores, minutes. paper: as published.")
    ] = "small",
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="NAME=FILE of a paper's data set, or a folder of such files. Repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds, each a run of its own.")] = 1,
    *,
    device: DeviceOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for run folders.")] = Path("runs"),
    results: Annotated[Path, typer.Option("--results", help="Folder for the numbers.")] = Path("results/reproduce"),
    book: Annotated[Path | None, typer.Option("--book", help="Write the results book into this folder.")] = None,
    workers: WorkerOptions,
    printed: PrintOptions,
) -> None:
    """Run tables and figures of the three papers beside the printed numbers."""
    from seepage import papers as room
    from seepage.cli.terminal import progress_bar

    if not items and book is None:
        _print_list(results, printed.as_json)
        return
    failed = []
    if items:
        # The cheapest first, so that a run that is stopped has measured the most.
        chosen = sorted(room.find_items(items), key=lambda item: item.needs[size].total)
        changes = _device(chosen, size, device)
        work, missing = room.plan(chosen, size, data_at_hand(data or []), range(seed, seed + seeds), changes)
        if not printed.silent:
            _say_before(work, missing, size)
        with running_on(workers.on) as runner, progress_bar(off=printed.silent) as show:
            ended = list(
                room.reproduce(work, size, out=out, results=results, workers=workers.jobs, on=runner, show=show)
            )
        _print_done(ended, size, printed.as_json, printed.quiet)
        failed = [done for done in ended if done.failed]
    if book is not None:
        pages = room.write_book(results, book)
        if not printed.silent:
            print(f"book: {pages[0]}")
            if not any(results.glob("*.jsonl")):
                print(_nowhere(results))
    if failed:
        raise SeepageError(f"{len(failed)} of {len(ended)} failed: {failed[0].item.id}: {failed[0].failed}")


def data_at_hand(entries: Sequence[str]) -> dict[str, Path]:
    """The data sets at hand, by the papers' names for them."""
    from seepage.papers import list_items

    names = {name for item in list_items().values() for name in item.data if name}
    found: dict[str, Path] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if equals and name not in names:
            raise unknown("data set of a paper", name, sorted(names))
        place = Path(path if equals else entry)
        if not place.exists() or not (equals or place.is_dir()):
            raise SeepageError(f"--data takes NAME=FILE or a folder of such files, and {entry} is neither")
        found |= {name: place} if equals else _in_folder(place, names)
    return found


def _in_folder(folder: Path, names: set[str]) -> dict[str, Path]:
    """`NAME.npz`, `NAME.zip` or a folder `NAME`; or the first whose name goes on after an underscore."""
    entries = sorted(path for path in folder.iterdir() if path.is_dir() or path.suffix in (".npz", ".zip"))
    found = {}
    for name in names:
        exact = [path for path in entries if path.stem == name]
        longer = [path for path in entries if path.stem.startswith(f"{name}_")]
        if exact or longer:
            found[name] = (exact or longer)[0]
    return found


def _device(items: "Sequence[Item]", size: "Size", device: str | None) -> dict[str, Any]:
    """Where to run. A GPU is used where an item needs one; without one, only who asks for the processor gets it."""
    import torch

    if device is not None:
        return {"device": device}
    hungry = [item.id for item in items if item.needs[size].gpu]
    if not hungry:
        return {}
    if not torch.cuda.is_available():
        raise SeepageError(
            f"at the paper's size {', '.join(hungry[:3])}{' and others' if len(hungry) > 3 else ''} needs a GPU and "
            "there is none; use --size small, or --device cpu to run it here all the same"
        )
    return {"device": "cuda"}


def _say_before(work: "Sequence[Job]", missing: Sequence[str], size: "Size") -> None:
    """What is to be run and what it takes, before it starts."""
    items = {job.item.id: job.item for job in work}
    for item in items.values():
        used = ", ".join(dict.fromkeys(Path(job.data).name for job in work if job.item is item and job.data))
        print(f"{item.id}: {item.expect.title}; {item.needs[size]}{f'; on {used}' if used else ''}")
    seeds = len({job.seed for job in work})
    minutes = seeds * sum(item.needs[size].total for item in items.values())
    if len(work) > 1:
        with_seeds = f"with {seeds} seed{'s' * (seeds > 1)}"
        print(f"{len(items)} in all, {with_seeds}: about {max(1, round(minutes))} min of one core, or of the GPU")
    for entry in missing:
        print(f"left out, as its data are not here: {entry}")
    print(flush=True)


def _print_list(results: Path, as_json: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from seepage.cli.console import open_console
    from seepage.papers import list_items, read_records

    listed = [
        {
            "item": item.id,
            "title": item.expect.title,
            "small": str(item.needs["small"]),
            "paper": str(item.needs["paper"]),
            "measured": ", ".join(dict.fromkeys(record.size or "" for record in read_records(results, item.id))) or "-",
        }
        for item in list_items().values()
    ]
    if as_json:
        print(json.dumps({"schema": 1, "items": listed}))
        return
    table = Table(box=None, pad_edge=False)
    for head in ("item", "title", "small", "paper", "measured"):
        table.add_column(head, no_wrap=head == "item", overflow="fold")
    for entry in listed:
        table.add_row(*map(Text, entry.values()))
    open_console().print(table)
    if all(entry["measured"] == "-" for entry in listed):
        print(f"\n{_nowhere(results)}")
    else:
        print(f"\nmeasured: which sizes lie in {results}; the verdicts are in the book (--book FOLDER)")
    print("Run some: seepage reproduce cafe/table-3, or all of a paper: seepage reproduce cafe")


def _nowhere(results: Path) -> str:
    """What to say where a folder holds no numbers: they are not part of an installed package."""
    return (
        f"measured: no numbers lie in {results}. Those that were measured come with the source repository, in its "
        "folder results/reproduce, and as a book in docs/results; --results FOLDER names them"
    )


def _print_done(ended: "Sequence[Done]", size: "Size", as_json: bool, quiet: bool) -> None:
    if as_json:
        found = [
            {
                "item": done.item.id,
                "failed": done.failed,
                "records": [record.line() for record in done.records],
                "claims": _told_claims(done),
            }
            for done in ended
        ]
        print(json.dumps({"schema": 1, "items": found}, allow_nan=False))
        return
    for done in ended:
        if quiet and done.records:
            for said in _verdicts(done) or [done.item.expect.no_claim or "no claim"]:
                print(f"{done.item.id}: {said}")
        elif done.records:
            _print_item(done, size)
        if done.failed:
            print(f"{done.item.id}: failed: {done.failed}\n")


def _told_claims(done: "Done") -> list[dict[str, Any]]:
    """The verdicts for other programs: one entry for each claim and size."""
    from seepage.papers.book import judged_of

    return [
        {
            "claim": claim.text,
            "where": claim.where,
            "relation": claim.relation,
            "size": one.size,
            "data": one.data,
            "verdict": one.verdict,
            "comparisons": len(one.parts),
            "measured": one.measured,
            "hold": one.count(True),
            "fail": one.count(False),
        }
        for claim, judged in judged_of(done.item, done.records)
        for one in judged.values()
    ]


def _verdicts(done: "Done") -> list[str]:
    """One line for each claim that was tested."""
    from seepage.papers.book import judged_of
    from seepage.papers.verdicts import in_words

    return [
        f"{in_words(one)}: {claim.text}"
        for claim, judged in judged_of(done.item, done.records)
        for one in judged.values()
    ]


def _print_item(done: "Done", size: "Size") -> None:
    """An item's table, with the paper's line and ours for each row, and below it what its claims come to."""
    from rich.table import Table
    from rich.text import Text

    from seepage.cli.console import open_console
    from seepage.papers.book import by_line, examples_of, judged_of, ours_of
    from seepage.papers.verdicts import in_words

    item = done.item
    table = Table(title=f"{item.id}: {item.expect.title}", title_justify="left", box=None, pad_edge=False)
    for head in ("row", "", *item.columns(size)):
        table.add_column(head, overflow="fold")
    for line, own in by_line(item, done.records):
        at = {record.column: record for record in own}
        columns = range(len(item.expect.columns))
        table.add_row(Text(line.name), "paper", *(Text(line.printed_at(column)) for column in columns))
        ours = [Text(ours_of(at.get(column))) for column in columns]
        table.add_row(Text(own[0].data if own else ""), "ours", *ours)
    console = open_console()
    console.print(table)
    console.print()
    for claim, judged in judged_of(item, done.records):
        console.print(Text(f"{claim.text} ({claim.where})"))
        for one in judged.values():
            shown = examples_of(item, one)
            console.print(Text(f"  {in_words(one)}{f': {shown}' if shown else ''}"))
    if item.expect.no_claim:
        console.print(Text(f"no measurable claim: {item.expect.no_claim}"))
    console.print()
