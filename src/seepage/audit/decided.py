"""What is decided is decided: attacks that are left have nothing to do where every example of a case is certified."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from seepage.attacks import ATTACKS, Attack
from seepage.audit.attempt import has_attempt, open_attempt

ALL_ATTACKS = "--all runs every attack"
"""What to do about it, in a reason."""


def in_stages(attacks: Mapping[str, tuple[str, Attack]]) -> list[list[str]]:
    """Names of attacks in the order in which they run; those of one stage do not wait for one another.

    First come the attacks that can certify guesses, one per stage, in the order of `ATTACKS`, from the cheapest to the
    most expensive, then user-defined ones; last, in one stage, those that cannot, which make no other unnecessary.

    Args:
        attacks: Name in the run to registered name and attack.
    """
    places = {use: place for place, use in enumerate(ATTACKS)}
    able = [name for name, (_, attack) in attacks.items() if attack.certifies]
    able.sort(key=lambda name: places.get(attacks[name][0], len(places)))
    unable = [name for name, (_, attack) in attacks.items() if not attack.certifies]
    return [*([name] for name in able), *([unable] if unable else [])]


def decided_by(places: Sequence[Path], rounds: int, size: int | None) -> list[str]:
    """Names of attacks that together certified every example of every round; empty where any example is left.

    In each round one attack must certify all examples: guesses of two attacks may be the same example.

    Args:
        places: Folders of the attempts of attacks that have run, one attempt per round.
        rounds: Number of rounds.
        size: Number of examples in each round, stated or inferred; None: not known, so that the result is empty.
    """
    if size is None:
        return []
    found = []
    for t in range(rounds):
        name = next((place.name for place in places if _certifies(place / f"{t:06d}", size)), None)
        if name is None:
            return []
        found.append(name)
    return list(dict.fromkeys(found))


def _certifies(outcome: Path, size: int) -> bool:
    found = open_attempt(outcome).reconstruction if has_attempt(outcome) else None
    if found is None or found.certified is None or found.space != "input":
        return False
    return int(found.certified.sum()) >= size


def not_needed(names: Sequence[str], examples: int, *, inferred: bool) -> str:
    """The reason for which an attack was not run.

    >>> not_needed(["linear"], 8, inferred=False)
    'all 8 examples were certified by linear; --all runs every attack'
    """
    words = "the one example was" if examples == 1 else f"all {examples} examples were"
    size = " (by the inferred batch size)" if inferred else ""
    return f"{words} certified by {' and '.join(names)}{size}; {ALL_ATTACKS}"
