"""Write the table of docs/landscape.md from results/matching/landscape.jsonl: python experiments/landscape_page.py"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

RESULTS, PAGE = Path("results/matching/landscape.jsonl"), Path("docs/landscape.md")
BEGIN, END = "<!-- table: experiments/landscape_page.py -->", "<!-- end of table -->"
KEYS = ("net", "activation", "mode", "epochs", "accuracy")
SHOWN = (*KEYS, "images", "cosine at 0.003", "cosine at 0.03", "SSIM", "SSIM over mean color", "dB over mean color")


def mean(rows: list[dict[str, Any]], value: str, less: str | None = None) -> float:
    return sum(row[value] - (row[less] if less else 0) for row in rows) / len(rows)


def table() -> str:
    groups = defaultdict(list)
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        row |= {f"at {noise}": cosine for noise, cosine in row["cosine"].items()}
        groups[tuple(row[key] for key in KEYS)].append(row)
    body, found = [], []
    for key, rows in groups.items():
        near, far = mean(rows, "at 0.003"), mean(rows, "at 0.03")
        gains = mean(rows, "ssim", "flat_ssim"), mean(rows, "psnr", "flat_psnr")
        found.append((near, far, *gains))
        numbers = f"{len(rows)} | {near:.3f} | {far:.3f} | {mean(rows, 'ssim'):.3f} | {gains[0]:+.3f} | {gains[1]:+.2f}"
        body.append("| " + " | ".join(map(str, key)) + f" | {numbers} |")
    head = ["| " + " | ".join(SHOWN) + " |", "|---" * len(SHOWN) + "|"]
    return "\n".join([*head, *body, "", *(correlation(found, i, noise) for i, noise in enumerate((0.003, 0.03)))])


def correlation(found: list[tuple[float, ...]], column: int, noise: float) -> str:
    """Spearman's correlation over the rows of the table."""
    by_ssim, by_psnr = (
        spearmanr([row[column] for row in found], [row[gain] for row in found]).statistic for gain in (2, 3)
    )
    return (
        f"Rank correlation over these {len(found)} rows of the cosine at {noise} with the gain over mean color: "
        f"{by_ssim:.2f} in SSIM, {by_psnr:.2f} in dB.\n"
    )


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
