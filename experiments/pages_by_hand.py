"""Parts of pages whose lines are more than a table of cases: lists, several studies beside each other, differences."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from page_cases import ends
from page_parts import Lines, Part, Row, commands, rows_of, table


def copies() -> Lines:
    """A line for each kind of copy: recognized, and identified among 100, on average over the sets."""
    sets = [row for row in rows_of("recognition/images") if "recognized" in row]
    body = []
    for kind in sets[0]["recognized"]:
        means = [sum(row[key][kind] for row in sets) / len(sets) for key in ("recognized", "identified")]
        body.append([kind, *(f"{mean:.0%}" for mean in means)])
    return table(["copies", "recognized", "identified among 100"], body)


def tuned() -> Lines:
    """Values of an option that were tried on other batches, and what the one that was best there scores."""
    rows = rows_of("cpa/tuned")
    body = []
    for row in rows:
        plan = row["tuned"]
        for one in plan["tried"]:
            scored = [f"{row['psnr']:.1f}", f"{row['ssim']:.2f}"] if one["options"] == plan["chosen"] else ["", ""]
            options = ", ".join(f"{name} = {value:g}" for name, value in one["options"].items())
            body.append([row["data"], row["history"], f"`{row['attack']}`", options, f"{one['value']:.1f}", *scored])
    scores = ["dB on the other batch", "dB, scored batches", "SSIM, scored batches"]
    heads = ["data", "network", "attack", "tried", *scores]
    return [*table(heads, body), *commands(rows)]


STATED = 1e-4
"""Where a certificate's number is larger, it is a stated error; smaller ones are the rows' own disagreement."""


def ways() -> Lines:
    """Certified examples of all batches, by the client's way and the batch size; then networks of mixtures alone."""
    rows, nulls = rows_of("closed/rows"), {row["way"]: row for row in rows_of("closed/null-rows")}
    groups: dict[tuple[str, float], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["way"], row["lr"]][row["n"]].append(row)
    sizes = sorted({row["n"] for row in rows})
    heads = [
        "client",
        "lr",
        *(f"n = {n}" for n in sizes),
        "stated error",
        "largest error",
        "false",
        "of mixtures alone",
    ]
    body = []
    for (way, lr), by_size in groups.items():
        cases = [f"{sum(row['certified_examples'] for row in by_size[n]):.0f} of {n * len(by_size[n])}" for n in sizes]
        every = [row for found in by_size.values() for row in found]
        if all("refused" in row for row in every):
            cases = ["not applicable" for _ in sizes]
        sure = [row for row in every if "stated" in row]
        largest = max((row["stated"] for row in sure), default=0.0)
        stated = f"{largest:.1g}" if largest > STATED else "exact" if sure else ""
        error = f"{max(row['error'] for row in sure):.1g}" if sure else ""
        null = nulls.get(way)
        alone = "" if null is None else f"{null['certified']:.0f} of {null['networks']}"
        body.append([way, f"{lr:g}", *cases, stated, error, f"{sum(row['false'] for row in every)}", alone])
    own = ", ".join(
        f"{sum(row['owning_three_rows'] for row in found)} of {n * len(found)} at n = {n}"
        for n, found in groups[next(iter(groups))].items()
    )
    lines = [*table(heads, body), "", f"Examples that three rows or more belong to alone: {own}."]
    return [*lines, *commands([*rows, *nulls.values()])]


FEDLEAK = ("published", "features, start", "features", "activations, start", "activations", "inversion")


def fedleak() -> Lines:
    """FedLeak with what late layers give away: victims down, variants across; seeds of one victim together."""
    rows = rows_of("matching/fedleak")
    groups: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (row["width"], row["trained"], row["mode"], row["batch"], row["steps"])):
        key = tuple(row[name] for name in ("data", "width", "trained", "mode", "batch", "steps"))
        groups.setdefault(key, defaultdict(list))[row["variant"]].append(row)
    body = []
    for (data, width, steps, mode, batch, length), own in groups.items():
        one = max(own.values(), key=len)
        flat = [statistics.fmean(row[name] for row in one) for name in ("flat_psnr", "flat_ssim", "grey_psnr")]
        cases = [_over_seeds(own[name], len(one)) if name in own else "" for name in FEDLEAK]
        victim = [
            data,
            str(width),
            f"{steps} steps" if steps else "fresh",
            mode,
            str(batch),
            str(len(one)),
            str(length),
        ]
        body.append([*victim, f"{flat[0]:.1f}, {flat[1]:.2f}", f"{flat[2]:.1f}", *cases])
    heads = ("data", "width", "weights", "mode", "batch", "seeds", "steps", "mean color", "grey")
    reasons = dict.fromkeys(row["refused"] for row in rows if "refused" in row)
    said = ["", "Why some could not start:", "", *(f"- {reason}" for reason in reasons)] if reasons else []
    return [*table((*heads, *(f"`{name}`" for name in FEDLEAK)), body), *said, *commands(rows)]


