"""Parts of docs/cafe.md."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from page_parts import Lines, Part, Row, commands, rows_of, span, table


def by_case(rows: Sequence[Row], key: Callable[[Row], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    """Rows of one case together, whose seeds differ."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def dB(rows: Sequence[Row], key: str = "psnr") -> str:
    """Least and largest of the seeds' decibels."""
    return span((row[key] for row in rows), "{:.1f}")


def horizontal() -> Lines:
    """CAFE beside attacks on one round, in horizontal learning with the indices told."""
    rows = rows_of("cafe/horizontal")
    body = []
    for (data, model, attack), found in by_case(rows, lambda row: (row["data"], _model(row), row["attack"])).items():
        exact = span(round(row["exact"] * row["examples"]) for row in found)
        counted = f"{exact} of {found[0]['examples']}"
        body.append([data, model, f"`{attack}`", str(len(found)), counted, dB(found, "psnr_median")])
    heads = ["data", "model", "attack", "seeds", "exact", "median PSNR, dB"]
    return table(heads, body) + commands(rows)


def _model(row: Row) -> str:
    return f"fc2, {row['model_options']['hidden']} neurons"


def equation_nine() -> Lines:
    """The paper's loops with and without the gradients' distance in equation 9."""
    rows = rows_of("cafe/equation-nine")
    body = []
    for (loop, alpha), found in by_case(rows, lambda row: (row["loop"], f"{row['alpha']:g}")).items():
        first = found[0]
        words = "nested loops" if loop == "nested" else "single loop"
        cpu = span((row["cpu_attack"] for row in found), "{:.0f}")
        size = f"{first['samples']}, {first['batch']}"
        body.append([words, alpha, size, f"{first['reads']:,}", str(len(found)), dB(found), cpu])
    heads = ["loop", "alpha", "N, K", "rounds read", "seeds", "mean PSNR, dB", "CPU-s"]
    return table(heads, body) + commands(rows)


def conditions() -> Lines:
    """Equation 43's bound beside the true error of H, for layers that meet theorem 2's conditions."""
    rows = rows_of("cafe/conditions")
    body = []
    for row in rows:
        numbers = [f"{row[key]:.0e}" for key in ("printed", "bound", "error_h")]
        size = f"{row['samples']}, {row['batch']}, {row['hidden']}"
        body.append([row["layer"].removesuffix(".first"), str(row["seed"]), size, str(row["rank_v"]), *numbers])
    heads = ["layer of", "seed", "N, K, d2", "rank V", "bound as printed", "bound that holds", "error of H"]
    return table(heads, body) + commands(rows)


NAMES = {
    "cafe": "CAFE, its single loop",
    "first": "the same, features at the first round's weights",
    "dlg": "DLG",
    "cosine": "cosine and total variation",
    "sapag": "SAPAG",
    "batch_norm": "BN regularizer (batch norms added)",
    "group": "GC regularizer, two guesses",
}


def rivals() -> Lines:
    """CAFE and its five rivals in one loop over the same rounds."""
    rows = rows_of("cafe/rivals")
    body = []
    for (data, who), found in by_case(rows, lambda row: (row["data"], row["who"])).items():
        flat = dB(found, "mean_color_psnr")
        body.append([data, NAMES[who], str(len(found)), dB(found), flat, str(found[0]["iterations"])])
    heads = ["data", "objective", "seeds", "mean PSNR, dB", "mean color, dB", "iterations"]
    return table(heads, body) + commands(rows)


def moving() -> Lines:
    """The single loop while the server trains."""
    rows = rows_of("cafe/moving")
    body = []
    for (rate, batch, who), found in by_case(
        rows, lambda row: (f"{row['lr']:g}", str(row["batch"]), row["who"])
    ).items():
        ends = [f"{span((row['losses'][end] for row in found), '{:.2f}')}" for end in (0, 1)]
        size = f"{found[0]['samples']}, {batch}"
        flat = dB(found, "mean_color_psnr")
        body.append([f"Adam {rate}", size, NAMES[who], str(len(found)), *ends, dB(found), flat])
    heads = ["server", "N, K", "objective", "seeds", "loss, first", "last", "mean PSNR, dB", "mean color, dB"]
    return table(heads, body) + commands(rows)


def unique() -> Lines:
    """Supplement B: how well the other solution fits one gradient, and those of the pairs."""
    rows = rows_of("cafe/unique")
    body = []
    for row in rows:
        pairs = ", ".join(f"{one:.0e}" for one in row["pairs"])
        apart = [f"{row[key]:.1g}" for key in ("apart", "cafe_apart")]
        body.append([str(row["seed"]), f"{row['one_gradient']:.0e}", pairs, *apart])
    heads = ["seed", "misfit of one gradient", "misfits of the pairs", "largest difference of its data", "`cafe`'s"]
    return table(heads, body) + commands(rows)


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


PARTS: dict[str, Part] = {
    "cafe rounds": Part("cafe.md", cafe_rounds),
    "cafe rivals": Part("cafe.md", cafe_rivals),
    "cafe training": Part("cafe.md", cafe_training),
    "cafe horizontal": Part("cafe.md", horizontal),
    "cafe equation nine": Part("cafe.md", equation_nine),
    "cafe rivals in the loop": Part("cafe.md", rivals),
    "cafe moving": Part("cafe.md", moving),
    "cafe unique": Part("cafe.md", unique),
    "cafe conditions": Part("cafe.md", conditions),
}
