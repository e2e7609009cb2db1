"""The parts of docs/fedleak-parts.md and docs/grad-inversion.md that are made of records."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from page_parts import Lines, Part, Row, commands, rows_of, span, table

PARTS_STUDY = "matching/fedleak-parts"
INVERSION = "matching/grad-inversion"


def of_table(study: str, name: str) -> dict[str, list[Row]]:
    """The rows of one table of a study by their variant, in the order in which these were first measured."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of(study):
        if row.get("table") == name:
            found[row["variant"]].append(row)
    return found


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def decibels(rows: Sequence[Row], key: str = "psnr") -> str:
    """The mean over seeds, with the least and the most of them."""
    values = [row[key] for row in rows]
    ends = "" if len(values) == 1 else f" ({min(values):.1f} to {max(values):.1f})"
    return f"{mean(values):.1f}{ends}"


def full() -> Lines:
    """Where 10,000 steps end, and what section 6.5's shares of them had brought."""
    body = [
        [
            name,
            *(decibels(rows, f"at {steps}") for steps in (1000, 4000, 10000)),
            decibels(rows),
            decibels(rows, "flat_psnr"),
            f"{mean([row['ssim'] for row in rows]):.2f}",
            str(len(rows)),
        ]
        for name, rows in of_table(PARTS_STUDY, "full").items()
    ]
    heads = ["constants", "step 1,000", "4,000", "10,000", "best by the objective", "mean color", "SSIM", "seeds"]
    rows = [row for row in rows_of(PARTS_STUDY) if row.get("table") == "full"]
    return [*table(heads, body), *commands(rows)]


def readings() -> Lines:
    """One reading of Algorithm 1 at a time."""
    body = [
        [
            name,
            decibels(rows),
            f"{mean([row['labels_right'] for row in rows]):.2f}",
            f"{mean([row['cpu_s'] for row in rows]):.0f}",
            str(len(rows)),
        ]
        for name, rows in of_table(PARTS_STUDY, "readings").items()
    ]
    rows = [row for row in rows_of(PARTS_STUDY) if row.get("table") == "readings"]
    return [*table(["reading", "PSNR, dB", "labels right", "seconds", "seeds"], body), *commands(rows)]


def choice() -> Lines:
    """Rules that choose half of the entries: mu of eq. 5, and where the search ends."""
    body = []
    for name, rows in of_table(PARTS_STUDY, "choice").items():
        first, median = (mean([1e6 * row[key] for row in rows]) for key in ("mu_first", "mu_median"))
        body.append([name, f"{first:.1f}", f"{median:.1f}", decibels(rows), str(len(rows))])
    rows = [row for row in rows_of(PARTS_STUDY) if row.get("table") == "choice"]
    heads = ["entries that are matched", "mu at the start, 1e-6", "on the way (median)", "PSNR, dB", "seeds"]
    return [*table(heads, body), *commands(rows)]


def estimation() -> Lines:
    """Appendix B: the bound beside the distance that it bounds."""
    found: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows_of(PARTS_STUDY):
        if row.get("table") == "estimation":
            found[row["direction"], row["distance"]].append(row)
    body = [
        [direction, f"{distance:g}", span([row["bound"] for row in rows], "{:.3g}"), str(len(rows))]
        for (direction, distance), rows in found.items()
    ]
    everything = [row for rows in found.values() for row in rows]
    heads = [
        "direction of x* - x",
        "its length",
        "bound: gap of gradients over the smallest singular value",
        "seeds",
    ]
    return [*table(heads, body), *commands(everything)]


def cost() -> Lines:
    """Seconds of 10,000 iterations, and how they compare with gradient matching, here and in the paper."""
    rows = rows_of("matching/attack-cost")
    one = next((row["cpu_s"] for row in rows if row["attack"] == "inverting_gradients"), None)
    body = [
        [
            f"`{row['attack']}`",
            f"{row['evaluations']:,.0f}",
            f"{row['cpu_s'] / 60:,.0f}",
            "" if one is None else f"{row['cpu_s'] / one:.1f}",
            "" if row["paper_minutes"] is None else f"{row['paper_minutes']}",
            "" if row["paper_minutes"] is None else f"{row['paper_minutes'] / 5:.1f}",
        ]
        for row in rows
    ]
    heads = ["attack", "evaluations", "minutes of one core", "times IG", "paper: minutes of an RTX 4090", "times IG"]
    return [*table(heads, body), *commands(rows)]


