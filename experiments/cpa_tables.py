"""Print the tables of docs/cpa.md from results/cpa/*.jsonl: python experiments/cpa_tables.py"""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seepage.metrics.interval import bootstrap_interval

RESULTS = Path("results/cpa")
COLUMNS = (
    "embeddings_alike", "embedding_unmixed", "embedding_reached", "cosine", "over_0.999", "psnr", "plain_psnr", "ssim",
    "plain_ssim", "exact", "certified", "false_certificates", "cpu_s", "peak_mb",
)  # fmt: skip
KEYS = ("data", "network", "n", "sigma", "epsilon", "method", "steps")


def steps(row: dict[str, Any]) -> int | None:
    """Steps of the methods that are cut short of what was published."""
    if "steps" in row:
        return int(row["steps"])
    asked = re.search(r"\bsteps=(\d+)", row.get("attack", ""))
    searched = row["method"].startswith(("published", "matching", "all", "-"))
    return int(asked[1]) if asked and searched else None


def mean(rows: Sequence[dict[str, Any]], key: str) -> str:
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


def table(name: str) -> str:
    """One file as a table, a line per data set, batch size, noise and method."""
    groups = defaultdict(list)
    for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        groups[tuple(steps(row) if key == "steps" else row.get(key) for key in KEYS)].append(row)
    keys = [key for i, key in enumerate(KEYS) if any(group[i] is not None for group in groups)]
    columns = [key for key in COLUMNS if any(key in row for rows in groups.values() for row in rows)]
    lines = [" | ".join(["", *keys, "batches", *columns, ""]).strip(), "|---" * (len(keys) + 1 + len(columns)) + "|"]
    for group, rows in groups.items():
        told = [
            "" if v is None else f"{v:,}" if isinstance(v, int) else str(v)
            for v in map(dict(zip(KEYS, group, strict=True)).get, keys)
        ]
        lines.append("| " + " | ".join([*told, str(len(rows)), *(mean(rows, key) for key in columns)]) + " |")
    commands = dict.fromkeys(row["command"] for rows in groups.values() for row in rows)
    return "\n".join([*lines, "", *(f"    {command}" for command in commands)])


if __name__ == "__main__":
    for file in sorted(RESULTS.glob("*.jsonl")):
        print(f"\n### {file.stem}\n\n{table(file.stem)}")
