"""Parts of docs/concepts/verdict.md: the limits of what counts as recovered, calibrated."""

from page_parts import Lines, Part, Row, commands, rows_of, table


def images() -> Lines:
    """A line for each set of images: others that would pass, and how often the rule agrees with identification."""
    rows = rows_of("recognition/images")
    sets = [row for row in rows if "recognized" in row]
    body = [
        [row["name"], *(_share(row, f"{kind}_class") for kind in ("same", "other")), f"{row['agreement']:.1%}"]
        for row in sets
    ]
    heads = ["data", "others of the class that pass", "of another class", "agrees with identification"]
    mean = sum(row["agreement"] for row in sets) / len(sets)
    return [*table(heads, [*body, ["all, on average", "", "", f"{mean:.1%}"]]), *commands(rows)]


def copies() -> Lines:
    """A line for each kind of copy: recognized, and identified among 100, on average over the sets."""
    sets = [row for row in rows_of("recognition/images") if "recognized" in row]
    body = []
    for kind in sets[0]["recognized"]:
        means = [sum(row[key][kind] for row in sets) / len(sets) for key in ("recognized", "identified")]
        body.append([kind, *(f"{mean:.0%}" for mean in means)])
    return table(["copies", "recognized", "identified among 100"], body)


def others() -> Lines:
    """Records and texts: others that would pass."""
    rows = rows_of("recognition/others")
    body = [[row["name"], _share(row, "same_class"), _share(row, "other_class"), f"{row['limit']:g}"] for row in rows]
    return [*table(["data", "others of the class that pass", "of another class", "limit"], body), *commands(rows)]


def rebuilt() -> Lines:
    """What attacks rebuilt behind defenses."""
    rows = rows_of("recognition/rebuilt")
    keys = ("recognized", "identified", "agreement")
    body = [[row["name"], f"{row['images']}", *(f"{row[key]:.0%}" for key in keys)] for row in rows]
    return [*table(["images, defense", "images", "recognized", "identified among 100", "agree"], body), *commands(rows)]


def _share(row: Row, key: str) -> str:
    return "" if row.get(key) is None else f"{row[key]:.2%}"


PARTS = {
    "recognition images": Part("concepts/verdict.md", images),
    "recognition copies": Part("concepts/verdict.md", copies),
    "recognition others": Part("concepts/verdict.md", others),
    "recognition rebuilt": Part("concepts/verdict.md", rebuilt),
}