def encryption() -> Lines:
    """Seconds and bytes of an encrypted update."""
    rows = rows_of("federation/encryption")
    body = [
        [
            row["scheme"],
            f"{row['share']:.0%}",
            f"{row['client_s']:,.0f}",
            f"{row['server_s']:,.1f}",
            f"{row['mebibytes']:,.0f}",
        ]
        for row in rows
    ]
    heads = ["scheme", "entries encrypted", "client, s", "server, s", "sent by a client, MiB"]
    return [*table(heads, body), *commands(rows)]


def fishing() -> Lines:
    """Labels named by a dishonest server from the mean of its clients' updates."""
    rows = rows_of("matching/fishing")
    sizes = sorted({row["batch"] for row in rows})
    body = []
    for data in dict.fromkeys(row["data"] for row in rows):
        cells = {row["batch"]: f"{row['accuracy']:.2f}" for row in rows if row["data"] == data}
        body.append([data, *(cells.get(size, "") for size in sizes)])
    return [*table(["pictures", *map(str, sizes)], body), *commands(rows)]


def terms() -> Lines:
    """GradInversion's two terms at the truth and elsewhere, with weight 1."""
    found: dict[tuple[str, int], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(INVERSION):
        if row["table"] == "terms":
            found[row["network"], row["batch"]][row["place"]].append(row)
    places = ("truth", "mean color", "noise")

    def cell(rows: Sequence[Row], key: str) -> str:
        return span([row[key] for row in rows], "{:.3g}") if rows else ""

    body = [
        [
            network,
            str(batch),
            *(cell(by_place[place], "batch_norm_term") for place in places),
            *(cell(by_place[place], "distance") for place in places[1:]),
        ]
        for (network, batch), by_place in found.items()
    ]
    heads = ["weights", "batch", *(f"batch norm at {place}" for place in places)]
    heads += [f"distance at {place}" for place in places[1:]]
    rows = [row for row in rows_of(INVERSION) if row["table"] == "terms"]
    return [*table(heads, body), *commands(rows)]


def inversion() -> Lines:
    """Where GradInversion ends for each ratio of its weights, and whether below the truth."""
    found: dict[tuple[str, str, int, str], list[Row]] = defaultdict(list)
    for row in rows_of(INVERSION):
        if row["table"] in ("search", "near"):
            found[row["table"], row["network"], row["batch"], row["variant"]].append(row)
    body = []
    for (kind, network, batch, variant), rows in found.items():
        below = sum(row["below_truth"] for row in rows)
        body.append(
            [
                network,
                str(batch),
                variant + (", from the truth" if kind == "near" else ""),
                decibels(rows),
                f"{mean([row['ssim'] for row in rows]):.2f}",
                decibels(rows, "flat_psnr"),
                span([row["objective"] for row in rows], "{:.3g}"),
                span([row["objective_of_truth"] for row in rows], "{:.3g}"),
                f"{below} of {len(rows)}",
            ]
        )
    heads = ["weights", "batch", "objective", "PSNR, dB", "SSIM", "mean color", "objective reached", "of the truth"]
    everything = [row for rows in found.values() for row in rows]
    return [*table([*heads, "ends below the truth"], body), *commands(everything)]


MAKERS: dict[str, tuple[str, Callable[[], Lines]]] = {
    "fedleak full": ("fedleak-parts.md", full),
    "fedleak readings": ("fedleak-parts.md", readings),
    "fedleak choice": ("fedleak-parts.md", choice),
    "fedleak estimation": ("fedleak-parts.md", estimation),
    "attack cost": ("fedleak-parts.md", cost),
    "encryption": ("fedleak-parts.md", encryption),
    "fishing": ("matching.md", fishing),
    "inversion terms": ("grad-inversion.md", terms),
    "inversion": ("grad-inversion.md", inversion),
}
PARTS: dict[str, Part] = {name: Part(page, lines) for name, (page, lines) in MAKERS.items()}
