"""What a person sees in a terminal: progress on stderr, tables on stdout."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from seepage.audit.case import Kind
from seepage.audit.findings import findings
from seepage.audit.observe import inferred_lines
from seepage.audit.row import Case, MembershipRow, Outcome, Result, Row
from seepage.audit.verdict import answers, caveat_lines, headline, not_asked, reasons, warning_lines
from seepage.base.progress import Doing, Phase, ProgressCallback, no_progress
from seepage.base.words import each_text
from seepage.cli.console import PlainConsole, open_console
from seepage.cli.stored import MARK, Stored
from seepage.errors import printable
from seepage.report.formatting import GLOSSARY, NONE, accuracy_words, duration, without_update
from seepage.report.table import HEADINGS, CaseTexts, RowTexts, further_metrics, is_muted, plain_text

LINE_EVERY = 5.0
"""Seconds between progress lines where there is no terminal."""

COUNTED_ATTACKS = 10
"""Attacks that are counted; of fewer the share is shown, since "0 of 1" would say nothing while a long one runs."""


@contextmanager
def progress_bar(*, off: bool = False) -> Iterator[ProgressCallback]:
    """A bar on a terminal; elsewhere a plain line in every `LINE_EVERY` seconds, as far as there is something new."""
    if off:
        yield no_progress
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    drawn = sys.stderr.isatty()
    at, printed, named, things = time.monotonic(), "", Doing("", Phase.RECORDING), 0.0
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not drawn) as bar:
        task = bar.add_task("starting", total=1)

        def show(done: float, total: float, doing: Doing) -> None:
            nonlocal at, printed, named, things
            before, left = (named.phase, things), "" if doing.left is None else f"at most {duration(doing.left)} left"
            # The meter of the attacks names none where nothing is new: then the last one stands.
            if doing.what or doing.phase is not Phase.ATTACKING or (doing.phase, total) != before:
                named = Doing(printable(doing.what), doing.phase)
            things = total
            if drawn:
                words = ": ".join(filter(None, (named.phase, ", ".join(filter(None, (named.what, left))))))
                bar.update(task, completed=done, total=total, description=escape(words))
                return
            count = f"{int(done)} of {total:g}" if total > 1 else ""
            if named.phase is Phase.ATTACKING and total < COUNTED_ATTACKS:
                count = f"{done / total:.0%}"
            line = ": ".join(filter(None, (named.phase, ", ".join(filter(None, (count, named.what, left))))))
            now = time.monotonic()
            if now - at >= LINE_EVERY and line != printed:
                at, printed = now, line
                print(line, file=sys.stderr, flush=True)

        yield show


def print_result(
    folder: Path,
    result: Result,
    *,
    quiet: bool,
    note_old: bool = False,
    details: bool = False,
    stored: Stored = Stored(),  # noqa: B008
) -> None:
    """The verdict, a table with a line for each case, warnings, and where the report lies.

    Args:
        folder: The run folder.
        result: Its result.
        quiet: The verdict and nothing else.
        note_old: Say that the run was finished earlier.
        details: Every attack on every case, and why it has no result where it has none.
        stored: Rows of other attacks on the same cases, to stand below those of this run; with the details.
    """
    console = open_console()
    result = Result.model_validate(each_text(result.record()))  # a stranger's words must not move the cursor
    if quiet:
        console.print(result.verdict, soft_wrap=console.whole_lines, highlight=False, markup=False)
        return
    details = details or bool(stored.rows)
    _print_verdict(console, result)
    console.print(_case_table([CaseTexts(result, case) for case in result.cases]))
    if any(row.scored for row in result.rows):
        console.print(Text(_legend(result), style="dim"))
    console.print()
    for case in result.cases:
        rows = result.rows_of(case)
        beside = _beside(case, rows)
        if details or (beside and len(result.cases) > 1):
            console.print(Text(case.heading, style="bold"))
        if details and case.baselines:
            more = f"; {accuracy}" if case.federation and (accuracy := accuracy_words(case)) else ""
            console.print(Text(plain_text(f"without the update: {without_update(case)}{more}"), style="dim"))
        if details and rows:
            console.print(_table([*rows, *stored.of(case.name, rows)], case.kind))
        for line in beside:
            console.print(Text(line, style="dim"), soft_wrap=console.whole_lines)
        if details and (members := [row for row in result.membership if row.case == case.name]):
            console.print(_members_table(members))
        if details or beside:
            console.print()
    said = [(line, "dim") for line in _reasons(result, details=details)]
    said += [(f"warning: {line}", "yellow") for line in warning_lines(result.warnings, result.cases)]
    said += [(line, "dim") for line in [_columns(result) if details else "", not_asked(result.summary)] if line]
    said += [(f"{MARK.strip()} {stored.made}", "dim")] if stored.rows else []
    for line, style in said:
        console.print(Text(line, style=style))
    if said:
        console.print()
    if note_old:
        console.print("This run was finished earlier and is shown as it was; delete its folder to run it again.")
    console.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True, markup=False)
    if _of_pictures(result.rows) and (folder / "grid.png").exists():
        console.print(f"pictures: {folder / 'grid.png'}", highlight=False, soft_wrap=True, markup=False)
    if not details:
        console.print("every attack: seepage report RUN --details", highlight=False, markup=False)


def _print_verdict(console: PlainConsole, result: Result) -> None:
    """The verdict, with its parts in lines of their own, and what limits what was stated of captured updates."""
    leaks = any(one.state == "leaks" and one.kind != "membership" for one in findings(result))
    leaks = leaks or any(row.certified is not None and row.certified.wrong for row in result.judged_rows)
    console.print(Text(headline(result), style="bold red" if leaks else "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, words in answers(result):
        table.add_row(Text(title, style="bold"), Text(words))
    if table.row_count:
        console.print(table)
    for line in caveat_lines(result.cases):
        console.print()
        console.print(Text(line))
    console.print()


def _case_table(cases: Sequence[CaseTexts]) -> Table:
    """A line for each case; what no case has is no column."""
    columns = {
        "case": [f"{one.title}{CONTROL if one.case.control else ''}" for one in cases],
        "best attack": [one.attack for one in cases],
        "knew": [one.known for one in cases],
        "recovered": [one.recovered for one in cases],
        "exact": [one.exact for one in cases],
        "members": [one.members for one in cases],
        "seconds": [one.seconds for one in cases],
    }
    kept = {name: texts for name, texts in columns.items() if any(text not in ("", NONE) for text in texts)}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in kept:
        right = name in ("exact", "members", "seconds")
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for one, texts in zip(cases, zip(*kept.values(), strict=True), strict=True):
        style = "dim" if one.case.control else "red" if one.leaks else ""
        table.add_row(*(Text(plain_text(text or NONE)) for text in texts), style=style)
    return table


CONTROL = " (control, not counted)"
"""Behind the title of a case that only shows that these attacks work."""


def _reasons(result: Result, *, details: bool) -> list[str]:
    """Why attacks and membership tests have no result; without details but for what is no lack of the run."""
    quiet = (Outcome.INAPPLICABLE, Outcome.NOT_NEEDED)
    spoke = {case.name for case in result.cases if any(row.gave_result for row in result.rows_of(case))}
    lacking = (
        row for row in result.rows if row.reason and (details or row.case not in spoke or row.outcome not in quiet)
    )
    lines = [f"{attack}, {words}" for attack, words in reasons(lacking, result.titles)]
    lines += [f"{row.test}, no result: {row.reason}" for row in result.membership if row.reason]
    return lines + [
        f"{case.heading}, membership not tested: {case.membership_skipped}"
        for case in result.cases
        if case.membership_skipped
    ]


def _of_pictures(rows: Sequence[Row]) -> bool:
    """Whether any attack returned pictures that were scored."""
    return any("ssim" in row.scores for row in rows)


def _beside(case: Case, rows: Sequence[Row]) -> list[str]:
    """What stands under a case's table: what was inferred, and what the update reveals without an attack."""
    lines = [*([case.read_as] if case.read_as else []), *inferred_lines(case.inferred or {})]
    if case.exposure and not any(row.scored for row in rows):
        lines.append(f"without any attack: {case.exposure}")
    return lines


