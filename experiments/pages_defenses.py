"""Parts of docs/defenses.md and docs/prove.md."""

from page_parts import Lines, Part, Row, commands, rows_of, span, table

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


PARTS: dict[str, Part] = {
    "defenses": Part("defenses.md", defenses),
    "prove": Part("prove.md", prove),
}
