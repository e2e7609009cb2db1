"""Write the tables of docs/federation.md from results/federation/*.jsonl: python experiments/federation_page.py"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS, PAGE = Path("results/federation"), Path("docs/federation.md")
Row = dict[str, Any]

# The paper's PSNR in dB at the nearest setting (Fan et al. 2025): the closest column of its tables for each case.
PAPER = {
    "local-steps": {
        "convnet": "IG 8.8, FedLeak 18.4",
        "convnet-2-steps": "IG 8.4, FedLeak 16.7",
        "convnet-4-steps": "IG 8.5, FedLeak 15.6",
        "convnet-12-steps": "IG 8.6, FedLeak 13.6",
    },
    "skew": {
        "iid": "",
        "label skew classes-1": "18.82",
        "label skew classes-2": "18.38",
        "label skew classes-5": "17.73",
        "quantity skew low-50 high-230": "17.71 to 17.80",
        "feature skew groups-5": "19.64 to 16.07",
        "dirichlet alpha-0.1": "18.06",
        "dirichlet alpha-0.5": "17.86",
        "dirichlet alpha-5.0": "17.60",
    },
}


def table(name: str, heads: tuple[str, ...], labels: Callable[[Row], tuple[str, ...]]) -> list[str]:
    """One line per row that was scored, or why there is none."""
    path = RESULTS / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    paper = PAPER.get(name)
    columns = [*heads, "attack", "mean color", "PSNR", "SSIM", "over mean color", "recovered"]
    columns += ["the paper"] if paper else []
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = [*labels(row), f"`{row['attack']}`", *scores(row)]
        if paper:
            key = row["cell"] if row["cell"] in paper else labels(row)[0]
            cells.append("" if row["psnr"] is None else paper.get(key, ""))
        lines.append("| " + " | ".join(cells) + " |")
    commands = dict.fromkeys(row["command"] for row in rows)
    return [*lines, "", *(f"    {command}" for command in commands), ""]


def scores(row: Row) -> list[str]:
    if row["psnr"] is None:
        return ["", row["outcome"], "", "", ""]
    interval = "" if row["psnr_low"] is None else f" ({row['psnr_low']:.1f} to {row['psnr_high']:.1f})"
    return [
        f"{row['mean_color_psnr']:.1f} / {row['mean_color_ssim']:.2f}",
        f"{row['psnr']:.1f}{interval}",
        f"{row['ssim']:.2f}",
        f"{row['gain_db']:+.1f} dB",
        f"{round(row['recovered'] * row['examples'])} of {row['examples']}",
    ]


def write(tables: dict[str, list[str]]) -> None:
    """Put each table between its two marks."""
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- table {name}: experiments/federation_page.py -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n" + "\n".join(lines) + f"\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(page, encoding="utf-8")


def shares(row: Row) -> tuple[str, ...]:
    """Of a cell named `label_skew_classes-2` and the like."""
    return str(row["cell"]).removesuffix("_least-8").replace("_", " "), f"{row['accuracy']:.0%}"


def stage(row: Row) -> tuple[str, ...]:
    return row["model"], str(row["cell"]).rpartition("-")[2], f"{row['accuracy']:.0%}"


def view(row: Row) -> tuple[str, ...]:
    local = "averaged" if "local='averaged'" in row["options"] else "unrolled"
    return row["client"].partition("lr=")[2].partition(",")[0], local, f"{row['cpu_seconds']:.0f}"


SECTIONS: dict[str, tuple[tuple[str, ...], Callable[[Row], tuple[str, ...]]]] = {
    "local-steps": (("case",), lambda row: (row["cell"],)),
    "local-views": (("client's lr", "view", "processor s"), view),
    "stages": (("network", "round", "accuracy"), stage),
    "skew": (("shares", "accuracy"), shares),
    "secure-aggregation": (("case",), lambda row: (row["cell"],)),
}

if __name__ == "__main__":
    write({name: table(name, *how) for name, how in SECTIONS.items() if (RESULTS / f"{name}.jsonl").exists()})