def _legend(result: Result) -> str:
    """What the columns of the cases mean."""
    limits, scored = result.thresholds, [row for row in result.rows if row.scored]
    own = "the example's own mean" + " and that of other rows" * any("typical" in row.baselines for row in scored)
    rule = limits.of_pictures if _of_pictures(result.rows) else f"{limits.recovered_gain_db:g} dB over {own}"
    exact = f"over {limits.exact_db:g} dB"
    if all(row.of_text for row in scored):
        rule, exact = "a ROUGE-2 of at least 0.5", "every token is right"
    beside = " no finding: the same case without the defense, which shows that these attacks work."
    control = beside * any(case.control for case in result.cases)
    return f"recovered: {rule}; [low, high]: its 95 % interval. exact: {exact}.{control}"


def _columns(result: Result) -> str:
    """What the columns of the attacks mean, and the outcomes of this run that no score compares with examples."""
    outcomes = {row.outcome.phrase for row in result.rows}
    scored = [row for row in result.rows if row.scored]
    if scored and all(row.of_text for row in scored):
        words = "ROUGE-1, ROUGE-2: share of tokens, and of neighboring pairs of tokens, in common (F measure)."
    elif scored:
        words = (
            "found: recovered of all examples. median, mean: PSNR in dB over all examples; equal ones count 150, which "
            "draws a mean up. [low, high]: 95 % interval of the mean."
        )
    else:
        words = "found: what an attack certifies. How close a guess is to a private example takes a truth (--truth)."
    further = ("features only", "mixture only", "tokens identified")
    return " ".join([words, *(f"{name}: {GLOSSARY[name]}." for name in further if name in outcomes)])


