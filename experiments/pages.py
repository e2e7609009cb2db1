"""Write the parts of docs/*.md that are made of records: python experiments/pages.py [PART ...]

A part of a page stands between `<!-- part NAME: experiments/pages.py -->` and `<!-- end of NAME -->`. A test compares
every part with the records. The book (docs/results) is written by `seepage reproduce --book docs/results`.
"""

import itertools
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pages_architectures
import pages_bounds
import pages_cafe
import pages_fedleak
import pages_landscape
import pages_runs
import pages_safety
import torch
from page_parts import Lines, Part, Row, commands, rows_of, span, table

from seepage.metrics.interval import bootstrap_interval
from seepage.metrics.membership import Rate
from seepage.papers import find_item

# docs/cafe.md


DESIGNS = {"random": "random batches", "partitions": "server-chosen", "epochs": "shuffled epochs"}


def cafe_rounds() -> Lines:
    """How few rounds identify all samples, and how exactly."""
    groups: dict[tuple[str, str, int, int], list[Row]] = defaultdict(list)
    rows = rows_of("cafe/exact", "cafe/few-rounds")
    for row in rows:
        groups[row["data"], row["design"], row["rounds"], row["samples"]].append(row)
    heads = ["data", "rounds", "seeds", "identifiable", "with silent parts", "error of V", "error of H"]
    body = []
    for (data, design, rounds, samples), found in sorted(groups.items()):
        known = f"{span(row['identifiable'] for row in found)} of {samples}"
        silent = f"{span(row['identifiable_or_silent'] for row in found)} of {samples}"
        errors = [span((row[key] for row in found), "{:.0e}") for key in ("error_v", "error_h")]
        cpu = span((row["cpu_1_2"] for row in found), "{:.1f}")
        body.append([data, f"{rounds}, {DESIGNS[design]}", str(len(found)), known, silent, *errors, cpu])
    return table([*heads, "CPU-s, steps I + II"], body) + commands(rows)


def cafe_rivals() -> Lines:
    """The published loops and the closed form on the same parties: rounds, work, mean PSNR."""
    rows = rows_of("cafe/published", "cafe/published-small")
    heads = ["method", "N, K", "rounds recorded", "rounds read", "CPU-s", "mean PSNR"]
    body = []
    for row in rows:
        size, dB = f"{row['samples']}, {row['batch']}", f"{row['psnr']:.1f} dB"
        body.append([_method(row), size, f"{row['rounds']:,}", f"{row['reads']:,}", f"{row['cpu_attack']:.3g}", dB])
    return table(heads, body) + commands(rows)


def _method(row: Row) -> str:
    if row["who"] == "published":
        return "published, single loop" if "single_loop" in row["attack"] else "published, nested loops"
    steps = re.search(r"\bsteps=\((\d+)", row["attack"])
    return f"`cafe`, {DESIGNS[row['design']]}, {steps[1] if steps else '?'} steps of step III"


def cafe_training() -> Lines:
    """What comes back while the server takes steps, with the loss at the first round and after the last."""
    rows = rows_of("cafe/training")
    heads = ["server", "N, K", "rounds", "loss, first to last", "samples returned", "mean PSNR"]
    body = []
    for row in rows:
        server = f"{'SGD' if row['optimizer'] == 'sgd' else 'Adam'} {row['lr']:g}"
        loss = " to ".join(f"{value:.3f}" for value in row["losses"])
        rounds, returned = f"{row['rounds']}, {DESIGNS[row['design']]}", f"{row['returned']} of {row['samples']}"
        body.append([server, f"{row['samples']}, {row['batch']}", rounds, loss, returned, f"{row['psnr']:.1f} dB"])
    return table(heads, body) + commands(rows)


# docs/cpa.md


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
        told = ["" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in map(group.__getitem__, kept)]
        body.append([*told, str(len(found)), *(_mean(found, key) for key in columns)])
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


# docs/defenses.md


ATTACKED = [("fc2, batch 8", "linear"), ("fc2, batch 8", "cocktail_party"), ("convnet, batch 1", "inverting_gradients")]


def defenses() -> Lines:
    """What attacks that know of no defense recover behind each: median PSNR, and how many were recovered."""
    rows = rows_of("defenses/leakage")
    at = {(row["defense"], row["case"], row["attack"]): row for row in rows}
    names = dict.fromkeys(row["defense"] for row in rows)
    heads = ["defense", *(f"{attack}, {case}" for case, attack in ATTACKED)]
    body = [[name, *(_recovered(at.get((name, case, attack))) for case, attack in ATTACKED)] for name in names]
    return table(heads, body) + commands(rows)


