"""Print the table of docs/cafe.md from results/cafe/*.jsonl.

python experiments/cafe_page.py
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

NAMES = {"random": "random batches", "partitions": "server-chosen", "epochs": "shuffled epochs"}


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one results file."""
    return [json.loads(line) for line in (Path("results/cafe") / f"{name}.jsonl").read_text().splitlines()]


def span(values: list[float], form: str = "{:.0f}") -> str:
    """One number, or the smallest and largest of several."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def main() -> None:
    groups: dict[tuple[str, str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in [*rows("exact"), *rows("few-rounds")]:
        groups[row["data"], row["design"], row["rounds"], row["samples"]].append(row)
    print("| data | rounds | seeds | identifiable | error of V | error of H | CPU-s, steps I + II |")
    print("|---|---|---|---|---|---|---|")
    for (data, design, rounds, samples), found in sorted(groups.items()):
        known = span([row["identifiable_or_silent"] for row in found])
        errors = [span([row[key] for row in found], "{:.0e}") for key in ("error_v", "error_h")]
        cpu = span([row["cpu_1_2"] for row in found], "{:.1f}")
        cells = [data, f"{rounds}, {NAMES[design]}", str(len(found)), f"{known} of {samples}", *errors, cpu]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
