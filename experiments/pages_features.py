"""Parts of docs/features.md."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from page_parts import Lines, Part, Row, commands, rows_of, span, table


def head_features() -> Lines:
    """Errors by classes and examples down and training across; then other features, labels and updates."""
    rows = rows_of("head/features")
    plain = [row for row in rows if row["features"] == "ReLU"]
    states = list(dict.fromkeys(row["state"] for row in plain))
    heads = ("classes", "n", "labels", *states, "cpu_s")
    lines = table(heads, _by_state(plain, ("classes", "n", "labels"), states))
    others = [row for row in rows if row["features"] != "ReLU"]
    states = list(dict.fromkeys(row["state"] for row in others))
    body = _by_state(others, ("features", "classes", "n", "labels"), states)
    lines += ["", "Other features, labels and updates:", ""]
    lines += table(("", "classes", "n", "labels", *states, "cpu_s"), body)
    wrong = sum(row.get("false_known") or 0 for row in rows)
    known, examples = (sum(row.get(key) or 0 for row in rows) for key in ("known", "examples"))
    ratios = [row["median_error_in_noise"] for row in rows if row.get("median_error_in_noise") is not None]
    worst = max(row["largest_error_in_noise"] for row in rows if row.get("largest_error_in_noise") is not None)
    lines += [
        "",
        f"Called known: {known:,} of {examples:,} examples, {wrong} of them with an error above a hundredth.",
        f"Error over `noise`: medians of the settings {span(ratios, '{:.1f}')}, at most {worst:.1f}.",
    ]
    return [*lines, *commands(rows)]


def lone_slopes() -> Lines:
    """How many examples have units for themselves, by examples down and training across."""
    rows = rows_of("head/lone")
    states = list(dict.fromkeys(row["state"] for row in rows))
    groups: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        groups[row["n"]][row["state"]] = row
    body = []
    for n, own in groups.items():
        known = [own.get(state) for state in states]
        cells = [f"{row['found']:.0%}, {row['all_labels']} of {row['batches']}" if row else "" for row in known]
        body.append([str(n), *cells])
    wrong = sum(row["wrong"] for row in rows)
    return [*table(("n", *states), body), "", f"Wrong directions among all of them: {wrong}.", *commands(rows)]


def _by_state(rows: Sequence[Row], keys: Sequence[str], states: Sequence[str]) -> list[list[str]]:
    groups: dict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        groups[tuple(row[key] for key in keys)][row["state"]] = row
    lines = []
    for key, own in groups.items():
        seconds = [row["cpu_s"] for row in own.values() if "cpu_s" in row]
        cells = [_error(own.get(state)) for state in states]
        lines.append([*map(str, key), *cells, span(seconds, "{:.2f}") if seconds else ""])
    return lines


def _error(row: Row | None) -> str:
    if row is None:
        return ""
    if not row["solved"]:
        return "refused"
    error = "none known" if row["error"] is None else f"{row['error']:.0e}"
    return error if row["known"] == row["examples"] else f"{error} ({row['known']} of {row['examples']})"


PARTS: dict[str, Part] = {
    "head": Part("features.md", head_features),
    "lone": Part("features.md", lone_slopes),
}
