"""The parts of docs/bounds.md that are made of records."""

from collections import defaultdict

from page_parts import Lines, Part, Row, commands, rows_of, span, table


def decibels() -> Lines:
    """Each setting with noise: its bound, and the best attack of its rows."""
    rows = rows_of("bounds/psnr")
    heads = ["rows of", "setting", "bound", "best attack", "below the bound by"]
    body = []
    for row in sorted((row for row in rows if row.get("best") is not None), key=lambda row: -row["beyond"]):
        name = row["name"].removeprefix(f"{row['rows_of']}: ")
        bound = "not bounded" if row["psnr"] >= 100 else f"{row['psnr']:.1f} dB [{row['low']:.1f}, {row['high']:.1f}]"
        bound += " *" * bool(row["looser"])
        below = "-" if row["psnr"] >= 100 else f"{-row['beyond']:.1f} dB"
        what = "median" if row["median"] else "mean"
        body.append([f"`{row['rows_of']}`", name, bound, f"{row['best']:.1f} dB ({what})", below])
    return table(heads, body) + commands(rows)


def without() -> Lines:
    """Settings that have no bound, and why."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in rows_of("bounds/psnr"):
        if row["psnr"] is None:
            for reason in row["reasons"]:
                if reason.startswith("the PSNR"):
                    reasons[reason].append(row["name"])
    return [f"- {'; '.join(names)}: {reason}." for reason, names in reasons.items()]


def membership() -> Lines:
    """Membership rows behind clipped noise."""
    rows = rows_of("bounds/membership")
    heads = ["rows", "mu", "bound on named at 1 %", "named (false)", "bound on AUC", "AUC"]
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["name"]].append(row)
    body = []
    for name, found in groups.items():
        first = found[0]
        shares = [f"{span((100 * row[key] for row in found), '{:.0f}')} %" for key in ("named", "false")]
        area, bound = span((row["auc"] for row in found), "{:.2f}"), f"{first['auc_bound']:.3f}"
        told = "not bounded" if first["tpr"] >= 0.9995 else f"{100 * first['tpr']:.1f} %"
        body.append([name, f"{first['mu']:g}", told, f"{shares[0]} ({shares[1]})", bound, area])
    return table(heads, body) + commands(rows)


def attained() -> Lines:
    """The best attacks on real updates beside the bounds."""
    rows = rows_of("bounds/attained")
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["name"]].append(row)
    heads = ["attack", "bound", "reached, three seeds", "on this pair, by formula"]
    body = []
    for name, found in groups.items():
        value = "tpr" if "tpr" in found[0] else "share"
        reached = f"{span((100 * row[value] for row in found), '{:.1f}')} %"
        here = f"{span((100 * row['this_pair'] for row in found), '{:.1f}')} %" if "this_pair" in found[0] else "-"
        body.append([name, f"{100 * found[0]['bound']:.1f} %", reached, here])
    return table(heads, body) + commands(rows)


PARTS: dict[str, Part] = {
    "bounds decibels": Part("bounds.md", decibels),
    "bounds without": Part("bounds.md", without),
    "bounds membership": Part("bounds.md", membership),
    "bounds attained": Part("bounds.md", attained),
}