def _over_seeds(rows: Sequence[Row], seeds: int) -> str:
    """Mean PSNR with its range over seeds, or the interval over the examples of one batch, and mean SSIM."""
    found = [row for row in rows if row.get("psnr") is not None]
    if not found:
        return "cannot start"
    mean, likeness = (statistics.fmean(row[name] for row in found) for name in ("psnr", "ssim"))
    if len(found) > 1:
        wide = f" ({min(row['psnr'] for row in found):.1f} to {max(row['psnr'] for row in found):.1f})"
    else:
        wide = ends(found[0]["low"], found[0]["high"])
    fewer = "" if len(rows) == seeds else f", {len(rows)} of the seeds"
    return f"{mean:.1f}{wide}, {likeness:.2f}{fewer}"


def peers() -> Lines:
    """Victims down, packages across: PSNR with its interval, SSIM; then how far ahead of the best other package."""
    rows = rows_of("matching/peers")
    names = sorted({row["attack"] for row in rows}, key=lambda name: (" " in name, name))
    others = [name for name in names if name.startswith(("breaching", "leakpro"))]
    body, ahead = [], []
    for where, group in itertools.groupby(sorted(rows, key=_met), _met):
        found = {row["attack"]: row for row in group}
        first = next(iter(found.values()))
        best = max((found[name]["psnr"] for name in others if name in found), default=None)
        own = found.get("gradient_matching")
        gap = None if best is None or own is None else own["psnr"] - best
        ahead += [] if gap is None else [gap]
        base = f"{first['flat_psnr']:.1f}, {first['flat_ssim']:.2f}"
        weights = f"{where[1]} steps" if where[1] else "fresh"
        cases = [_beside(found[name]) if name in found else "" for name in names]
        body.append([where[0], weights, where[2], str(where[3]), base, *cases, "" if gap is None else f"{gap:+.1f}"])
    heads = ["network", "weights", "mode", "batch", "mean color", *(f"`{name}`" for name in names), "ahead by"]
    mean = sum(ahead) / max(1, len(ahead))
    least = f"{mean:+.1f} dB on average over {len(ahead)} victims, from {min(ahead):+.1f} to {max(ahead):+.1f} dB."
    return [*table(heads, body), "", f"`gradient_matching` is ahead of the best other package by {least}"]


def _met(row: Row) -> tuple[str, int, str, int]:
    return row["network"], row["steps"], row["mode"], row["size"]


def _beside(row: Row) -> str:
    return f"{row['psnr']:.1f}{ends(row['low'], row['high'])}, {row['ssim']:.2f}"


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
            cases = [_milliseconds(row["steps"].get(name)) for name in names]
            best = max(step["images_per_cpu_s"] for step in row["steps"].values())
            body.append([row["model"], str(row["batch"]), *cases, f"{best:,.1f}"])
        lines += [f"### {title}", "", *table(["network", "batch", *names, "images x steps per s"], body), ""]
    risen = [row for row in ordered if "peak_rise_mib" in row]
    names = list(dict.fromkeys(name for row in risen for name in row["peak_rise_mib"]))
    body = []
    for row in risen:
        rises = [row["peak_rise_mib"].get(name) for name in names]
        cases = ["" if rise is None else f"{rise:,.0f}" for rise in rises]
        body.append([row["model"], str(row["batch"]), f"`{row['objective']}`", *cases])
    lines += ["### MiB by which the peak of memory rises in one step", ""]
    lines += [*table(["network", "batch", "objective", *names], body), ""]
    return [*lines, *commands(ordered)]


def _milliseconds(step: Mapping[str, float] | None) -> str:
    return "" if step is None else f"{step['cpu_ms']:,.0f} ({step['times_faster']:.2f})"


PARTS: dict[str, Part] = {
    "recognition copies": Part("../results/recognition/README.md", copies),
    "cpa tuned": Part("../results/cpa/README.md", tuned),
    "closed rows": Part("../results/closed/README.md", ways),
    "fedleak": Part("../results/matching/README.md", fedleak),
    "peers": Part("../results/matching/README.md", peers),
    "speed": Part("../results/matching/README.md", speed),
}
