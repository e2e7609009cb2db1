"""Parts of docs/fedleak-relu.md."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from page_parts import Lines, Part, Row, commands, rows_of, table

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
        cells = [_over_seeds(own[name], len(one)) if name in own else "" for name in FEDLEAK]
        victim = [
            data,
            str(width),
            f"{steps} steps" if steps else "fresh",
            mode,
            str(batch),
            str(len(one)),
            str(length),
        ]
        body.append([*victim, f"{flat[0]:.1f}, {flat[1]:.2f}", f"{flat[2]:.1f}", *cells])
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
    wide = ""
    if len(found) > 1:
        wide = f" ({min(row['psnr'] for row in found):.1f} to {max(row['psnr'] for row in found):.1f})"
    elif found[0]["low"] is not None:
        wide = f" ({found[0]['low']:.1f} to {found[0]['high']:.1f})"
    fewer = "" if len(rows) == seeds else f", {len(rows)} of the seeds"
    return f"{mean:.1f}{wide}, {likeness:.2f}{fewer}"


def fedleak_probe() -> Lines:
    """The landscape probe of each variant's objective, means over seeds."""
    rows = rows_of("matching/fedleak-probe")
    groups: dict[tuple[int, int, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["width"], row["batch"], row["variant"]].append(row)
    names = [name for name in rows[0] if name.startswith("cosine at 0")] if rows else []
    body = []
    for (width, batch, variant), own in groups.items():
        means = [f"{statistics.fmean(row[name] for row in own):.3f}" for name in (*names, "cosine at start")]
        body.append([str(width), str(batch), f"`{variant}`", str(len(own)), *means])
    return [*table(("width", "batch", "objective", "seeds", *names, "cosine at start"), body), *commands(rows)]


PARTS: dict[str, Part] = {
    "fedleak": Part("fedleak-relu.md", fedleak),
    "fedleak probe": Part("fedleak-relu.md", fedleak_probe),
}
