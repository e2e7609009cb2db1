"""`seepage compare` and `--baseline`: what got worse since an older run"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seepage.cli.options import JsonOption, ReuseOption
from seepage.errors import SeepageError, printable, say

if TYPE_CHECKING:
    from seepage.audit.row import Result
    from seepage.report.evidence.comparison import Comparison

TOLD = 3
"""Changes of a kind that a gate prints; the run has the others."""


def compare(
    old: Annotated[Path, typer.Argument(help="The older run, its evidence pack or its result.json.")],
    new: Annotated[Path, typer.Argument(help="The newer one.")],
    reuse: ReuseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: exit code 1 if the newer leaks more, beyond chance; 2 if nobody can tell."""
    from seepage.base.vouching import refuse_foreign
    from seepage.report.evidence import comparison

    if not reuse:  # only the newer run must be your own: the older is the bar, which you set by naming it
        refuse_foreign(new)
    found = comparison.compare(comparison.open_result(old), comparison.open_result(new))
    if as_json:
        print(json.dumps(found.record()))
    else:
        _print(found)
    _end(found, shown=not as_json)


def hold_against(result: "Result", baseline: Path | None) -> None:
    """End with exit code 1 where a result is worse than a baseline, with 2 where it cannot be decided.

    Raises:
        SeepageError: Where the baseline is none, or a count of it has no result any more.
    """
    if baseline is None:
        return
    from seepage.report.evidence import comparison

    found = comparison.compare(comparison.open_result(baseline), result)
    for words in found.caveats[:TOLD]:
        say(printable(f"known or set otherwise than in the baseline: {words}"))
    for change in found.worse[:TOLD]:
        say(printable(f"worse than the baseline: {change.words}"))
    alone = sorted(found.of("not compared"), key=lambda change: change not in found.leaks_alone)
    for change in alone[:TOLD]:
        say(printable(f"no comparison with the baseline: {change.words}"))
    _end(found)


def _end(found: "Comparison", *, shown: bool = False) -> None:
    """End with the exit code of a comparison; `shown`: say what came of it in any case."""
    code, words = found.end
    if code == 2:
        raise SeepageError(words)
    if shown:
        print(printable(words))
    if code:
        raise typer.Exit(code)


def _print(found: "Comparison") -> None:
    from seepage.report.evidence.comparison import by_kind

    if found.caveats:
        print("known or set otherwise:")
    for words in found.caveats:
        print(printable(f"  {words}"))
    for remark in found.remarks:
        print(printable(f"note: {remark}"))
    for kind, changes in by_kind(found.changes).items():
        doubtful = kind in ("better", "less") and found.caveats
        print(f"{kind}, if that is not the reason:" if doubtful else f"{kind}:")
        for change in changes:
            print(printable(f"  {change.words}"))
