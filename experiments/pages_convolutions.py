"""Parts of docs/convolutions.md."""

from collections.abc import Callable, Mapping, Sequence

from page_parts import Lines, Part, Row, commands, rows_of, span, table


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


def checkpoints() -> Lines:
    """Batches read from two checkpoints in single precision, by rate, clip, weight decay and training."""
    return _exact_batches(
        "convolutions/checkpoints",
        {
            "rate": lambda row: f"{row['lr']:g}",
            "clipped to": lambda row: "" if row["clip"] is None else f"{row['clip']:g}",
            "weight decay": lambda row: f"{row['decay']:g}" if row.get("decay") else "",
            "network": lambda row: _resnet(row["options"]) if row["options"] else row["model"],
            "weights": lambda row: f"{row['trained']} steps" if row["trained"] else "fresh",
            "batch": lambda row: str(row["batch"]),
        },
        ("options", "trained", "batch", "lr"),
    )


def coupled() -> Lines:
    """Batches read through residual networks with batch norm in train mode, by network, training and batch size."""
    return _exact_batches(
        "convolutions/coupled",
        {
            "network": lambda row: _resnet(row["options"]),
            "weights": lambda row: f"{row['trained']} steps" if row["trained"] else "fresh",
            "batch": lambda row: str(row["batch"]),
        },
        ("trained", "options", "batch"),
    )


def _resnet(options: str) -> str:
    given = dict(pair.split("=") for pair in options.split(","))
    return f"ResNet-{given['depth']}, width {given['width']}"


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


PARTS: dict[str, Part] = {
    "convolutions": Part("convolutions.md", convolutions),
    "residual": Part("convolutions.md", residual),
    "checkpoints": Part("convolutions.md", checkpoints),
    "coupled": Part("convolutions.md", coupled),
    "counting": Part("convolutions.md", counting),
}
