"""Parts of docs/safety.md: spoiled inputs by reader, and runs that were killed."""

from collections import defaultdict

from page_parts import Lines, Part, commands, rows_of, table

ZERO = ("crashes", "hangs", "deaths", "code", "processes", "network", "writes")
"""What no input may cause."""


def fuzz() -> Lines:
    """A line for each reader, and their sum."""
    rows = rows_of("safety/fuzz")
    heads = ["reader", "inputs", "gave a result", "refused", *ZERO, "s", "peak, MB"]
    body = []
    for row in rows:
        counts = [f"{row[key]:,}" for key in ("inputs", "accepted", "refused", *ZERO)]
        body.append([f"`{row['name']}`: {row['about']}", *counts, f"{row['seconds']:,.0f}", f"{row['peak_mb']:,}"])
    sums = {key: sum(row[key] for row in rows) for key in ("inputs", "accepted", "refused", *ZERO, "seconds")}
    numbers = [f"{sums[key]:,}" for key in ("inputs", "accepted", "refused", *ZERO)]
    body.append(["**sum**", *numbers, f"{sums['seconds']:,.0f}", f"{max(row['peak_mb'] for row in rows):,}"])
    kinds = defaultdict(int)
    for row in rows:
        for kind in row["crash_kinds"]:
            kinds[kind] += 1
    found = [f"- {kind}" for kind in sorted(kinds)]
    return [*table(heads, body), *(["", "Kinds of crashes:", "", *found] if found else []), *commands(rows)]


def kills() -> Lines:
    """A line for each command."""
    rows = rows_of("safety/kills")
    heads = [
        "command",
        "kills",
        "of all",
        "of the main process",
        "of a worker",
        "runs",
        "starts",
        "came back identical",
    ]
    heads += ["cut short", "temporaries left", "tracebacks"]
    keys = ("kills", "of_group", "of_main", "of_worker", "runs", "starts", "identical", "half", "left", "tracebacks")
    body = [[row["name"], *(f"{row[key]:.0f}" for key in keys)] for row in rows]
    if len(rows) > 1:
        body.append(["**sum**", *(f"{sum(row[key] for row in rows):.0f}" for key in keys)])
    words = [f"- {row['name']}: {one}" for row in rows for one in row["findings"]]
    return [*table(heads, body), *(["", "What else was seen:", "", *words] if words else []), *commands(rows)]


PARTS = {"fuzz": Part("safety.md", fuzz), "kills": Part("safety.md", kills)}