def _table(rows: Sequence[Row], kind: Kind | None) -> Table:
    """One case's rows, for 80 columns: no box, and a column for side information only where there is any."""
    known, further = any(row.side_information for row in rows), further_metrics(rows)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("attack", no_wrap=True)
    if known:
        table.add_column("knows", no_wrap=True)
    text = kind == "texts" or any(row.of_text for row in rows)
    scored = any(row.scored for row in rows)  # else there is nothing to put into the columns of scores
    similar, more = ("SSIM",) * (kind != "records"), (HEADINGS.get(name, name) for name in further)
    scores = ("found", *(() if text else ("median", "mean, dB", *similar)), *more)
    for name in (*(scores if scored else ()), "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for row in rows:
        texts = RowTexts(row, further, mean_digits=0)
        interval = f" [{', '.join(texts.interval)}]" if texts.interval else ""
        values = [
            texts.recovered,
            *([] if text else [texts.median, f"{texts.mean}{interval}", *[texts.ssim] * len(similar)]),
            *texts.more,
        ]
        entries = [
            *([texts.known or "-"] if known else []),
            *(values if scored else []),
            texts.seconds,
            texts.outcome,
        ]
        style = "red" if row.mean("recovered") or row.identified_tokens else "dim" if is_muted(row) else ""
        table.add_row(Text(row.attack), *(Text(plain_text(entry)) for entry in entries), style=style)
    return table


def _members_table(rows: Sequence[MembershipRow]) -> Table:
    """One case's membership tests."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("membership test", no_wrap=True)
    for name in ("AUC", "members identified", "others", "level", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.auc is None or row.members_identified is None or row.others_identified is None:
            table.add_row(Text(row.test), "-", "-", "-", "-", "-", style="dim")
            continue
        entries = [
            f"{row.auc:.3f} [{row.auc_low:.3f}, {row.auc_high:.3f}]",
            *(f"{rate.hits}/{rate.of}" for rate in (row.members_identified, row.others_identified)),
            f"{100 * (row.level or 0):g} %",
            f"{row.seconds or 0:.1f}",
        ]
        table.add_row(Text(row.test), *map(Text, entries), style="red" if row.tells else "")
    return table
