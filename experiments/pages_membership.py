"""Parts of docs/membership.md and docs/identification.md."""

from typing import Any

from page_parts import Lines, Part, commands, rows_of, span, table

from seepage.core.schema import Share


def membership() -> Lines:
    """Membership tests, by network, data set and setting: seeds together."""
    rows = rows_of("membership/tests")
    lines: Lines = []
    for title in dict.fromkeys((row["name"].partition(", n")[0].partition(", sum")[0], row["data"]) for row in rows):
        network, data = title
        found = [row for row in rows if row["data"] == data and row["name"].startswith(f"{network}, ")]
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in found:
            groups.setdefault((row["name"].removeprefix(f"{network}, "), row["test"]), []).append(row)
        body = []
        for (setting, test), group in groups.items():
            areas = [row["auc"] for row in group]
            ends = f" ({min(areas):.3f} to {max(areas):.3f})" if len(areas) > 1 else ""
            body.append(
                [
                    setting,
                    f"`{test}`",
                    f"{sum(areas) / len(areas):.3f}{ends}",
                    pooled(group, "named", "members"),
                    pooled(group, "false", "others"),
                    f"{sum(row['accuracy'] for row in group) / len(group):.0%}",
                    f"{len(group)}",
                    f"{sum(row['cpu_s'] for row in group) / len(group):.0f}",
                ]
            )
        heads = ("", "test", "AUC", "members named", "others named", "accuracy", "seeds", "cpu_s")
        lines += [f"{network}, `{data}`:", "", *table(heads, body), ""]
    return [*lines, *commands(rows)]


def members_at_per_mille() -> Lines:
    """The same at 0.1 %, for settings with 999 calibration examples or more."""
    rows = [row for row in rows_of("membership/tests") if "named_per_mille" in row]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    body = []
    for name, group in groups.items():
        shares = [(key, of) for key, of in (("named", "members"), ("false", "others"))]
        body.append(
            [
                name,
                *(pooled(group, key, of) for key, of in shares),
                *(pooled(group, f"{key}_per_mille", of) for key, of in shares),
                f"{len(group)}",
            ]
        )
    heads = ("", "named at 1 %", "others", "named at 0.1 %", "others", "seeds")
    return [*table(heads, body), *commands(rows)]


def membership_rounds() -> Lines:
    """Several rounds as one test, seeds together."""
    rows = rows_of("membership/rounds")
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["rounds"]), []).append(row)
    body = []
    for (setting, rounds), group in groups.items():
        areas = span((row["auc"] for row in group), "{:.3f}")
        shares = [pooled(group, "named", "members"), pooled(group, "false", "others")]
        body.append([setting, f"{rounds}", areas, *shares, f"{len(group)}"])
    return [*table(("", "rounds", "AUC", "members named", "others named", "seeds"), body), *commands(rows)]


def membership_frontier() -> Lines:
    """The frontier's defenses: accuracy, what was recovered, and who was named."""
    rows = rows_of("membership/frontier")
    body = []
    for row in rows:
        told = "told" if row["attacker"] == "knows" else ""
        found = "nothing to attack" if row["zero"] else f"{round(row['recovered'])} of {row['examples']}"
        named = false = ""
        if row["members"]:
            named = f"{row['named']} of {row['members']} ({row['named_low']:.0%} to {row['named_high']:.0%})"
            false = f"{row['false_named']} of {row['others']}"
        body.append([f"`{row['defense']}`", told, f"{row['accuracy']:.1%}", found, named, false])
    heads = ("defense", "attacker", "accuracy", "recovered by `linear`", "members named", "others named")
    return [*table(heads, body), *commands(rows)]


def identification() -> Lines:
    """Top-1 identification of faces beside PSNR, seeds together."""
    rows = rows_of("identification/faces")
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    names = ("identified", "identified_ssim", "identified_features", "person", "person_features")
    body = []
    for setting, group in groups.items():
        faces = sum(row["faces"] for row in group)
        entries = []
        for name in names:
            rate = Share.count(sum(round(row[name] * row["faces"]) for row in group), faces)
            low, high = rate.interval
            entries.append(f"{rate.share:.0%} ({low:.0%} to {high:.0%})")
        recovered = sum(round(row["recovered"] * row["faces"]) for row in group)
        psnr = span((row["psnr"] for row in group), "{:.1f}")
        body.append([setting, psnr, f"{recovered} of {faces}", *entries, f"{len(group)}"])
    for base in ("mean_color", "chance"):
        shares = [f"{sum(row[f'{base}_{name}'] for row in rows) / len(rows):.0%}" for name in names]
        body.append(["the own mean color" if base == "mean_color" else "chance", "", "", *shares, ""])
    heads = ("", "PSNR, median dB", "recovered", *(f"`{name}`" for name in names), "seeds")
    return [*table(heads, body), *commands(rows)]


def pooled(group: list[dict[str, Any]], share: str, of: str) -> str:
    """Hits of all seeds together, with the interval of their share."""
    rate = Share.count(sum(round(row[share] * row[of]) for row in group), sum(row[of] for row in group))
    low, high = rate.interval
    return f"{rate.hits} of {rate.of} ({low:.1%} to {high:.1%})"


PARTS: dict[str, Part] = {
    "membership": Part("membership.md", membership),
    "members at per mille": Part("membership.md", members_at_per_mille),
    "membership rounds": Part("membership.md", membership_rounds),
    "membership frontier": Part("membership.md", membership_frontier),
    "identification": Part("identification.md", identification),
}
