"""Draw what decides whether gradient matching reads a ReLU network: python experiments/fedleak_regime.py

Of the rows that `fedleak_grid.py` kept in results/matching/fedleak-grid.jsonl: width 16, batch norm in eval mode, one
image a batch. It writes docs/fedleak-regime.png.
"""

from pathlib import Path
from statistics import mean

from common import command
from matplotlib.figure import Figure

from seepage.papers.records import read_file

PANELS = ("fresh", "fresh head", "trained")
SHOWN = {
    "fedleak, sums": "fedleak",
    "fedleak, sums, no blend": "fedleak, no blend",
    "fedleak_released": "fedleak_released",
    "inverting_gradients, 0.1": "inverting_gradients, TV 0.1",
    "gradient_matching": "gradient_matching",
    "fedleak_guided": "fedleak_guided",
}
Gains = dict[int, list[float]]


def gains(results: Path) -> dict[tuple[str, str], Gains]:
    """By weights and attack: dB above the image's mean color, of each image by evaluations."""
    found: dict[tuple[str, str], Gains] = {}
    for record in read_file(results / "matching" / "fedleak-grid.jsonl"):
        facts = record.facts
        if (facts["width"], facts["mode"], facts["batch"]) == (16, "eval", 1) and record.value is not None:
            own = found.setdefault((facts["training"], facts["variant"]), {})
            own.setdefault(facts["evaluations"], []).append(record.value - facts["flat_psnr"])
    return found


def main(*, results: str = "results", out: str = "docs/fedleak-regime.png") -> None:
    read = gains(Path(results))
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    rooms = figure.subplots(1, len(PANELS), sharey=True)
    for axes, panel in zip(rooms, PANELS, strict=True):
        for number, (variant, label) in enumerate(SHOWN.items()):
            points = dict(sorted(read.get((panel, variant), {}).items()))
            axes.plot([*points], [mean(values) for values in points.values()], f"C{number}", marker="o", ms=3, lw=1,
                      label=label)  # fmt: skip
            dots = [(evaluations, value) for evaluations, values in points.items() for value in values]
            axes.scatter(*zip(*dots, strict=True), s=8, color=f"C{number}", alpha=0.4, linewidth=0)
        axes.axhline(0, color="gray", lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_xticks([500, 4000], ["500", "4,000"], minor=False)
        axes.minorticks_off()
        axes.set_title({"fresh head": "fresh head, features of CIFAR-100"}.get(panel, f"{panel} weights"), fontsize=9)
        axes.set_xlabel("evaluations")
    rooms[0].set_ylabel("dB above the mean color")
    figure.legend(*rooms[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(out, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    command(main)
