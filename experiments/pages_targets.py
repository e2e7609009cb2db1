"""The parts of docs/closed-forms.md and docs/howto/my-loss.md on other targets and losses."""

from page_parts import Lines, Part, Row, commands, rows_of, span, table

STUDY = "closed/targets"
METHODS = ("linear", "cocktail_party")


def _share(rows: list[Row]) -> str:
    """Examples that came back exactly, of all, over the seeds."""
    return f"{sum(row['examples_exact'] for row in rows)} of {sum(row['examples'] for row in rows)}"


def targets() -> Lines:
    """Each loss and batch size: what came back and what was certified, over all batches of all seeds."""
    rows = rows_of(STUDY)
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        loss, method, n = row["name"].split("; ")
        groups.setdefault((loss, n.removeprefix("n ")), {}).setdefault(method, []).append(row)
    columns = ("exact", "certified", "false")
    heads = ("trained towards", "n", *(f"`{method}`: {column}" for method in METHODS for column in columns))
    body = []
    for (loss, n), by_method in groups.items():
        cells = [loss, n]
        for method in METHODS:
            own = by_method[method]
            sure, wrong = (sum(row[count] for row in own) for count in ("certified", "false_certificates"))
            cells += [_share(own), str(sure), str(wrong)]
        body.append(cells)
    known = [row for row in rows if row.get("target_error") is not None]
    largest = max(row["target_error"] for row in known)
    beside = span((row["mean_target_error"] for row in known), "{:.3f}")
    words = (
        f"The targets that `linear` named are off by {largest:.0e} at the most (mean over a seed's batches), in a unit "
        f"in which brightness goes from 0 to 1; the mean target is off by {beside}."
    )
    return [*table(heads, body), "", words, *commands(rows)]


def maps() -> Lines:
    """Gradient matching with maps that are told or searched for: the span over all images of all seeds."""
    rows = rows_of("matching/maps")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["name"].partition(";")[0], []).append(row)
    heads = ("maps", "images", "PSNR, dB", "mean color, dB", "over 40 dB", "pixels named right", "one class everywhere")
    body = []
    for name, own in groups.items():
        ranges = (
            span((row["psnr"] for row in own), "{:.1f}"),
            span((row["flat_psnr"] for row in own), "{:.1f}"),
            f"{sum(row['exact'] == 1 for row in own)}",
        )
        right = "told" if name.endswith("told") else span((100 * row["pixels_right"] for row in own), "{:.0f} %")
        commonest = span((100 * row["commonest"] for row in own), "{:.0f} %")
        body.append([name.removeprefix("maps "), str(len(own)), *ranges, right, commonest])
    return [*table(heads, body), *commands(rows)]


PARTS = {
    "closed targets": Part("closed-forms.md", targets),
    "maps told and searched for": Part("howto/my-loss.md", maps),
}
