"""Retention policy of a recorder: the oldest recordings are removed first, so that the newest rounds are kept."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

NAME = re.compile(r"\d{6,}-client-[A-Za-z0-9_-]{1,64}")
"""Folders that a recorder wrote, and may remove again."""


def recordings(folder: Path) -> list[Path]:
    """The recordings in a folder, in the order in which they were written."""
    found = []
    for path in folder.iterdir():
        if NAME.fullmatch(path.name) and not path.is_symlink():
            try:
                found.append((path.stat().st_mtime_ns, int(path.name.partition("-")[0]), path.name, path))
            except FileNotFoundError:
                continue  # another process removed it
    return [path for *_, path in sorted(found)]


def surplus(
    names: Sequence[str], new: str, *, most: int, rounds: int | None = None, per_client: int | None = None
) -> list[str]:
    """The recordings that must go before a new one is written.

    Args:
        names: Those that are there, the oldest first.
        new: The one to come.
        most: Recordings in all.
        rounds: Rounds of which any are kept; None: all.
        per_client: Recordings of one client; None: all.

    Example:
        >>> surplus(["000001-client-a", "000001-client-b", "000002-client-a"], "000003-client-a", most=9, rounds=2)
        ['000001-client-a', '000001-client-b']
        >>> surplus(["000001-client-a", "000001-client-b", "000002-client-a"], "000003-client-a", most=9, per_client=2)
        ['000001-client-a']
    """
    kept, of_client, kept_rounds = 1, Counter([_client(new)]), {_round(new)}
    gone = []
    for name in reversed([name for name in names if name != new]):  # the new one replaces its own
        client, t = _client(name), _round(name)
        full = kept >= most or (per_client is not None and of_client[client] >= per_client)
        if full or (rounds is not None and len(kept_rounds | {t}) > rounds):
            gone.append(name)
        else:
            kept += 1
            of_client[client] += 1
            kept_rounds.add(t)
    return gone[::-1]


def _round(name: str) -> str:
    return name.partition("-")[0]


def _client(name: str) -> str:
    return name.partition("-client-")[2]