def _recovered(row: Row | None) -> str:
    if row is None:
        return ""
    if "refused" in row:
        return "nothing to attack"
    return f"{row['psnr_median']:.1f} dB, {round(row['recovered'] * row['examples'])}/{row['examples']}"


# docs/federation.md


def federation(
    study: str, heads: Sequence[str], labels: Callable[[Row], Sequence[str]], paper: Mapping[str, str]
) -> Lines:
    """One line per row that was scored, or why there is none; the paper's numbers at the nearest setting beside."""
    rows = rows_of(f"federation/{study}")
    columns = [*heads, "attack", "mean color", "PSNR", "SSIM", "over mean color", "recovered"]
    body = []
    for row in rows:
        cells = [*labels(row), f"`{row['attack']}`", *_scores(row)]
        if paper:
            named = row["cell"] if row["cell"] in paper else labels(row)[0]
            cells.append("" if row["psnr"] is None else paper.get(named, ""))
        body.append(cells)
    return table([*columns, "the paper"] if paper else columns, body) + commands(rows)


def _scores(row: Row) -> list[str]:
    if row["psnr"] is None:
        return ["", row["outcome"], "", "", ""]
    interval = "" if row["low"] is None else f" ({row['low']:.1f} to {row['high']:.1f})"
    return [
        f"{row['mean_color_psnr']:.1f} / {row['mean_color_ssim']:.2f}",
        f"{row['psnr']:.1f}{interval}",
        f"{row['ssim']:.2f}",
        f"{row['gain_db']:+.1f} dB",
        f"{round(row['recovered'] * row['examples'])} of {row['examples']}",
    ]


def printed(item: str, row: str) -> list[float]:
    """A row of numbers that a paper prints, as its recipe's `[expect]` has them."""
    return [float(value) for value in next(line for line in find_item(item).lines if line.name == row).paper]


def local_steps() -> Lines:
    pairs = list(zip(printed("fedleak/table-9", "IG"), printed("fedleak/table-9", "FedLeak"), strict=True))
    cells = {"convnet": 0, "convnet-2-steps": 1, "convnet-4-steps": 2, "convnet-12-steps": 4}
    paper = {cell: "IG {:.1f}, FedLeak {:.1f}".format(*pairs[column]) for cell, column in cells.items()}
    return federation("local-steps", ("case",), lambda row: (row["cell"],), paper)


def skew() -> Lines:
    labels, quantities, features = (
        printed("fedleak/table-5", f"{kind} skew") for kind in ("Label", "Quantity", "Feature")
    )
    shares = printed("fedleak/table-6", "FedLeak")
    paper = {f"label skew classes-{n}": f"{labels[n - 1]:.2f}" for n in (1, 2, 5)}
    paper |= {"quantity skew low-50 high-230": span(quantities, "{:.2f}")}
    paper |= {"feature skew groups-5": f"{features[0]:.2f} to {features[-1]:.2f}"}
    paper |= {f"dirichlet alpha-{alpha}": f"{shares[i]:.2f}" for alpha, i in (("0.1", 0), ("0.5", 1), ("5.0", 3))}

    def named(row: Row) -> tuple[str, str]:
        return str(row["cell"]).removesuffix("_least-8").replace("_", " "), f"{row['accuracy']:.0%}"

    return federation("skew", ("shares", "accuracy"), named, paper)


def local_views() -> Lines:
    def named(row: Row) -> tuple[str, str, str]:
        local = "averaged" if "local='averaged'" in row["options"] else "unrolled"
        return row["client"].partition("lr=")[2].partition(",")[0], local, f"{row['cpu_seconds']:.0f}"

    return federation("local-views", ("client's lr", "view", "processor s"), named, {})


def stages() -> Lines:
    def named(row: Row) -> tuple[str, str, str]:
        return row["model"], str(row["cell"]).rpartition("-")[2], f"{row['accuracy']:.0%}"

    return federation("stages", ("network", "round", "accuracy"), named, {})


def secure_aggregation() -> Lines:
    return federation("secure-aggregation", ("case",), lambda row: (row["cell"],), {})


# docs/features.md


