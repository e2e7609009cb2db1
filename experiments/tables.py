"""Tables of pages as `tables.toml` describes them: which records, which of them share a line, what each case shows.

A part of a page is one table or several (`tables`), each with

- `rows`: studies; `where`, `sort`: expressions on a record that leave some out and put them in order;
- `by`: expressions whose values tell the lines apart (without: a line for each record);
- `columns`: pairs of a head and a case, with what stands where a case has no value as a third; a word in their place
  is a list of columns that several tables share (`[columns]`);
- `across`: an expression, whose values (or those of `over`) fill columns: each column whose head has a field is
  repeated for each, on the records of that value;
- `each`, `title`: a table for each value of an expression, below a title;
- `last`: cases of a last line, on all records; `before`, `after`: lines around the table, on all records;
  `list`, `item`: a line below for each different entry of the records' lists.

A case is text with fields `{EXPRESSION:KIND FORMAT}`. The expression is Python on the facts of one record, with the
functions of `page_cases.py`; the kind says how those of several records become one: `span` (least to most), `mean`,
`sum`, `max`, `list`, `range` (in brackets, where there are several), else the first. `{=EXPRESSION}` is asked once, of
all `rows` of the case. What a record lacks is None, and records whose value is None are left out.
"""

import itertools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from string import Formatter
from types import CodeType
from typing import Any

import page_cases
from page_parts import Lines, Part, Row, commands, rows_of, span, table

DESCRIBED = tomllib.loads(Path(__file__).with_name("tables.toml").read_text("utf-8"))
NAMES = {**vars(page_cases), **DESCRIBED["words"]}


def _formatted(values: Sequence[Any], form: str) -> Iterator[str]:
    return (format(value, form) for value in values)


KINDS: Mapping[str, Callable[[list[Any], str], str]] = {
    "span": lambda values, form: span(values, "{{:{}}}{}{}".format(*(form or ".0f").partition(" "))),
    "range": lambda values, form: f" ({' to '.join(_formatted((min(values), max(values)), form))})" * (len(values) > 1),
    "list": lambda values, form: ", ".join(_formatted(values, form)),
    "mean": lambda values, form: format(sum(values) / len(values), form),
    "sum": lambda values, form: format(sum(values), form),
    "max": lambda values, form: format(max(values), form),
}


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression.strip(), expression, "eval")


def value(expression: str, facts: Row) -> Any:
    """An expression's value; None where it needs a fact that is not there."""
    try:
        return eval(_compiled(expression), {**NAMES, **facts, "row": facts})
    except (NameError, KeyError, TypeError):
        return None


def case(template: str, rows: Sequence[Row], otherwise: str = "") -> str:
    """A case on records; `otherwise` where a field has no value."""
    shown = []
    for text, field, form, _ in Formatter().parse(template):
        shown.append(text)
        if field is None:
            continue
        asked = [{"rows": rows}] if field.startswith("=") else rows
        values = [found for facts in asked if (found := value(field.removeprefix("="), facts)) is not None]
        if not values:
            return case(otherwise, rows) if otherwise else ""
        kind, _, rest = (form or "").partition(" ")
        shown.append(KINDS[kind](values, rest) if kind in KINDS else format(values[0], form))
    return "".join(shown)


def grouped(rows: Iterable[Row], expressions: Sequence[str]) -> list[list[Row]]:
    """Records with the same values together, in the order of the first of each."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(repr([value(one, row) for one in expressions]), []).append(row)
    return list(found.values())


def columns_of(entry: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[tuple[str, Callable[[Sequence[Row]], str]]]:
    """Heads, and what makes the cases below them."""
    listed = (DESCRIBED["columns"][one] if isinstance(one, str) else [one] for one in entry["columns"])
    columns = list(itertools.chain(*listed))
    for repeated, run in itertools.groupby(columns, lambda column: "{" in column[0]):
        own = list(run)
        if not repeated:
            yield from ((head, partial(_case, rest)) for head, *rest in own)
            continue
        found = dict.fromkeys(value(entry["across"], row) for row in rows)
        for asked, (head, *rest) in itertools.product(entry.get("over", found), own):
            yield case(head, [{"across": asked}]), partial(_case, rest, of=(entry["across"], asked))


def _case(texts: Sequence[str], rows: Sequence[Row], of: tuple[str, Any] | None = None) -> str:
    chosen = rows if of is None else [row for row in rows if value(of[0], row) == of[1]]
    return case(texts[0], chosen, *texts[1:]) if chosen else ""


def one_table(entry: Mapping[str, Any], rows: Sequence[Row]) -> Lines:
    """The table of one description on its records."""
    columns = list(columns_of(entry, rows))
    groups = grouped(rows, entry["by"]) if "by" in entry else [[row] for row in rows]
    body = [[make(group) for _, make in columns] for group in groups]
    body += [[case(text, rows) for text in line] for line in entry.get("last", ())]
    return table([head for head, _ in columns], body)


def described(entry: Mapping[str, Any]) -> tuple[Lines, list[Row]]:
    """Lines of one description, and its records."""
    studies = [entry["rows"]] if isinstance(entry["rows"], str) else entry["rows"]
    every = [{**row, "file_place": place} for place, row in enumerate(rows_of(*studies))]
    found = [row for row in every if "where" not in entry or value(entry["where"], row)]
    rows = [{**row, "every_row": found} for row in found]
    rows = sorted(rows, key=lambda row: value(entry["sort"], row)) if "sort" in entry else rows
    lines: Lines = [case(line, rows) for line in entry.get("before", ())]
    if "each" in entry:
        for _, run in itertools.groupby(rows, partial(value, entry["each"])):
            own = list(run)
            lines += [case(entry["title"], own), "", *one_table(entry, own)]
            lines += [*(commands(own) if entry.get("silent") else []), ""]
        lines = lines[:-1] if entry.get("silent") else lines
    else:
        lines += one_table(entry, rows)
    lines += [case(line, rows) for line in entry.get("after", ())]
    if "list" in entry:
        listed = sorted({one for row in rows for one in value(entry["list"], row) or ()})
        lines += [*entry.get("heading", ()), *(entry["item"].format(one) for one in listed)] if listed else []
    return lines, found


def lines_of(entry: Mapping[str, Any]) -> Lines:
    """All lines of a part, with the commands that made its records."""
    lines: Lines = []
    behind: list[Row] = []
    tables = entry.get("tables", [entry])
    for number, one in enumerate(tables):
        made, rows = described(one)
        lines += [*([""] if number else []), *made]
        behind += rows
    if len(tables) > 1:
        lines += [case(line, behind) for line in entry.get("after", ())]
        behind.sort(key=lambda row: row["file_place"]) if tables[0]["rows"] == tables[1]["rows"] else None
    return lines if entry.get("silent") else [*lines, *commands(behind)]


PARTS: dict[str, Part] = {
    name: Part(entry["page"], partial(lines_of, entry)) for name, entry in DESCRIBED["part"].items()
}
