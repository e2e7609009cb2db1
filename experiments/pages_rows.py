"""Parts of docs/closed-forms.md and docs/captured.md: rows by ways of training and saving, and steps of Adam."""

from collections import defaultdict

from page_parts import Lines, Part, Row, commands, rows_of, span, table

STATED = 1e-4
"""Where a certificate's number is larger, it is a stated error; smaller ones are the rows' own disagreement."""


def ways() -> Lines:
    """Certified examples of all batches, by the client's way and the batch size; then networks of mixtures alone."""
    rows, nulls = rows_of("closed/rows"), {row["way"]: row for row in rows_of("closed/null-rows")}
    groups: dict[tuple[str, float], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["way"], row["lr"]][row["n"]].append(row)
    sizes = sorted({row["n"] for row in rows})
    heads = [
        "client",
        "lr",
        *(f"n = {n}" for n in sizes),
        "stated error",
        "largest error",
        "false",
        "of mixtures alone",
    ]
    body = []
    for (way, lr), by_size in groups.items():
        cells = [f"{sum(row['certified_examples'] for row in by_size[n]):.0f} of {n * len(by_size[n])}" for n in sizes]
        every = [row for found in by_size.values() for row in found]
        if all("refused" in row for row in every):
            cells = ["not applicable" for _ in sizes]
        sure = [row for row in every if "stated" in row]
        largest = max((row["stated"] for row in sure), default=0.0)
        stated = f"{largest:.1g}" if largest > STATED else "exact" if sure else ""
        error = f"{max(row['error'] for row in sure):.1g}" if sure else ""
        null = nulls.get(way)
        alone = "" if null is None else f"{null['certified']:.0f} of {null['networks']}"
        body.append([way, f"{lr:g}", *cells, stated, error, f"{sum(row['false'] for row in every)}", alone])
    own = ", ".join(
        f"{sum(row['owning_three_rows'] for row in found)} of {n * len(found)} at n = {n}"
        for n, found in groups[next(iter(groups))].items()
    )
    lines = [*table(heads, body), "", f"Examples that three rows or more belong to alone: {own}."]
    return [*lines, *commands([*rows, *nulls.values()])]


def adaptive() -> Lines:
    """Labels, statistics and members behind steps of Adam, a line for each network, optimizer and number of steps."""
    rows = rows_of("captured/adaptive")
    groups: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["network"], row["optimizer"], row["steps"]].append(row)
    heads = ["network", "optimizer", "steps", "classes told", "wrong", "error of the batch's means"]
    heads += ["members named", "others named", "AUC"]
    body = []
    for (network, optimizer, steps), found in groups.items():
        told = f"{sum(row['labels_right'] for row in found)} of {sum(row['labels_there'] for row in found)}"
        errors = [row["statistics_error"] for row in found if row["statistics_error"] is not None]
        error = span(errors, "{:.1g}") if errors else "no batch norm"
        members, others = (sum(row[key] for row in found) for key in ("n", "others"))
        named = [f"{sum(row[key] for row in found)} of {of}" for key, of in (("named", members), ("false", others))]
        wrong, area = str(sum(row["labels_wrong"] for row in found)), span((row["auc"] for row in found), "{:.3g}")
        body.append([network, optimizer, str(steps), told, wrong, error, *named, area])
    return [*table(heads, body), *commands(rows)]


def peft_files() -> Lines:
    """Attacks on the files that `peft` saved: exact and certified examples of all batches, and the PSNR of each."""
    rows = rows_of("captured/peft")
    groups: dict[tuple[str, str, str], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["what"], row["optimizer"], f"`{row['attack']}`"][row["n"]].append(row)
    sizes = sorted({row["n"] for row in rows})
    body = []
    for name, by_size in groups.items():
        cells = []
        for n in sizes:
            scored = [row for row in by_size[n] if "refused" not in row]
            exact = sum(round(n * row["exact"]) for row in scored)
            certified = sum(row["certified_examples"] for row in scored)
            quality = span((row["psnr"] for row in scored), "{:.0f}") if scored else ""
            said = f"{exact} of {n * len(by_size[n])} exact, {certified:.0f} certified; {quality} dB"
            cells.append(said if scored else "not applicable")
        body.append([*name, *cells])
    false = sum(row.get("false_certificates") or 0 for row in rows)
    lines = table(["layer that reads the input", "optimizer", "attack", *(f"n = {n}" for n in sizes)], body)
    return [*lines, "", f"False certificates: {false}.", *commands(rows)]


def clients() -> Lines:
    """The upstream clients, by two versions of the package: seconds, memory, and the verdict's first words."""
    rows = rows_of("captured/clients")
    versions = list(dict.fromkeys(row["revision"] for row in rows))
    by_name: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_name.setdefault(row["name"], {})[row["revision"]] = row
    heads = ("client", *(f"{version}: {head}" for version in versions for head in ("CPU s", "said")))
    body = []
    for name, own in by_name.items():
        cells = [name]
        for version in versions:
            row = own.get(version)
            cells += ["", ""] if row is None else [f"{row['cpu_seconds']:.0f}", _said(row)]
        body.append(cells)
    return [*table(heads, body), "", "    python experiments/clients.py [--source FOLDER]"]


def _said(row: Row) -> str:
    """The verdict's headline, or that there was none."""
    if not row.get("verdict") and not row["stopped"]:
        return "refused"
    if row["stopped"]:
        return "no end in 15 minutes"
    headline = row["verdict"].partition(".")[0].lower()
    return f"{headline}: {row['tokens']}" if row.get("tokens") else headline


PARTS: dict[str, Part] = {
    "clients": Part("captured.md", clients),
    "peft files": Part("adapters.md", peft_files),
    "closed rows": Part("closed-forms.md", ways),
    "adaptive steps": Part("captured.md", adaptive),
}
