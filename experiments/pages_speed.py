"""Parts of docs/speed.md."""

from collections.abc import Mapping

from page_parts import Lines, Part, Row, commands, rows_of, table

OBJECTIVES = {
    "ig": "Inverting Gradients: cosine and total variation",
    "fedleak": "FedLeak: top half, L1 and cosine, blended",
}


def speed() -> Lines:
    """Processor milliseconds per step, and in brackets how many times faster than the plain loop; peaks of memory."""
    rows = rows_of("matching/steps")
    models = list(dict.fromkeys(row["model"] for row in rows))
    ordered = sorted(rows, key=lambda row: (models.index(row["model"]), row["batch"]))
    lines: Lines = []
    for objective, title in OBJECTIVES.items():
        timed = [row for row in ordered if row.get("objective") == objective and "steps" in row]
        names = list(dict.fromkeys(name for row in timed for name in row["steps"]))
        body = []
        for row in timed:
            cells = [_milliseconds(row["steps"].get(name)) for name in names]
            best = max(step["images_per_cpu_s"] for step in row["steps"].values())
            body.append([row["model"], str(row["batch"]), *cells, f"{best:,.1f}"])
        lines += [f"### {title}", "", *table(["network", "batch", *names, "images x steps per s"], body), ""]
    risen = [row for row in ordered if "peak_rise_mib" in row]
    names = list(dict.fromkeys(name for row in risen for name in row["peak_rise_mib"]))
    body = []
    for row in risen:
        rises = [row["peak_rise_mib"].get(name) for name in names]
        cells = ["" if rise is None else f"{rise:,.0f}" for rise in rises]
        body.append([row["model"], str(row["batch"]), f"`{row['objective']}`", *cells])
    lines += ["### MiB by which the peak of memory rises in one step", ""]
    lines += [*table(["network", "batch", "objective", *names], body), ""]
    return [*lines, "Made by", *commands(ordered)]


def whole_attacks() -> Lines:
    """Whole attacks: processor milliseconds per step, and how many times the first-order attack's each takes."""
    rows, of = rows_of("matching/attacks"), ("plain loop", "breaching", "exact")
    body = []
    for row in rows:
        cells = [_times(row, name) for name in of]
        own = f"{row['cpu_ms_per_step']['first order']:,.0f}"
        body.append([row["model"], str(row["batch"]), f"`{row['objective']}`", own, *cells, str(row["rounds"])])
    heads = ["network", "batch", "objective", "first order, ms", *of, "turns"]
    return [*table(heads, body), *commands(rows)]


def _times(row: Row, name: str) -> str:
    if name not in row["ratio_to_first_order"]:
        return ""
    middle, low, high = row["ratio_to_first_order"][name]
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _milliseconds(step: Mapping[str, float] | None) -> str:
    return "" if step is None else f"{step['cpu_ms']:,.0f} ({step['times_faster']:.2f})"


PARTS: dict[str, Part] = {
    "speed": Part("speed.md", speed),
    "whole attacks": Part("speed.md", whole_attacks),
}
