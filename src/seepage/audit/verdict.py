"""A run in plain words, from its rows."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from seepage.audit.row import NAMED


def verdict(
    rows: Sequence[Mapping[str, Any]],
    titles: Mapping[str, str],
    defenses: Mapping[str, str | None] = MappingProxyType({}),
    *,
    own_code: bool = False,
) -> tuple[str, str]:
    """The run in plain words: `(level, text)`.

    Levels: `exact`, `recognizable`, `traces`, `nothing`; without a truth `certified` or `unscored`.

    Args:
        rows: All rows.
        titles: A cell's name to its title.
        defenses: A cell's name to its defense, where that is known; None: it has none.
        own_code: Whether scoring later takes somebody's own code, which is run only where it is trusted.
    """
    level, text = _found(rows, titles, f"seepage score RUN --truth FOLDER{' --trust' if own_code else ''}")
    unaware = _unaware(rows, titles, defenses)
    return level, f"{text.removesuffix('.')}. {unaware}" if unaware else text


def _found(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str], score: str) -> tuple[str, str]:
    """What the attacks found, whoever knew what; `score` is the command with which whoever has the truth can check."""
    scored = [row for row in rows if row["psnr"] is not None]
    silent = _silent(rows, titles)
    if not any(_spoke(row) for row in rows):
        return "unscored", f"NO RESULT. {silent}"
    if not scored and all(row["outcome"] == "features only" for row in rows if _spoke(row)):
        return "unscored", (
            "FEATURES ONLY. Inner features of private examples came back, and no attack made examples of them; "
            "cpa_fia goes on from there to images."
        )
    if not scored and any(row.get("vouched") for row in rows):
        return "certified", (
            f"LEAKS, BY ITS OWN PROOF. {_unscored(rows, titles)} A certified guess fits what was sent as only a "
            f"private example would. No truth was at hand; whoever has it can check: {score}"
        )
    if not scored:
        return "unscored", (
            f"NOT SCORED. Look at the pictures: {_unscored(rows, titles)} The truth is not at hand to say how close "
            f"that is, and nothing here is a proof of safety; whoever has it can: {score}"
        )
    best = {
        cell: max((row for row in scored if row["cell"] == cell), key=_strength)
        for cell in titles
        if any(row["cell"] == cell for row in scored)
    }
    leaking = [row for row in best.values() if row["recovered"] or row["exact"]]
    if not leaking:
        traces = any(row["outcome"] == "traces" or row.get("visible") for row in scored)
        return ("traces" if traces else "nothing"), f"{_quiet_verdict(best, traces)} {silent}".strip()
    worst = max(leaking, key=_strength)
    level = "exact" if worst["exact"] else "recognizable"
    parts = [
        f"LEAKS. Private examples can be read back out of {len(leaking)} of {_cases(len(best))}.",
        f"Worst: {titles[worst['cell']]}, where the attack {worst['attack']} rebuilt {_share(worst)}.",
        *_closeness(worst),
        f"It was told {_told(worst)}.",
        *_fitted(worst),
    ]
    quiet = [titles[row["cell"]] for row in best.values() if row not in leaking]
    if quiet:
        parts.append(
            f"In {_named(quiet, titles)} these attacks, with the steps they were given, recovered no example"
            f"{_outlines([row for row in best.values() if row not in leaking], scored)}. That is no proof of safety."
        )
    return level, " ".join([*parts, silent]).strip()


def _unaware(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str], defenses: Mapping[str, str | None]) -> str:
    """What a reader must know where no attacker was told of the defense; empty where all were, or there is none."""
    told = {row["cell"] for row in rows if "defense" in row["told_extra"]}
    spoke = {row["cell"] for row in rows if _spoke(row)}
    defended = {cell for cell in titles if defenses.get(cell)}
    unaware = [cell for cell in titles if cell in defended & spoke - told]
    if not unaware:
        return ""
    where = "" if len(unaware) == len(titles) else f"In {_named([titles[cell] for cell in unaware], titles)} "
    words = f"{where}{'the' if where else 'The'} attackers did not know of the defense"
    able = {row["attack"] for row in rows if row["recovered"] or row["exact"]}
    scored = [{row["attack"] for row in rows if row["cell"] == cell and row["psnr"] is not None} for cell in unaware]
    if not any(attacks and not attacks & able for attacks in scored):
        return f"{words}."
    compared = any(row["psnr"] is not None and row["cell"] in titles.keys() - defended for row in rows)
    remedy = (
        "raise attack.steps or lower batch.size"
        if compared
        else "run the same command without --defense, or the recipe without its defense"
    )
    return f"{words}, and no case of this run without the defense shows that these attacks work here; {remedy}."


def _unscored(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """What came back, in the attacks' own words, where no truth is at hand."""
    back = [row for row in rows if row.get("returned") and row.get("space") != "feature"]
    if not back:
        return "no attack returned any guess."
    best = max(back, key=lambda row: (row.get("vouched") or 0, row["returned"]))
    vouched = best.get("vouched")
    of_them = "it" if best["returned"] == 1 else f"{vouched} of them"
    sure = f" and certifies {of_them} without any truth" if vouched else ", none of which it can certify"
    guesses = "1 guess" if best["returned"] == 1 else f"{best['returned']} guesses"
    return f"{best['attack']} returned {guesses} on {titles[best['cell']]}{sure}."


