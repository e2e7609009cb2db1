"""The processes below another one, and those of a group, by Linux' /proc."""

import os
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process that exists.

    Attributes:
        state: `Z` where it has ended and nobody has asked for its exit code yet.
        parent: Number of the process that started it.
        group: Number of its process group.
        seconds: Its processor seconds.
    """

    state: str
    parent: int
    group: int
    seconds: float


def processes() -> dict[int, Process]:
    """All processes of the machine, by number."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name, which comes first, may hold brackets and spaces.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        ticks = int(fields[11]) + int(fields[12])
        found[int(entry.name)] = Process(fields[0], int(fields[1]), int(fields[2]), ticks / os.sysconf("SC_CLK_TCK"))
    return found


def below(main: int, alive: dict[int, Process]) -> list[int]:
    """The processes that a process has started, and theirs."""
    found, level = list[int](), [main]
    while level:
        level = [number for number, one in alive.items() if one.parent in level]
        found += level
    return found


def group_lives(group: int) -> bool:
    """Whether any process of a group still runs."""
    return any(one.group == group and one.state != "Z" for one in processes().values())
