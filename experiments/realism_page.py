"""Write the realism tables of docs/matching.md from results/matching/realism.jsonl: python experiments/realism_page.py

The rows are those of experiments/runs.py over runs of the recipe fedleak/realism-quick. A cell gives the
PSNR in dB, the gain over the mean color and the SSIM; in brackets the 95 % interval of the PSNR, over batches, or over
examples where there is one batch.
"""

import itertools
import json
from pathlib import Path
from typing import Any

RESULTS, PAGE = Path("results/matching/realism.jsonl"), Path("docs/matching.md")
Row = dict[str, Any]
LONG = 200
"""Evaluations above which a run is no part of the grid."""


def victim(row: Row) -> tuple[str, str, str]:
    activation = {"relu": "ReLU", "sigmoid": "Sigmoid"}[row["model_options"]["activation"]]
    weights = "fresh" if row["history"] == "freshly initialized" else f"trained, {row['accuracy']:.0%}"
    return ("eval" if "'eval'" in row["client"] else "train"), activation, weights


def number(row: Row) -> str:
    interval = "" if row["psnr_low"] is None else f" ({row['psnr_low']:.1f} to {row['psnr_high']:.1f})"
    return f"{row['psnr']:.1f}{interval}, {row['gain_db']:+.1f}, {row['ssim']:.2f}"


def grid(rows: list[Row]) -> list[str]:
    """One table: victims down, attacks across."""
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    heads = ["mode", "activation", "weights", "mean color", *(f"`{attack}`" for attack in attacks)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for where, own in itertools.groupby(rows, victim):
        found = {row["attack"]: row for row in own}
        first = next(iter(found.values()))
        base = f"{first['mean_color_psnr']:.1f}, {first['mean_color_ssim']:.2f}"
        numbers = [number(found[attack]) if attack in found else "" for attack in attacks]
        lines.append("| " + " | ".join([*where, base, *numbers]) + " |")
    return lines


def tables() -> list[str]:
    """The grid's rows by command, each under what it attacked."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["steps"] / row["batches"] <= LONG]
    lines: list[str] = []
    for (data, size, count), own in itertools.groupby(
        rows, lambda row: (row["data"], row["batch_size"], row["batches"])
    ):
        kept = list(own)
        lines += [f"{data}, {count} batch{'es' if count > 1 else ''} of {size}:", "", *grid(kept), ""]
        lines += [*(f"    {command}" for command in dict.fromkeys(row["command"] for row in kept)), ""]
    return lines


if __name__ == "__main__":
    begin, end = "<!-- grid: experiments/realism_page.py -->", "<!-- end of grid -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    PAGE.write_text(f"{before}{begin}\n\n" + "\n".join(tables()) + f"\n{end}{rest.partition(end)[2]}", encoding="utf-8")
