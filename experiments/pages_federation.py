"""Parts of docs/federation.md."""

from collections.abc import Callable, Mapping, Sequence

from page_parts import Lines, Part, Row, commands, rows_of, span, table

from seepage.papers import find_item


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


PARTS: dict[str, Part] = {
    "local-steps": Part("federation.md", local_steps),
    "local-views": Part("federation.md", local_views),
    "stages": Part("federation.md", stages),
    "skew": Part("federation.md", skew),
    "secure-aggregation": Part("federation.md", secure_aggregation),
}