def head_features() -> Lines:
    """Errors by classes and examples down and training across; then other features, labels and updates."""
    rows = rows_of("head/features")
    plain = [row for row in rows if row["features"] == "ReLU"]
    states = list(dict.fromkeys(row["state"] for row in plain))
    heads = ("classes", "n", "labels", *states, "cpu_s")
    lines = table(heads, _by_state(plain, ("classes", "n", "labels"), states))
    others = [row for row in rows if row["features"] != "ReLU"]
    states = list(dict.fromkeys(row["state"] for row in others))
    body = _by_state(others, ("features", "classes", "n", "labels"), states)
    lines += ["", "Other features, labels and updates:", ""]
    lines += table(("", "classes", "n", "labels", *states, "cpu_s"), body)
    wrong = sum(row.get("false_known") or 0 for row in rows)
    known, examples = (sum(row.get(key) or 0 for row in rows) for key in ("known", "examples"))
    ratios = [row["median_error_in_noise"] for row in rows if row.get("median_error_in_noise") is not None]
    worst = max(row["largest_error_in_noise"] for row in rows if row.get("largest_error_in_noise") is not None)
    lines += [
        "",
        f"Called known: {known:,} of {examples:,} examples, {wrong} of them with an error above a hundredth.",
        f"Error over `noise`: medians of the settings {span(ratios, '{:.1f}')}, at most {worst:.1f}.",
    ]
    return [*lines, *commands(rows)]


def batches() -> Lines:
    """Batches of a vision transformer, by their size."""
    rows = rows_of("transformers/batches")
    body = [
        [
            row["name"],
            f"{row['psnr']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
            f"{row['over_30']:.0%}",
            f"{row['certified']}, {row['false_certificates']} false",
            f"{row['mean_color']:.1f}",
            f"{row['cpu_s']:.0f}",
        ]
        for row in rows
    ]
    heads = ("", "PSNR, median (least to most)", "over 30 dB", "certified", "mean color", "cpu_s")
    title = "Five batches of different ImageNet photographs of 224 pixels, random weights, one gradient in float32:"
    return [title, "", *table(heads, body), "", *commands(rows)]


def patches() -> Lines:
    """Vision transformers: by network at 224 pixels, then by what the client does at 32."""
    rows = rows_of("transformers/patches")
    lines: Lines = []
    for data, title in (
        (
            "photographs",
            "Five packaged photographs of 224 pixels, random weights (torchvision's heads drawn with a "
            "deviation of 0.02), one gradient in float32:",
        ),
        ("cifar10.npz", "Five CIFAR-10 images of 32 pixels, `vit` (64 patches, tokens of 96 numbers, 4 layers):"),
    ):
        found = [row for row in rows if row["data"] == data]
        body = []
        for row in found:
            if row["psnr"] is None:
                body.append(
                    [row["name"], "not applicable", "", "", "", "", f"{row['mean_color']:.1f}", f"{row['cpu_s']:.1f}"]
                )
                continue
            body.append(
                [
                    row["name"],
                    f"{row['psnr']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
                    f"{row['expected']:.1f}",
                    f"{row['shown']:.0%}",
                    f"{row['rounded'] * row['applicable']:.0f} of {row['images']}",
                    f"{row['certified'] * row['applicable']:.0f} of {row['images']}, {row['false_certificates']} false",
                    f"{row['mean_color']:.1f}",
                    f"{row['cpu_s']:.1f}",
                ]
            )
        heads = ("", "PSNR, mean (least to most)", "expected", "directions shown", "rounded")
        lines += [title, "", *table((*heads, "certified", "mean color", "cpu_s"), body), ""]
    reasons = {reason for row in rows for reason in row["reasons"]}
    lines += [f"Not applicable: {reason}." for reason in sorted(reasons)]
    return [*lines, *commands(rows)]


