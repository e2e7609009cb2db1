"""Parts of docs/matching.md."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence

from page_parts import Lines, Part, Row, commands, rows_of, table

LONG = 200
"""Evaluations per batch above which a run is no part of the grid of realism."""


NETWORKS = {
    "lenet": "LeNet, smooth", "convnet_width-16": "ConvNet", "convnet_width-16_batch_norm-True": "ConvNet, batch norm",
    "mlp3": "three fully connected",
}  # fmt: skip
PAPER_11 = {
    "bayes": 10.99, "bayes-2": 11.11, "bayes-3": 11.04, "inverting_gradients": 8.70, "inverting_gradients-2": 9.01,
    "inverting_gradients-3": 9.22,
}  # fmt: skip
"""FedLeak's Table 11, MNIST."""


def methods() -> Lines:
    """Attacks down, networks across: how many came back, and the median PSNR."""
    rows = rows_of("matching/methods")
    found = {(row["attack"], row["cell"]): row for row in rows}
    body = [
        [f"`{attack}`", *(_count_and_median(found[attack, cell]) for cell in NETWORKS)]
        for attack in dict.fromkeys(row["attack"] for row in rows)
    ]
    return [*table(["method", *NETWORKS.values()], body), *commands(rows)]


def _count_and_median(row: Row) -> str:
    if row["recovered"] is None:
        return "-"
    return f"{round(row['recovered'] * row['examples'])}/{row['examples']}, {row['psnr_median']:.1f}"


def restarts() -> Lines:
    """Closed forms and searches with restarts and annealed rates, beside what the paper has."""
    rows = rows_of("matching/restarts")
    body = []
    for row in rows:
        attack = row["attack"]
        name, last = attack.rpartition("-")[::2] if attack.endswith(("-2", "-3")) else (attack, "")
        words = {"2": ", 4 restarts", "3": ", annealed, with restarts of the rate"}.get(last, "")
        quality = f"{row['psnr']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
        count = f"{round(row['recovered'] * row['examples'])} of {row['examples']}"
        paper = f"{PAPER_11[attack]:.2f}" if attack in PAPER_11 else ""
        body.append([f"`{name}`{words}", quality, f"{row['ssim']:.2f}", count, paper])
    return [*table(["attack", "PSNR", "SSIM", "recovered", "the paper, MNIST"], body), *commands(rows)]


def realism() -> Lines:
    """Victims down, attacks across: PSNR, gain over the mean color, SSIM."""
    rows = [row for row in rows_of("matching/realism") if row["steps"] / row["batches"] <= LONG]
    lines: Lines = []
    for (data, size, count), group in itertools.groupby(
        rows, lambda row: (row["data"], row["batch_size"], row["batches"])
    ):
        own = list(group)
        lines += [
            f"{data}, {count} batch{'es' if count > 1 else ''} of {size}:",
            "",
            *_victims(own),
            *commands(own),
            "",
        ]
    return lines[:-1]


def _victims(rows: list[Row]) -> Lines:
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    body = []
    for where, group in itertools.groupby(rows, _victim):
        found = {row["attack"]: row for row in group}
        first = next(iter(found.values()))
        base = f"{first['mean_color_psnr']:.1f}, {first['mean_color_ssim']:.2f}"
        body.append([*where, base, *(_gain(found[attack]) if attack in found else "" for attack in attacks)])
    return table(["mode", "activation", "weights", "mean color", *(f"`{attack}`" for attack in attacks)], body)


def _victim(row: Row) -> tuple[str, str, str]:
    activation = {"relu": "ReLU", "sigmoid": "Sigmoid"}[row["model_options"]["activation"]]
    weights = "fresh" if row["history"] == "freshly initialized" else f"trained, {row['accuracy']:.0%}"
    return ("eval" if "'eval'" in row["client"] else "train"), activation, weights


def _gain(row: Row) -> str:
    interval = "" if row["low"] is None else f" ({row['low']:.1f} to {row['high']:.1f})"
    return f"{row['psnr']:.1f}{interval}, {row['gain_db']:+.1f}, {row['ssim']:.2f}"


