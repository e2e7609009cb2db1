"""`seepage compare` and `--baseline`: what got worse since an older run"""

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seepage.cli.options import JsonOption, ReuseOption
from seepage.errors import SeepageError, printable, say

if TYPE_CHECKING:
    from seepage.audit.row import Result
    from seepage.report.evidence.comparison import Change, Comparison
    from seepage.report.evidence.differences import Difference

TOLD = 3
"""Changes of a kind that a gate prints; the run has the others."""


def compare(
    old: Annotated[Path, typer.Argument(help="The older run, its evidence pack or its result.json.")],
    new: Annotated[Path, typer.Argument(help="The newer one.")],
    intended: Annotated[
        list[str] | None,
        typer.Option(
            "--intended",
            metavar="NAME",
            help="Accept this difference in the attacker's knowledge as intended, e.g. 'learning rate'. Repeatable.",
        ),
    ] = None,
    reuse: ReuseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: exit code 1 if the newer leaks more, beyond chance; 2 if nobody can tell."""
    from seepage.base.vouching import refuse_foreign
    from seepage.report.evidence import comparison

    if not reuse:  # only the newer run must be your own: the older is the bar, which you set by naming it
        refuse_foreign(new)
    found = comparison.compare(comparison.open_result(old), comparison.open_result(new), intended=intended or ())
    if as_json:
        print(json.dumps(found.record()))
    else:
        _print(found)
    _end(found)


def hold_against(result: "Result", baseline: Path | None) -> None:
    """End with exit code 1 where a result is worse than a baseline, with 2 where it cannot be decided.

    Raises:
        SeepageError: Where the baseline is none, or a count of it has no result any more.
    """
    if baseline is None:
        return
    from seepage.report.evidence import comparison

    found = comparison.compare(comparison.open_result(baseline), result)
    for one in found.differences[:TOLD]:
        say(printable(f"{_how(one)} than in the baseline: {one.words}"))
    for change in found.worse[:TOLD]:
        say(printable(f"worse than the baseline: {change.words}"))
    alone = sorted(found.of("not compared"), key=lambda change: change not in found.leaks_alone)
    for change in alone[:TOLD]:
        say(printable(f"no comparison with the baseline: {change.words}"))
    _end(found)


def _end(found: "Comparison") -> None:
    if found.worse:
        raise typer.Exit(1)
    if found.lost:
        raise SeepageError(
            f"nothing got worse, but there is no result any more ({_first(found.lost)}); "
            "run the same attacks on the same cases"
        )
    if found.leaks_alone:
        raise SeepageError(
            "nothing that can be compared got worse, but there is a leak that the older run did not look for "
            f"({_first(found.leaks_alone)}); run the older side again with what is new, or, once somebody has looked "
            "at it, take the newer run as the baseline"
        )
    if found.caveats:
        first = found.caveats[0]
        raise SeepageError(
            f"nothing got worse, but the attackers knew or were set otherwise ({first.words}), which may be why; "
            f"give both the same, or, if that is intended, say so with seepage compare OLD NEW "
            f"--intended {first.what!r} or take the newer run as the baseline"
        )


def _how(one: "Difference") -> str:
    """Of which of the two kinds a difference is."""
    return "known or set otherwise" if one.in_knowledge else "set otherwise"


def _first(changes: "list[Change]") -> str:
    """The first of some changes in words, and how many more there are."""
    from seepage.base.words import plural

    more = f"; and {plural(len(changes) - 1, 'more count')}" if len(changes) > 1 else ""
    return f"{changes[0].words}{more}"


def _print(found: "Comparison") -> None:
    from seepage.report.evidence.comparison import by_kind, summary_line

    for heading, differing in groupby(found.differences, _how):
        print(f"{heading}:")
        for one in differing:
            print(printable(f"  {one.words}"))
    for remark in found.remarks:
        print(printable(f"note: {remark}"))
    for kind, changes in by_kind(found.changes).items():
        doubtful = kind in ("better", "less") and found.caveats
        print(f"{kind}, if only what is intended differs:" if doubtful else f"{kind}:")
        for change in changes:
            print(printable(f"  {change.words}"))
    print(summary_line(found))