def membership() -> Lines:
    """Membership tests, by network, data set and setting: seeds together."""
    rows = rows_of("membership/tests")
    lines: Lines = []
    for title in dict.fromkeys((row["name"].partition(", n")[0].partition(", sum")[0], row["data"]) for row in rows):
        network, data = title
        found = [row for row in rows if row["data"] == data and row["name"].startswith(f"{network}, ")]
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in found:
            groups.setdefault((row["name"].removeprefix(f"{network}, "), row["test"]), []).append(row)
        body = []
        for (setting, test), group in groups.items():
            areas = [row["auc"] for row in group]
            ends = f" ({min(areas):.3f} to {max(areas):.3f})" if len(areas) > 1 else ""
            body.append(
                [
                    setting,
                    f"`{test}`",
                    f"{sum(areas) / len(areas):.3f}{ends}",
                    pooled(group, "named", "members"),
                    pooled(group, "false", "others"),
                    f"{sum(row['accuracy'] for row in group) / len(group):.0%}",
                    f"{len(group)}",
                    f"{sum(row['cpu_s'] for row in group) / len(group):.0f}",
                ]
            )
        heads = ("", "test", "AUC", "members named", "others named", "accuracy", "seeds", "cpu_s")
        lines += [f"{network}, `{data}`:", "", *table(heads, body), ""]
    return [*lines, *commands(rows)]


def prove() -> Lines:
    """Filters with what is claimed and measured of them, and the nulls."""
    rows = rows_of("prove/filters")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    body = []
    for name, group in groups.items():
        fits = [row["fit_epsilon"][1] for row in group if row.get("fit_plausible")]
        verdicts = sorted({row["stated_verdict"] for row in group})
        body.append(
            [
                name,
                f"{group[0]['stated']:.3g}",
                span((row["epsilon_low"] for row in group), "{:.1f}"),
                span((row["ceiling"] for row in group), "{:.1f}"),
                span(fits, "{:.3g}") if len(fits) == len(group) else "refused" if "fit_epsilon" in group[0] else "-",
                ", ".join(verdicts),
                span((row["calls"] for row in group), "{:,.0f}"),
                span(row["cpu_s"] for row in group),
            ]
        )
    heads = ("filter", "stated", "measured, at least", "shows", "by Gaussian fit", "stated is", "calls", "cpu_s")
    lines = table(heads, body)
    nulls = rows_of("prove/nulls")
    body = [[row["name"], f"{row['above']} of {row.get('plausible', row['nulls'])}", _ends(row)] for row in nulls]
    return [*lines, "", *table(["nulls", "bounds above the truth", "95 %, in %"], body), *commands([*rows, *nulls])]


def _ends(row: Row) -> str:
    return f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"


def members_at_per_mille() -> Lines:
    """The same at 0.1 %, for settings with 999 calibration examples or more."""
    rows = [row for row in rows_of("membership/tests") if "named_per_mille" in row]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    body = []
    for name, group in groups.items():
        shares = [(key, of) for key, of in (("named", "members"), ("false", "others"))]
        body.append(
            [
                name,
                *(pooled(group, key, of) for key, of in shares),
                *(pooled(group, f"{key}_per_mille", of) for key, of in shares),
                f"{len(group)}",
            ]
        )
    heads = ("", "named at 1 %", "others", "named at 0.1 %", "others", "seeds")
    return [*table(heads, body), *commands(rows)]


def membership_rounds() -> Lines:
    """Several rounds as one test, seeds together."""
    rows = rows_of("membership/rounds")
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["rounds"]), []).append(row)
    body = []
    for (setting, rounds), group in groups.items():
        areas = span((row["auc"] for row in group), "{:.3f}")
        shares = [pooled(group, "named", "members"), pooled(group, "false", "others")]
        body.append([setting, f"{rounds}", areas, *shares, f"{len(group)}"])
    return [*table(("", "rounds", "AUC", "members named", "others named", "seeds"), body), *commands(rows)]


def membership_frontier() -> Lines:
    """The frontier's defenses: accuracy, what was recovered, and who was named."""
    rows = rows_of("membership/frontier")
    body = []
    for row in rows:
        told = "told" if row["attacker"] == "knows" else ""
        found = "nothing to attack" if row["zero"] else f"{round(row['recovered'])} of {row['examples']}"
        named = false = ""
        if row["members"]:
            named = f"{row['named']} of {row['members']} ({row['named_low']:.0%} to {row['named_high']:.0%})"
            false = f"{row['false_named']} of {row['others']}"
        body.append([f"`{row['defense']}`", told, f"{row['accuracy']:.1%}", found, named, false])
    heads = ("defense", "attacker", "accuracy", "recovered by `linear`", "members named", "others named")
    return [*table(heads, body), *commands(rows)]


