"""Sentences that summarize a frontier. They call no defense safe, since only the attacks of the run were tried."""

from collections.abc import Iterable, Sequence

from seepage.base.schema import Share
from seepage.report.formatting import measured_on
from seepage.report.frontier.rows import DefenseRow, points_of

LISTED_NAMES = 3
"""Largest number of sentences on what could not be tried, and of defenses named in one; more are counted."""

NEAR_CHANCE = 0.05
"""Share of the way from chance to perfect accuracy below which the model has too little accuracy to lose."""


def advice(rows: Sequence[DefenseRow], *, classes: int | None = None) -> str:
    """Sentences on which defense to choose, on what evidence, and on what could not be tried.

    Args:
        rows: The frontier.
        classes: Number of classes, if known; used to warn if the undefended model is hardly better than chance.
    """
    gaps = untried(rows)
    left = len(gaps) - LISTED_NAMES
    more = [f"{left} more {'is' if left == 1 else 'are'} listed on the page."] if left > 0 else []
    return " ".join([_choice(rows), *_nothing_left(rows), *_near_chance(rows, classes), *gaps[:LISTED_NAMES], *more])


def _choice(rows: Sequence[DefenseRow]) -> str:
    points = points_of(rows)
    bare = next((point for point in points if point.defense == "no defense"), None)
    if bare is None:
        return f"No undefended row has both {_a(rows[0].measure)} and a score, so nothing can be compared."
    if bare.share == 0:
        return (
            "Even without a defense no attack tried recovered anything, so these attacks, with these steps, say "
            "nothing about any defense; raise attack.steps, lower batch.size, or name other attacks."
        )
    others = [point for point in points if point is not bare]
    if not others:
        return f"No defense has both {_a(rows[0].measure)} and a score, so nothing can be compared."
    able = {attack for attack, count in _found(rows, bare.defense).items() if count}
    judged = [point for point in others if point.share > 0 or able & set(_found(rows, point.defense))]
    if not judged:
        return (
            f"{_listed(sorted(able))} alone found something without a defense, and could be tried behind none, so "
            "nothing can be compared."
        )
    measured = next(row for row in rows if row.accuracy is not None)
    stops = [point for point in judged if point.share == 0]
    if not stops:
        best = min(judged, key=lambda point: (point.share, -point.accuracy))
        return (
            f"No defense tried stops every attack tried: behind {best.defense}, which "
            f"{_cost(best.accuracy, bare.accuracy, measured)}, the best attack still recovers {best.share:.0%} of the "
            "examples."
        )
    best = max(stops, key=lambda point: point.accuracy)
    attacked = next(row.examples for row in rows if row.defense == best.defense and row.examples)
    tried = [attack for attack in _found(rows, best.defense) if attack in able]
    known = any(row.attacker == "knows" and able & set(row.found) for row in rows if row.defense == best.defense)
    return (
        f"{best.defense} {_cost(best.accuracy, bare.accuracy, measured)} and stops the attacks that found something "
        f"without it ({_listed(tried)}{'' if known else '; none of which knew of it'}) on {attacked} examples, with "
        "the steps they were given."
    )


def _found(rows: Sequence[DefenseRow], defense: str) -> dict[str, int]:
    """Attacks scored against a defense, aware of it or not, with the largest number of examples each recovered."""
    found: dict[str, int] = {}
    for row in rows:
        for attack, count in row.found.items() if row.defense == defense else ():
            found[attack] = max(found.get(attack, 0), count)
    return found


def _listed(names: Sequence[str]) -> str:
    if len(names) > LISTED_NAMES:
        return f"{', '.join(names[:LISTED_NAMES])} and {len(names) - LISTED_NAMES} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _a(measure: str) -> str:
    """The name of a measure with its article."""
    return f"an {measure}" if measure[0] in "ae" else f"a {measure}"


def _cost(accuracy: float, bare: float, measured: DefenseRow) -> str:
    """What training with a defense costs, of what the row says is measured."""
    points = 100 * (bare - accuracy)
    whole = measured_on(measured.accuracy_of, measured.accuracy_examples or 0, "test")
    of = f"({bare:.1%} to {accuracy:.1%} of {whole})"
    if points < 0.05:
        return f"costs no {measured.measure} {of}"
    return f"costs {points:.1f} points of {measured.measure} {of}"


