"""Write the tables of docs/speed.md from results/matching/steps.jsonl: python experiments/speed_page.py"""

import json
from pathlib import Path
from typing import Any

RESULTS, PAGE = Path("results/matching/steps.jsonl"), Path("docs/speed.md")
BEGIN, END = "<!-- tables: experiments/speed_page.py -->", "<!-- end of tables -->"
TITLES = {
    "ig": "Inverting Gradients: cosine and total variation",
    "fedleak": "FedLeak: top half, L1 and cosine, blended",
}


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """One table: processor milliseconds per step, and in brackets how many times faster than the plain loop."""
    names = list(dict.fromkeys(name for row in rows for name in row["steps"]))
    head = ["| network | batch | " + " | ".join(names) + " | images x steps per s |", "|---" * (len(names) + 3) + "|"]
    body = []
    for row in rows:
        cells = [cell(row["steps"].get(name)) for name in names]
        best = max(step["images_per_cpu_s"] for step in row["steps"].values())
        body.append(f"| {row['model']} | {row['batch']} | " + " | ".join(cells) + f" | {best:,.1f} |")
    return head + body


def cell(step: dict[str, Any] | None) -> str:
    return "" if step is None else f"{step['cpu_ms']:,.0f} ({step['times_faster']:.2f})"


def peaks(rows: list[dict[str, Any]]) -> list[str]:
    """One table: MiB by which the peak of memory rises in one step."""
    names = list(dict.fromkeys(name for row in rows for name in row["peak_rise_mib"]))
    head = ["| network | batch | objective | " + " | ".join(names) + " |", "|---" * (len(names) + 3) + "|"]
    body = []
    for row in rows:
        rises = [row["peak_rise_mib"].get(name) for name in names]
        cells = ["" if rise is None else f"{rise:,.0f}" for rise in rises]
        body.append(f"| {row['model']} | {row['batch']} | `{row['objective']}` | {' | '.join(cells)} |")
    return head + body


def tables() -> str:
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    models = list(dict.fromkeys(row["model"] for row in rows))
    rows.sort(key=lambda row: (models.index(row["model"]), row["batch"]))
    parts = []
    for objective, title in TITLES.items():
        timed = [row for row in rows if row.get("objective") == objective and "steps" in row]
        parts += [f"### {title}", "", *lines(timed), ""]
    risen = [row for row in rows if "peak_rise_mib" in row]
    if risen:
        parts += ["### MiB by which the peak of memory rises in one step", "", *peaks(risen), ""]
    parts += ["Made by", "", *(f"    {command}" for command in dict.fromkeys(row["command"] for row in rows)), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