def _outlines(quiet: Sequence[Mapping[str, Any]], scored: Sequence[Mapping[str, Any]]) -> str:
    """What the limits do not count and the eye sees."""
    cells = {row["cell"] for row in quiet}
    most = sum(max(row.get("visible") or 0 for row in scored if row["cell"] == cell) for cell in cells)
    return f", but {most} guess{'es show' if most > 1 else ' shows'} outlines of theirs" if most else ""


def _silent(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Sentences about the cells of which no attack could say anything, or nothing where there are none."""
    spoke = {row["cell"] for row in rows if _spoke(row)}
    zero = {row["cell"] for row in rows if row["outcome"] == "zero update"} - spoke
    mute = [title for cell, title in titles.items() if cell not in spoke | zero]
    parts = []
    if mute:
        named = _named(mute, titles).replace("audited", "further" if spoke else "audited")
        parts.append(
            f"In {named} no attack gave a result: none applies, all failed, or no update could be made. "
            "That is no proof of safety either; the reasons are listed with the results."
        )
    if zero:
        parts.append(
            f"In {_named([titles[cell] for cell in titles if cell in zero], titles)} the update is zero everywhere: "
            "it holds nothing to attack, but the update of another round may."
        )
    return " ".join(parts)


def _spoke(row: Mapping[str, Any]) -> bool:
    return row["status"] not in ("inapplicable", "error")


def _cases(count: int) -> str:
    return "1 audited case" if count == 1 else f"{count} audited cases"


def _strength(row: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """How bad a case is: by the share of examples that came back, then by how many they are."""
    exact, recovered = row["exact"] or 0.0, row["recovered"] or 0.0
    median = row["psnr_median"] if row.get("psnr_median") is not None else -1e9
    return exact, recovered, exact * (row["examples"] or 0), median


def _fitted(row: Mapping[str, Any]) -> list[str]:
    fit = str(row.get("alignment") or "").partition("+")[2]
    return [f"Its score fitted {fit.replace('+', ' and ')} with the truth, which an attacker could not."] if fit else []


def _told(row: Mapping[str, Any]) -> str:
    shown = ", which here shows the indices of each batch" if "indices" in row.get("told", ()) else ""
    return f"{', '.join(row['told_extra']) or 'nothing'} beyond the protocol{shown}"


def _share(row: Mapping[str, Any]) -> str:
    kind, share = ("exactly", row["exact"]) if row["exact"] else ("recognizably", row["recovered"])
    return f"{round(share * row['examples'])} of {row['examples']} examples {kind}"


def _closeness(row: Mapping[str, Any]) -> list[str]:
    """A sentence with the median: the mean of numbers that are capped at 150 dB would say little."""
    if row.get("psnr_median") is None:
        return []
    flat = row.get("mean_color_psnr")
    flat_guess = "a flat square of the example's mean color" if row["ssim"] is not None else "the example's own mean"
    beside = "" if flat is None else f"; {flat_guess} has {flat:.0f} dB"
    what = f"Median PSNR of the {row['examples']} examples" if row["examples"] != 1 else "PSNR"
    return [f"{what}: {row['psnr_median']:.0f} dB{beside}."]


_COMMA = re.compile(r", (?![^(]*\))")
"""Stands between the parts of a title; a comma in brackets stands between options."""


def _named(cases: Sequence[str], titles: Mapping[str, str]) -> str:
    """A count of cases with their titles, or, of many, with the words that they share and not all titles have."""
    if len(cases) <= NAMED:
        return f"{_cases(len(cases))} ({'; '.join(cases)})"
    everywhere = set.intersection(*(set(_COMMA.split(title)) for title in titles.values()))
    shared = set.intersection(*(set(_COMMA.split(title)) for title in cases)) - everywhere
    common = ", ".join(word for word in _COMMA.split(cases[0]) if word in shared)
    return _cases(len(cases)) + (f" (all of them: {common})" if common else "")


def _quiet_verdict(best: Mapping[str, Mapping[str, Any]], traces: bool) -> str:
    if traces:
        return (
            f"TRACES. In {_cases(len(best))} no example counts as recovered, but some guesses come closer than a flat "
            "color or show outlines; look at the pictures. A stronger attack or more steps may recover more."
        )
    return (
        f"NOTHING RECOGNIZABLE. In {_cases(len(best))} these attacks, with the steps they were given, recovered "
        "nothing. That is no proof of safety: a stronger attack, more steps or an earlier round may recover more."
    )
