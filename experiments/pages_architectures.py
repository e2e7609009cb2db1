"""Parts of docs/architectures.md; see `pages.py`."""

import re
from collections import Counter, defaultdict
from functools import partial

from page_parts import Lines, Part, commands, rows_of, span, table


def cases(setting: str) -> Lines:
    """How every attack ended on every network: what it gave, or the number of the reason why it does not apply."""
    reasons = list(_refusals())
    heads = [
        "network",
        "`exposure`",
        "exact",
        "inner features",
        "nothing was reconstructed",
        "scored, after 1 to 4 steps",
        "not applicable, and why",
    ]
    body = []
    for row in rows_of("architectures/matrix"):
        if row["setting"] != setting:
            continue
        found: dict[str, list[str]] = defaultdict(list)
        for use, one in row["cases"].items():
            number = f" {reasons.index(_general(one['words'])) + 1}" if one["outcome"] == "refused" else ""
            if use != "exposure":
                found[one["outcome"]].append(f"`{use}`{number}")
        scores = [one["psnr"] for one in row["cases"].values() if one["outcome"] == "score" and one["psnr"] is not None]
        scored = f"{len(scores)}: {span(scores)} dB" if scores else ""
        looked = row["cases"]["exposure"]["words"].removeprefix("reveals ")
        listed = (", ".join(found[outcome]) for outcome in ("exact", "features", "nothing"))
        body.append([f"{row['name']} ({row['library']})", looked, *listed, scored, ", ".join(found["refused"])])
    return table(heads, body)


def refusals() -> Lines:
    """The reasons that the tables number, with the attacks that give them."""
    return [
        *(f"{number}. {reason} ({', '.join(uses)})" for number, (reason, uses) in enumerate(_refusals().items(), 1)),
        *commands(rows_of("architectures/matrix")),
    ]


def _refusals() -> dict[str, list[str]]:
    """Every reason, and who gives it, the most frequent first."""
    counts: Counter[str] = Counter()
    uses: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows_of("architectures/matrix"):
        for use, one in row["cases"].items():
            if one["outcome"] == "refused":
                reason = _general(one["words"])
                counts[reason] += 1
                uses[reason][f"`{use}`"] = None
    return {reason: list(uses[reason]) for reason, _ in counts.most_common()}


NAMED = (
    (r"'[\w.]+'|\b\w+(\.\w+)+(?= embeds)", "L"),
    (r"\([A-Z]\w+\)", "(CLASS)"),
    (r"\(\d[\d, ]*\)", "SHAPE"),
    (r"(?<!to )\b\d+\b", "N"),
)
"""Patterns of the names, classes, shapes and counts of one network, and what stands for them."""


def _general(words: str) -> str:
    """A sentence that several networks share."""
    for pattern, instead in NAMED:
        words = re.sub(pattern, instead, words)
    return words


PARTS: dict[str, Part] = {
    "one example": Part("../results/architectures/README.md", partial(cases, "one example, eval mode")),
    "two examples": Part("../results/architectures/README.md", partial(cases, "two examples, train mode")),
    "refusals": Part("../results/architectures/README.md", refusals),
}
