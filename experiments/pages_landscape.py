"""How often the outlook of docs/landscape.md is right, and the rule that its thresholds are fitted by."""

from collections.abc import Callable, Mapping

from page_parts import Lines, Part, Row, commands, rows_of, table

from seepage.attacks.exposure.landscape import outlook
from seepage.base.schema import Share

STUDY, NOISE = "matching/landscape", "0.03"
SUCCESS_DB = 3.0
"""Decibels over the mean color of each image from which an attack counts as a success."""
MOST_WRONG = 0.05
"""Share of attacks on the wrong side of a threshold, at most, where it is fitted."""
TWENTIETHS = [place / 20 for place in range(21)]


def gain(row: Row) -> float:
    """Decibels of the attack over each image's mean color."""
    return float(row["psnr"] - row["flat_psnr"])


def succeeded(row: Row) -> bool:
    return gain(row) >= SUCCESS_DB


def fitted(rows: list[Row]) -> tuple[float, float]:
    """The two thresholds by the rule of `seepage.attacks.exposure.landscape`, from the calibration's rows."""
    cosines: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if row["calibration"]:
            cosines[succeeded(row)].append(row["cosine"][NOISE])
    failed, good = cosines[False], cosines[True]
    expected = min(at for at in TWENTIETHS if sum(c >= at for c in failed) <= MOST_WRONG * len(failed))
    maybe = max(at for at in TWENTIETHS if sum(c < at for c in good) <= MOST_WRONG * len(good))
    return expected, maybe


def longest(rows: list[Row]) -> list[Row]:
    """Of attacks on one victim and batch the one of most steps."""
    found: dict[tuple[str, int], Row] = {}
    for row in sorted(rows, key=lambda row: int(row["steps"])):
        found[row["name"], row["batch"]] = row
    return [row for row in rows if row in found.values()]


SETS: Mapping[str, Callable[[Row], bool]] = {
    "the 20 victims, fitted": lambda row: bool(row["calibration"]),
    "other networks": lambda row: row["net"] in ("resnet10 w16", "resnet18 w8"),
    "other data (CIFAR-10)": lambda row: row["data"] == "cifar10",
    "batches of 4": lambda row: row["size"] == 4,
    "public networks": lambda row: row["net"] in ("VGG-16", "DenseNet-121", "MobileNetV2"),
    "all held out": lambda row: not row["calibration"],
}


def outlooks() -> Lines:
    """How often attacks passed the mean color, by the outlook; the first line is what the thresholds were fitted to."""
    rows = longest(rows_of(STUDY))
    heads = ["victims", "expected", "open", "not expected", "false alarms", "missed"]
    body = []
    for name, chosen in SETS.items():
        own = [row for row in rows if chosen(row)]
        if not own:
            continue
        by_word = {word: [row for row in own if outlook(row["cosine"][NOISE]) == word] for word in heads[1:4]}
        cases = [f"{sum(map(succeeded, found))} of {len(found)}" if found else "-" for found in by_word.values()]
        failed, good = ([row for row in own if succeeded(row) is wanted] for wanted in (False, True))
        alarms = Share.count(sum(row in failed for row in by_word["expected"]), len(failed)) if failed else None
        missed = Share.count(sum(row in good for row in by_word["not expected"]), len(good)) if good else None
        body.append([name, *cases, _words(alarms), _words(missed)])
    return [*table(heads, body), *commands(row for row in rows if not row["calibration"])]


def _words(rate: Share | None) -> str:
    if rate is None:
        return "-"
    low, high = rate.interval
    return f"{rate.hits} of {rate.of} ({low:.0%} to {high:.0%})"


PARTS: dict[str, Part] = {"outlook": Part("landscape.md", outlooks)}