def peers() -> Lines:
    """Victims down, packages across: PSNR with its interval, SSIM; then how far ahead of the best other package."""
    rows = rows_of("matching/peers")
    names = sorted({row["attack"] for row in rows}, key=lambda name: (" " in name, name))
    others = [name for name in names if name.startswith(("breaching", "leakpro"))]
    body, ahead = [], []
    for where, group in itertools.groupby(sorted(rows, key=_met), _met):
        found = {row["attack"]: row for row in group}
        first = next(iter(found.values()))
        best = max((found[name]["psnr"] for name in others if name in found), default=None)
        own = found.get("gradient_matching")
        gap = None if best is None or own is None else own["psnr"] - best
        ahead += [] if gap is None else [gap]
        base = f"{first['flat_psnr']:.1f}, {first['flat_ssim']:.2f}"
        weights = f"{where[1]} steps" if where[1] else "fresh"
        cells = [_beside(found[name]) if name in found else "" for name in names]
        body.append([where[0], weights, where[2], str(where[3]), base, *cells, "" if gap is None else f"{gap:+.1f}"])
    heads = ["network", "weights", "mode", "batch", "mean color", *(f"`{name}`" for name in names), "ahead by"]
    mean = sum(ahead) / max(1, len(ahead))
    least = f"{mean:+.1f} dB on average over {len(ahead)} victims, from {min(ahead):+.1f} to {max(ahead):+.1f} dB."
    return [*table(heads, body), "", f"`gradient_matching` is ahead of the best other package by {least}"]


def _met(row: Row) -> tuple[str, int, str, int]:
    return row["network"], row["steps"], row["mode"], row["size"]


def _beside(row: Row) -> str:
    interval = "" if row["low"] is None else f" ({row['low']:.1f} to {row['high']:.1f})"
    return f"{row['psnr']:.1f}{interval}, {row['ssim']:.2f}"


def starts() -> Lines:
    """PSNR of DLG and iDLG on LeNet at each budget: every image up to a few, else their mean and range."""
    rows = rows_of("matching/dlg")
    body = []
    for row in rows:
        cells = [_every(row[f"psnr_{budget}"]) for budget in (600, 2000, 6000)]
        seconds = statistics.median(row["cpu_s"])
        body.append([f"`{row['attack']}`", str(row["batch"]), f"{row['flat_psnr']:.1f}", *cells, f"{seconds:.0f}"])
    heads = ["method, start", "batch", "mean color", "600 evaluations", "2,000", "6,000", "CPU s"]
    return [*table(heads, body), *commands(rows)]


def _every(values: Sequence[float]) -> str:
    if len(values) <= 3:
        return ", ".join(f"{value:.1f}" for value in values)
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


LABEL_SIZES = (1, 4, 8, 16, 32, 64, 128)


def labels() -> Lines:
    """Share of labels that each rule names right, with half of its interval."""
    found: dict[tuple[str, int, str], dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of("matching/labels"):
        net = f"trained, {100 * row['train_accuracy']:.0f}%" if row["train_steps"] else "fresh"
        half = "" if row["low"] is None else f" ± {(row['high'] - row['low']) / 2:.2f}"
        value = "-" if row["accuracy"] is None else f"{row['accuracy']:.2f}{half}"
        found[row["data"], row["classes"], net][row["rule"]][row["batch"]] = value
    body = [
        [f"{data}, {classes:,}", net, f"`{rule}`", *(sizes[size] for size in LABEL_SIZES)]
        for (data, classes, net), rules in found.items()
        for rule, sizes in rules.items()
        if rule != "sign"
    ]
    return table(["pictures, classes", "net", "rule", *map(str, LABEL_SIZES)], body)


PARTS: dict[str, Part] = {
    "methods": Part("matching.md", methods),
    "restarts": Part("matching.md", restarts),
    "realism": Part("matching.md", realism),
    "labels": Part("matching.md", labels),
    "peers": Part("matching.md", peers),
    "starts": Part("matching.md", starts),
}