def identification() -> Lines:
    """Top-1 identification of faces beside PSNR, seeds together."""
    rows = rows_of("identification/faces")
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    names = ("identified", "identified_ssim", "identified_features", "person", "person_features")
    body = []
    for setting, group in groups.items():
        faces = sum(row["faces"] for row in group)
        entries = []
        for name in names:
            rate = Rate(sum(round(row[name] * row["faces"]) for row in group), faces)
            low, high = rate.interval
            entries.append(f"{rate.share:.0%} ({low:.0%} to {high:.0%})")
        recovered = sum(round(row["recovered"] * row["faces"]) for row in group)
        psnr = span((row["psnr"] for row in group), "{:.1f}")
        body.append([setting, psnr, f"{recovered} of {faces}", *entries, f"{len(group)}"])
    for base in ("mean_color", "chance"):
        shares = [f"{sum(row[f'{base}_{name}'] for row in rows) / len(rows):.0%}" for name in names]
        body.append(["the own mean color" if base == "mean_color" else "chance", "", "", *shares, ""])
    heads = ("", "PSNR, median dB", "recovered", *(f"`{name}`" for name in names), "seeds")
    return [*table(heads, body), *commands(rows)]


def pooled(group: list[dict[str, Any]], share: str, of: str) -> str:
    """Hits of all seeds together, with the interval of their share."""
    rate = Rate(sum(round(row[share] * row[of]) for row in group), sum(row[of] for row in group))
    low, high = rate.interval
    return f"{rate.hits} of {rate.trials} ({low:.1%} to {high:.1%})"


def text() -> Lines:
    """Batches of text, by network and by what the client does."""
    rows = rows_of("transformers/text")
    body = []
    for row in rows:
        reason = " (not applicable)" if row["reasons"] else ""
        rouge = "" if row.get("rouge_1") is None else f"{row['rouge_1']:.2f} / {row['rouge_2']:.2f}"
        body.append(
            [
                row["name"] + reason,
                f"{row['texts']} x {row['length']}",
                f"{row['exact']:.0%} ({row['low']:.0%} to {row['high']:.0%})",
                rouge,
                f"{row['frequent_rouge_1']:.2f}",
                f"{row['certified']} of {row['texts'] * row['runs']}, {row['false']} false",
                f"{row['runs']}",
                f"{row['cpu_s']:.0f}",
            ]
        )
    heads = ("", "texts x tokens", "exact", "ROUGE-1 / 2", "frequent tokens", "certified", "seeds", "cpu_s")
    reasons = {reason for row in rows for reason in row["reasons"]}
    found = table(heads, body)
    found += ["", *(f"Not applicable: {reason}." for reason in sorted(reasons))] if reasons else []
    title = (
        "Paragraphs of Python's language reference, random weights, one gradient in float32. GPT-2 and BERT in their "
        "published sizes (12 blocks of width 768); the others `gpt` of width 256 with 4 blocks, so at most 254 tokens:"
    )
    return [title, "", *found, *commands(rows)]


def adapters() -> Lines:
    """Low-rank adapters: images behind vectors, behind tokens, and text, by rank and batch."""
    rows = rows_of("transformers/adapters")
    lines: Lines = []
    for metric, title in (
        ("psnr", "Images of CIFAR-10, attack `lora`; PSNR in dB, a batch for each seed:"),
        ("exact", "Texts of 16 tokens, attack `token_sequences`; share of texts that are exactly right:"),
    ):
        body = []
        for name in dict.fromkeys(
            row["name"] for row in rows if metric in row and row["name"].startswith("text") == (metric == "exact")
        ):
            same = [row for row in rows if row["name"] == name]
            found = [row[metric] for row in same if row[metric] is not None]
            certified = sum(row.get("certified", 0) * row["size"] for row in same)
            false = sum(row.get("false_certificates", 0) for row in same)
            value = "not applicable"
            if found:
                spread = f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 and metric == "psnr" else ""
                value = f"{statistics.mean(found):.1f}{spread}" if metric == "psnr" else f"{statistics.mean(found):.0%}"
            total = sum(row["size"] for row in same)
            body.append(
                [
                    name,
                    value,
                    f"{certified:.0f} of {total}, {false} false",
                    f"{len(same)}",
                    f"{statistics.mean(row['cpu_s'] for row in same):.1f}",
                ]
            )
        heads = ("", "PSNR" if metric == "psnr" else "exact", "certified", "seeds", "cpu_s")
        lines += [title, "", *table(heads, body), ""]
    return [*lines, *commands(rows)]


