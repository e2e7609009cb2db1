"""Measure epsilon from recorded rounds, some of which had a canary in them, of a filter that cannot be called.

A list says which, as JSON or TOML: `{"with": ["000001-client-5", ...], "without": [...], "canary": FILE}`.
Its names are those of the recorder's folders; the canary's tensors, as they were added to the update before the filter,
may be left out, and then the statistic is learned from the rounds themselves.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seepage.base.storage import check_regular, read_json, read_tensors
from seepage.base.toml import LARGEST, load_toml
from seepage.errors import SeepageError, short
from seepage.federation.transcript.recorded import open_transcript
from seepage.measure.privacy.measured import EpsilonClaims, MeasuredEpsilon, measure_outputs
from seepage.measure.privacy.measured.canaries import Array

MAX_NUMBERS = 2**28
"""Most numbers of all recorded rounds together that are held at a time."""


@dataclass(frozen=True)
class CanaryList:
    """Which recordings had the canary in them.

    Attributes:
        included: Names of folders with it.
        without: Names of folders without it.
        canary: File of the canary's tensors; None: unknown.
    """

    included: tuple[str, ...]
    without: tuple[str, ...]
    canary: Path | None = None

    @classmethod
    def read(cls, path: Path) -> "CanaryList":
        """Read a list, which may come from others.

        Raises:
            SeepageError: For a file that is no such list.
        """
        table = _table(path)
        names = {key: table.get(key) for key in ("with", "without")}
        for key, listed in names.items():
            if not isinstance(listed, list) or not all(_is_name(name) for name in listed):
                raise SeepageError(
                    f'{path}: {key!r} must list names of recordings; give {{"{key}": ["000001-client-5"]}}'
                )
        both = set(names["with"] or ()) & set(names["without"] or ())
        if both:
            raise SeepageError(f"{path} says of {short(min(both))} both that it has the canary and not; list it once")
        canary = table.get("canary")
        if canary is not None and not _is_name(canary):
            raise SeepageError(f"{path}: 'canary' must name a file beside the list, got {short(str(canary))}")
        return cls(
            tuple(names["with"] or ()), tuple(names["without"] or ()), None if canary is None else path.parent / canary
        )


def measure_recorded(
    folder: Path,
    listed: CanaryList,
    *,
    delta: float,
    stated: float | None = None,
    computed: float | None = None,
    rounds: int = 1,
    seed: int = 0,
) -> MeasuredEpsilon:
    """Measure on recordings of one filter.

    Args:
        folder: Where the recorder wrote its folders.
        listed: Which of them had the canary in them.
        delta: In (0, 1).
        stated: The claimed epsilon over all rounds.
        computed: The epsilon that an accountant computes, over all rounds.
        rounds: Rounds that the claims are over, taken to be alike.
        seed: Divides the recordings.

    Raises:
        SeepageError: For missing or different recordings, and too few or too large ones.
    """
    names: dict[str, tuple[int, ...]] = {}
    count = len(listed.without) + len(listed.included)
    kinds = (_some(listed.without), _some(listed.included))
    without, included = (np.stack([_row(folder / name, names, count) for name in kind]) for kind in kinds)
    direction = None if listed.canary is None else _flat(read_tensors(listed.canary), names, listed.canary)
    claims = EpsilonClaims(delta=delta, rounds=rounds, stated=stated, computed=computed)
    return measure_outputs(without, included, claims, direction=direction, seed=seed)


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise SeepageError("the list names no recordings of one kind; it takes some with the canary and some without")
    return names


def _row(folder: Path, names: dict[str, tuple[int, ...]], count: int) -> Array:
    """The update of a recording as one row; the first one says what tensors there are."""
    update = open_transcript(folder)[0].update.tensors
    if not names:
        names |= {name: tuple(update[name].shape) for name in update}
        size = sum(int(np.prod(shape)) for shape in names.values())
        if size * count > MAX_NUMBERS:
            raise SeepageError(
                f"{count} recordings of {size} numbers do not fit into memory; record a part of the update, or fewer"
            )
    return _flat(update, names, folder)


def _flat(tensors: Mapping[str, Any], names: Mapping[str, tuple[int, ...]], where: Path) -> Array:
    if set(tensors) != set(names) or any(tuple(tensors[name].shape) != shape for name, shape in names.items()):
        raise SeepageError(f"{where} has other tensors than the first recording; list recordings of one model")
    return np.concatenate([tensors[name].detach().double().flatten().numpy() for name in names])


def _table(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".toml":
        check_regular(path, LARGEST)
        try:
            found: Any = load_toml(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SeepageError(f"{path} is not valid TOML ({str(error)[:120]}); correct it") from error
    else:
        found = read_json(path)
    if not isinstance(found, dict):
        raise SeepageError(f'{path} is no list of recordings; give {{"with": [...], "without": [...]}}')
    return found


def _is_name(name: object) -> bool:
    """One step down, and nowhere else."""
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name:
        return False
    return Path(name).name == name and not any("\ud800" <= letter <= "\udfff" for letter in name)
