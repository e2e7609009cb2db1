"""Draw how well one image is read behind a first step of Adam, by the rate: python experiments/adam_rate.py

Of the rows that `measured_updates.py` kept in results/captured/measured.jsonl. It writes docs/adam-rate.png.
"""

import re
from pathlib import Path
from statistics import median

from common import command
from matplotlib.figure import Figure

from seepage.papers.records import read_file

ROW = re.compile(r"fc2, batch 1, Adam (\S+)")


def points(results: Path) -> dict[float, list[tuple[float, bool]]]:
    """By rate: PSNR of each batch, and whether its guess was certified."""
    found: dict[float, list[tuple[float, bool]]] = {}
    for record in read_file(results / "captured" / "measured.jsonl"):
        named = ROW.fullmatch(record.row)
        if named and record.value is not None:
            found.setdefault(float(named[1]), []).append((record.value, bool(record.facts["certified"])))
    return dict(sorted(found.items()))


def main(*, results: str = "results", out: str = "docs/adam-rate.png") -> None:
    read = points(Path(results))
    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    axes = figure.subplots()
    for sure, face in ((True, "tab:blue"), (False, "white")):
        dots = [(rate, value) for rate, batches in read.items() for value, certified in batches if certified == sure]
        axes.scatter(*zip(*dots, strict=True), s=18, facecolor=face, edgecolor="tab:blue", linewidth=0.8,
                     label="certified" if sure else "not certified")  # fmt: skip
    axes.plot([*read], [median(value for value, _ in batches) for batches in read.values()], color="black", lw=1)
    axes.axhline(40, color="gray", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_xlabel("Adam's rate (eps 1e-8)")
    axes.set_ylabel("PSNR, dB")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(out, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    command(main)