def _nothing_left(rows: Sequence[DefenseRow]) -> list[str]:
    """A sentence on the best defense whose updates are all zero, which leaves nothing to attack or score."""
    bare = _undefended(rows)
    scored = {row.defense for row in rows if not row.zero}
    whole = [row for row in rows if row.defense not in scored and row.accuracy is not None]
    if not whole or bare is None or bare.accuracy is None:
        return []
    best = max(whole, key=lambda row: row.accuracy or 0.0)
    assert best.accuracy is not None
    cost = _cost(best.accuracy, bare.accuracy, best)
    return [f"{best.defense} {cost} and left nothing but zeros to read in these updates, so nothing was attacked."]


def _undefended(rows: Sequence[DefenseRow]) -> DefenseRow | None:
    return next((row for row in rows if row.defense == "no defense"), None)


def _near_chance(rows: Sequence[DefenseRow], classes: int | None) -> list[str]:
    """A warning if the undefended model is hardly better than chance."""
    bare = _undefended(rows)
    if bare is None or bare.accuracy is None or not bare.accuracy_examples:
        return []
    more = "raise utility.rounds or training.steps."
    whole = measured_on(bare.accuracy_of, bare.accuracy_examples, "test")
    if bare.accuracy_of == "value":
        says = f"But the undefended model explains {bare.accuracy:.1%} of {whole}, so costs mean little here: {more}"
        return [says] if bare.accuracy < NEAR_CHANCE else []
    if not classes:
        return []
    chance = 1 / classes
    right = Share.count(round(bare.accuracy * bare.accuracy_examples), bare.accuracy_examples)
    if right.low > chance and (bare.accuracy - chance) / (1 - chance) >= NEAR_CHANCE:
        return []
    return [
        f"But the undefended model is right on {bare.accuracy:.1%} of {whole}, where guessing one of {classes} classes "
        f"is on {chance:.1%}, so costs in {bare.measure} mean little here: {more}"
    ]


def untried(rows: Sequence[DefenseRow]) -> list[str]:
    """A sentence for each attack or training that failed, with its reason; first those that flatter a defense.

    >>> lacking = {"dlg": "no memory"}
    >>> broken = DefenseRow(defense="a", attacker="oblivious", case="a", recovered=0, examples=4, untried=lacking)
    >>> untried([broken])
    ['dlg could not be tried behind a: no memory.']
    """
    places: dict[tuple[str, str], list[DefenseRow]] = {}
    for row in rows:
        for what, reason in _gaps(row):
            places.setdefault((what, reason), []).append(row)
    stopping = {point.defense for point in points_of(rows) if point.share == 0}
    ordered = sorted(places.items(), key=lambda item: not any(row.defense in stopping for row in item[1]))
    return [f"{what.format(_where(row.defense for row in own))}: {reason}." for (what, reason), own in ordered]


def _gaps(row: DefenseRow) -> Iterable[tuple[str, str]]:
    """What could not be measured in a row, as templates with places for the defense and the reason."""
    known = " that knows of it" if row.attacker == "knows" else ""
    if row.failed is not None:
        yield f"The {row.measure} {{}} could not be measured", _bare(row.failed)
    if row.recovered is None and not row.zero and row.reason is not None:
        yield f"No attack{known} could be tried {{}}", _bare(row.reason)
    elif row.recovered is not None:
        for attack, reason in row.untried.items():
            yield f"{attack}{known} could not be tried {{}}", _bare(reason)


def _bare(reason: str) -> str:
    return reason.rstrip(". ")


def _where(defenses: Iterable[str]) -> str:
    found = list(dict.fromkeys(defenses))
    parts = ["without a defense"] if "no defense" in found else []
    names = [name for name in found if name != "no defense"]
    left = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    parts += [f"behind {', '.join(names[:LISTED_NAMES])}{left}"] if names else []
    return " and ".join(parts)