def convolutions() -> Lines:
    """Batches read exactly through plain chains, by data, classes, training and batch size."""
    return _exact_batches(
        "convolutions/exact",
        {
            "data": lambda row: row["data"],
            "classes": lambda row: str(row["classes"]),
            "network": lambda row: f"{row['trained']} steps" if row["trained"] else "fresh",
            "batch": lambda row: str(row["batch"]),
        },
        ("trained", "data", "classes", "batch"),
    )


def residual() -> Lines:
    """Batches read through residual networks, by width, classes, training and batch size."""
    return _exact_batches(
        "convolutions/residual",
        {
            "options": lambda row: row["options"].replace("=", " ").replace(",", ", "),
            "classes": lambda row: str(row["classes"]),
            "network": lambda row: f"{row['trained']} steps" if row["trained"] else "fresh",
            "batch": lambda row: str(row["batch"]),
        },
        ("trained", "options", "classes", "batch"),
    )


def _exact_batches(item: str, labels: Mapping[str, Callable[[Row], str]], order: Sequence[str]) -> Lines:
    """One line for each kind of batch: how many images, how exactly, at which cost."""
    rows = rows_of(item)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: tuple(row[key] for key in order)):
        groups.setdefault(tuple(label(row) for label in labels.values()), []).append(row)
    body = []
    for kind, found in groups.items():
        batch = found[0]["batch"]
        quality = [row["psnr"] for row in found if row.get("psnr") is not None]
        body.append(
            [
                *kind,
                str(len(found)),
                f"{round(sum(row['exact'] for row in found) * batch)} of {batch * len(found)}",
                str(round(sum((row.get("certified") or 0) for row in found) * batch)),
                str(sum((row.get("false_certificates") or 0) for row in found)),
                span(quality) if quality else "",
                span(row["mean_color_psnr"] for row in found),
                span((row["cpu_s"] for row in found if row.get("cpu_s") is not None), "{:.0f}"),
            ]
        )
    heads = ("batches", "exact", "certified", "falsely", "mean PSNR, dB", "mean color", "CPU s")
    return [*table((*labels, *heads), body), *commands(rows)]


def counting() -> Lines:
    """Equations against pixels, and the rank for one image, by network."""
    groups: dict[str, list[Row]] = {}
    for row in rows_of("convolutions/counted"):
        groups.setdefault(row["options"], []).append(row)
    body = []
    for options, found in groups.items():
        ends = {row["ended_by"] for row in found}
        body.append(
            [
                options.replace("=", " ").replace(",", ", "),
                span((row["active"] for row in found), "{:,.0f}"),
                span((row["shared"] for row in found), "{:,.0f}"),
                span((row["active"] + row["shared"] for row in found), "{:,.0f}"),
                f"{span((row['rank'] for row in found), '{:,.0f}')} of {found[0]['unknowns']:,}",
                span(row["largest_batch"] for row in found),
                " or ".join(sorted(ends)),
                span((row["cpu_s"] for row in found), "{:.0f}"),
            ]
        )
    heads = ("ConvNet", "active features", "of the gradient", "together", "rank", "largest batch", "ended by", "CPU s")
    return [*table(heads, body), *commands(rows_of("convolutions/counted"))]


FEDLEAK = ("published", "features, start", "features", "activations, start", "activations", "inversion")


def fedleak() -> Lines:
    """FedLeak with what late layers give away: victims down, variants across; seeds of one victim together."""
    rows = rows_of("matching/fedleak")
    groups: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (row["width"], row["trained"], row["mode"], row["batch"], row["steps"])):
        key = tuple(row[name] for name in ("data", "width", "trained", "mode", "batch", "steps"))
        groups.setdefault(key, defaultdict(list))[row["variant"]].append(row)
    body = []
    for (data, width, steps, mode, batch, length), own in groups.items():
        one = max(own.values(), key=len)
        flat = [statistics.fmean(row[name] for row in one) for name in ("flat_psnr", "flat_ssim", "grey_psnr")]
        cells = [_over_seeds(own[name], len(one)) if name in own else "" for name in FEDLEAK]
        victim = [
            data,
            str(width),
            f"{steps} steps" if steps else "fresh",
            mode,
            str(batch),
            str(len(one)),
            str(length),
        ]
        body.append([*victim, f"{flat[0]:.1f}, {flat[1]:.2f}", f"{flat[2]:.1f}", *cells])
    heads = ("data", "width", "weights", "mode", "batch", "seeds", "steps", "mean color", "grey")
    reasons = dict.fromkeys(row["refused"] for row in rows if "refused" in row)
    said = ["", "Why some could not start:", "", *(f"- {reason}" for reason in reasons)] if reasons else []
    return [*table((*heads, *(f"`{name}`" for name in FEDLEAK)), body), *said, *commands(rows)]


