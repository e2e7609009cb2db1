"""Parts of docs/cafe.md on the paper's own loops, on their rivals in the same loop, and on what stands beside them."""

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


PARTS: dict[str, Part] = {
    "cafe horizontal": Part("cafe.md", horizontal),
    "cafe conditions": Part("cafe.md", conditions),
}
