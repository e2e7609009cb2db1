"""Parts of docs/attacks/cocktail_party.md and cpa_fia.md: one study as a table."""

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import torch
from page_parts import Lines, Part, Row, commands, rows_of, table

from seepage.measure.metrics.interval import bootstrap_interval

CPA = ("unmix", "polish", "updates", "embeddings", "wide", "rivals", "ablation", "noise", "inversion")


CPA_KEYS = ("data", "network", "n", "sigma", "epsilon", "method", "steps")


CPA_COLUMNS = (
    "embeddings_alike", "embedding_unmixed", "embedding_reached", "cosine", "over_0.999", "psnr", "plain_psnr", "ssim",
    "plain_ssim", "exact", "certified", "false_certificates", "cpu_s", "peak_mb",
)  # fmt: skip


def cpa(study: str) -> Lines:
    """One study as a table, a line per data set, batch size, noise and method."""
    groups = defaultdict(list)
    rows = rows_of(f"cpa/{study}")
    for row in rows:
        groups[tuple(_steps(row) if key == "steps" else row.get(key) for key in CPA_KEYS)].append(row)
    kept = [i for i in range(len(CPA_KEYS)) if any(group[i] not in (None, "") for group in groups)]
    columns = [key for key in CPA_COLUMNS if any(key in row for row in rows)]
    body = []
    for group, found in groups.items():
        known = ["" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in map(group.__getitem__, kept)]
        body.append([*known, str(len(found)), *(_mean(found, key) for key in columns)])
    return table([*(CPA_KEYS[i] for i in kept), "batches", *columns], body) + commands(rows)


def _steps(row: Row) -> int | None:
    """Steps of the methods that are cut short of what was published."""
    if "steps" in row:
        return int(row["steps"])
    asked = re.search(r"\bsteps=(\d+)", row.get("attack", ""))
    searched = row["method"].startswith(("published", "matching", "all", "-"))
    return int(asked[1]) if asked and searched else None


def _mean(rows: Sequence[Row], key: str) -> str:
    """Mean over batches; certificates that are false are counted, the cosine has its 95 % bootstrap interval."""
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        return ""
    if key == "false_certificates":
        return str(sum(values))
    if key == "peak_mb":
        return str(max(values))
    middle = sum(values) / len(values)
    if key != "cosine":
        return f"{middle:.3g}" if key in ("cpu_s", "psnr") else f"{middle:.4g}"
    interval = bootstrap_interval(torch.tensor(values, dtype=torch.float64), torch.arange(len(values)))
    return f"{middle:.4f}" + (f" ({interval[0]:.4f} to {interval[1]:.4f})" if interval else "")


PARTS: dict[str, Part] = {
    f"cpa {study}": Part(
        "attacks/cpa_fia.md" if study == "inversion" else "attacks/cocktail_party.md", partial(cpa, study)
    )
    for study in CPA
}