def _over_seeds(rows: Sequence[Row], seeds: int) -> str:
    """Mean PSNR with its range over seeds, or the interval over the examples of one batch, and mean SSIM."""
    found = [row for row in rows if row.get("psnr") is not None]
    if not found:
        return "cannot start"
    mean, likeness = (statistics.fmean(row[name] for row in found) for name in ("psnr", "ssim"))
    wide = ""
    if len(found) > 1:
        wide = f" ({min(row['psnr'] for row in found):.1f} to {max(row['psnr'] for row in found):.1f})"
    elif found[0]["low"] is not None:
        wide = f" ({found[0]['low']:.1f} to {found[0]['high']:.1f})"
    fewer = "" if len(rows) == seeds else f", {len(rows)} of the seeds"
    return f"{mean:.1f}{wide}, {likeness:.2f}{fewer}"


def fedleak_probe() -> Lines:
    """The landscape probe of each variant's objective, means over seeds."""
    rows = rows_of("matching/fedleak-probe")
    groups: dict[tuple[int, int, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["width"], row["batch"], row["variant"]].append(row)
    names = [name for name in rows[0] if name.startswith("cosine at 0")] if rows else []
    body = []
    for (width, batch, variant), own in groups.items():
        means = [f"{statistics.fmean(row[name] for row in own):.3f}" for name in (*names, "cosine at start")]
        body.append([str(width), str(batch), f"`{variant}`", str(len(own)), *means])
    return [*table(("width", "batch", "objective", "seeds", *names, "cosine at start"), body), *commands(rows)]


def lone_slopes() -> Lines:
    """How many examples have units for themselves, by examples down and training across."""
    rows = rows_of("head/lone")
    states = list(dict.fromkeys(row["state"] for row in rows))
    groups: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        groups[row["n"]][row["state"]] = row
    body = []
    for n, own in groups.items():
        known = [own.get(state) for state in states]
        cells = [f"{row['found']:.0%}, {row['all_labels']} of {row['batches']}" if row else "" for row in known]
        body.append([str(n), *cells])
    wrong = sum(row["wrong"] for row in rows)
    return [*table(("n", *states), body), "", f"Wrong directions among all of them: {wrong}.", *commands(rows)]


def _by_state(rows: Sequence[Row], keys: Sequence[str], states: Sequence[str]) -> list[list[str]]:
    groups: dict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        groups[tuple(row[key] for key in keys)][row["state"]] = row
    lines = []
    for key, own in groups.items():
        seconds = [row["cpu_s"] for row in own.values() if "cpu_s" in row]
        cells = [_error(own.get(state)) for state in states]
        lines.append([*map(str, key), *cells, span(seconds, "{:.2f}") if seconds else ""])
    return lines


def _error(row: Row | None) -> str:
    if row is None:
        return ""
    if not row["solved"]:
        return "refused"
    error = "none known" if row["error"] is None else f"{row['error']:.0e}"
    return error if row["known"] == row["examples"] else f"{error} ({row['known']} of {row['examples']})"


# docs/matching.md


LONG = 200
"""Evaluations per batch above which a run is no part of the grid of realism."""


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
    others = [name for name in names if " " in name]
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


# docs/speed.md


OBJECTIVES = {
    "ig": "Inverting Gradients: cosine and total variation",
    "fedleak": "FedLeak: top half, L1 and cosine, blended",
}


def speed() -> Lines:
    """Processor milliseconds per step, and in brackets how many times faster than the plain loop; peaks of memory."""
    rows = rows_of("matching/steps")
    models = list(dict.fromkeys(row["model"] for row in rows))
    ordered = sorted(rows, key=lambda row: (models.index(row["model"]), row["batch"]))
    lines: Lines = []
    for objective, title in OBJECTIVES.items():
        timed = [row for row in ordered if row.get("objective") == objective and "steps" in row]
        names = list(dict.fromkeys(name for row in timed for name in row["steps"]))
        body = []
        for row in timed:
            cells = [_milliseconds(row["steps"].get(name)) for name in names]
            best = max(step["images_per_cpu_s"] for step in row["steps"].values())
            body.append([row["model"], str(row["batch"]), *cells, f"{best:,.1f}"])
        lines += [f"### {title}", "", *table(["network", "batch", *names, "images x steps per s"], body), ""]
    risen = [row for row in ordered if "peak_rise_mib" in row]
    names = list(dict.fromkeys(name for row in risen for name in row["peak_rise_mib"]))
    body = []
    for row in risen:
        rises = [row["peak_rise_mib"].get(name) for name in names]
        cells = ["" if rise is None else f"{rise:,.0f}" for rise in rises]
        body.append([row["model"], str(row["batch"]), f"`{row['objective']}`", *cells])
    lines += ["### MiB by which the peak of memory rises in one step", ""]
    lines += [*table(["network", "batch", "objective", *names], body), ""]
    return [*lines, "Made by", *commands(ordered)]


def whole_attacks() -> Lines:
    """Whole attacks: processor milliseconds per step, and how many times the first-order attack's each takes."""
    rows, of = rows_of("matching/attacks"), ("plain loop", "breaching", "exact")
    body = []
    for row in rows:
        cells = [_times(row, name) for name in of]
        own = f"{row['cpu_ms_per_step']['first order']:,.0f}"
        body.append([row["model"], str(row["batch"]), f"`{row['objective']}`", own, *cells, str(row["rounds"])])
    heads = ["network", "batch", "objective", "first order, ms", *of, "turns"]
    return [*table(heads, body), *commands(rows)]


def _times(row: Row, name: str) -> str:
    if name not in row["ratio_to_first_order"]:
        return ""
    middle, low, high = row["ratio_to_first_order"][name]
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _milliseconds(step: Mapping[str, float] | None) -> str:
    return "" if step is None else f"{step['cpu_ms']:,.0f} ({step['times_faster']:.2f})"


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
    "cafe rounds": Part("cafe.md", cafe_rounds),
    "cafe rivals": Part("cafe.md", cafe_rivals),
    "cafe training": Part("cafe.md", cafe_training),
    **pages_cafe.PARTS,
    **{f"cpa {study}": Part("cpa.md", partial(cpa, study)) for study in CPA},
    "defenses": Part("defenses.md", defenses),
    "local-steps": Part("federation.md", local_steps),
    "local-views": Part("federation.md", local_views),
    "stages": Part("federation.md", stages),
    "skew": Part("federation.md", skew),
    "secure-aggregation": Part("federation.md", secure_aggregation),
    "one example": Part("architectures.md", partial(pages_architectures.cells, "one example, eval mode")),
    "two examples": Part("architectures.md", partial(pages_architectures.cells, "two examples, train mode")),
    "refusals": Part("architectures.md", pages_architectures.refusals),
    "head": Part("features.md", head_features),
    "patches": Part("transformers.md", patches),
    "batches": Part("transformers.md", batches),
    "membership": Part("membership.md", membership),
    "members at per mille": Part("membership.md", members_at_per_mille),
    "membership rounds": Part("membership.md", membership_rounds),
    "prove": Part("prove.md", prove),
    "membership frontier": Part("membership.md", membership_frontier),
    "identification": Part("identification.md", identification),
    "adapters": Part("adapters.md", adapters),
    "text": Part("text.md", text),
    "convolutions": Part("convolutions.md", convolutions),
    "residual": Part("convolutions.md", residual),
    "counting": Part("convolutions.md", counting),
    "lone": Part("features.md", lone_slopes),
    "fedleak": Part("fedleak-relu.md", fedleak),
    "fedleak probe": Part("fedleak-relu.md", fedleak_probe),
    "realism": Part("matching.md", realism),
    "labels": Part("matching.md", labels),
    "peers": Part("matching.md", peers),
    "starts": Part("matching.md", starts),
    "speed": Part("speed.md", speed),
    "whole attacks": Part("speed.md", whole_attacks),
    **pages_runs.PARTS,
    **pages_fedleak.PARTS,
    **pages_bounds.PARTS,
    **pages_landscape.PARTS,
    **pages_safety.PARTS,
}


def main(names: Sequence[str], docs: Path = Path("docs")) -> None:
    for name in names or PARTS:
        if name not in PARTS:
            raise SystemExit(f"there is no part {name!r}; the parts are: {', '.join(PARTS)}")
        page = docs / PARTS[name].page
        page.write_text(PARTS[name].in_page(name, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
