"""Measure what is not measured yet, for a number of hours: the cheapest numbers first, and nothing lost by a kill.

A part is one attack on one cell of an item, on one data set with one seed. Its outcome, or its checkpoint, stays in the
item's run folder, so the next call goes on where this one ended, on this machine or wherever the folder is taken to.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from seepage.attacks import ATTACKS
from seepage.audit.attack import attack_names
from seepage.core.progress import Doing, ProgressCallback, no_progress
from seepage.errors import SeepageError
from seepage.papers.items import Size
from seepage.papers.records import Record, keep_records, read_records
from seepage.papers.run import Job, Place, data_name, folder_of, places_of, run_job, run_part, with_earlier
from seepage.recipe.resolve import cells

CORES_PER_GPU = 5.0
"""Minutes of one core for a minute of the GPU that a recipe's `needs` are stated for.

FedLeak (section 6.5) takes 20 minutes of an RTX 4090 for 10,000 steps; the same steps of ResNet-10 at batch 16 take
1.7 hours of one core (0.62 s each).
"""


WELL_KNOWN = 0.2
"""Share of an item's expected time that must have been measured before what is left is expected to take as long."""


@dataclass(frozen=True)
class Part:
    """What is measured in one piece.

    Attributes:
        job: The item, its data and its seed.
        cell: Name of the cell; empty where the item is made by a function of its own, which is one piece.
        attack: Name of the attack on it.
        minutes: What it is expected to take, in minutes of one core, by the recipe's `needs` or by what has run of it.
        begun: Share of it that has run, from 0 to 1.
    """

    job: Job
    cell: str
    attack: str
    minutes: float
    begun: float = 0.0

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """What it is, whatever has run of it."""
        return self.job.item.id, self.job.paper_data, self.job.seed, self.cell, self.attack

    @property
    def title(self) -> str:
        """For people: `fedleak/table-3, fedleak on large-batch of cifar10, seed 0`."""
        attack, data = f"{self.attack} on {self.cell}" if self.attack else "", self.job.paper_data
        if data and Path(self.job.data).stem != data:  # packaged pictures, say, in place of the paper's
            data = f"{self.job.data} for {data}"
        return ", ".join(filter(None, (self.job.item.id, attack, data, f"seed {self.job.seed}")))


@dataclass
class Progress:
    """What came of a call.

    Attributes:
        measured: Each finished part with its records.
        failed: Each part that could not be measured, with the reason.
        left: Parts that are still to be measured, the next one first.
        too_large: Items left out because this machine has less memory than they need.
    """

    measured: list[tuple[Part, list[Record]]] = field(default_factory=list)
    failed: list[tuple[Part, str]] = field(default_factory=list)
    left: list[Part] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)


def measure(
    jobs: Sequence[Job],
    size: Size,
    *,
    seconds: float,
    cores: int,
    out: Path,
    results: Path,
    show: ProgressCallback = no_progress,
) -> Progress:
    """Measure the parts of jobs that have no record yet, seed by seed and the cheapest first, until time is up.

    Args:
        jobs: From `plan`.
        size: Which size they have.
        seconds: After so many seconds the part that runs is interrupted; its checkpoint stays.
        cores: Threads to use.
        out: Folder for run folders.
        results: Folder for records, and for pictures of packaged data.
        show: Progress: the share of the time that has gone by.

    Raises:
        KeyboardInterrupt: After Ctrl-C; what is measured is recorded, and checkpoints stay.
    """
    found = Progress()
    fitting = [job for job in jobs if job.item.needs[size].gib <= _memory_gib()]
    found.too_large = list(dict.fromkeys(job.item.id for job in jobs if job not in fitting))
    started, before = time.monotonic(), torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        with _until(seconds):
            while time.monotonic() - started < seconds:
                # A part that failed, or that made none of its numbers, is not tried twice in one call.
                tried = {part.key for part, _ in [*found.measured, *found.failed]}
                left = open_parts(fitting, size, out, results)
                found.left = [part for part in left if part.key not in tried]
                if not found.left:
                    break
                _measure_part(found, size, out, results, _clock(show, started, seconds, found.left[0].title))
    finally:
        torch.set_num_threads(before)
    done = {part.key for part, _ in found.failed}
    found.left = [part for part in open_parts(fitting, size, out, results) if part.key not in done]
    return found


def open_parts(jobs: Sequence[Job], size: Size, out: Path, results: Path) -> list[Part]:
    """The parts without a record, in the order in which `measure` takes them.

    The seed comes first, so that all numbers have one seed before any has two; then what is left of the part.
    """
    kept: dict[str, list[Record]] = {}
    parts = []
    for job in jobs:
        if job.item.id not in kept:
            kept[job.item.id] = read_records(results, job.item.id)
        parts += _parts_of(job, size, out, kept[job.item.id], len(job.item.data))
    return sorted(parts, key=lambda part: (part.job.seed, part.minutes * (1 - part.begun)))


def _measure_part(found: Progress, size: Size, out: Path, results: Path, show: ProgressCallback) -> None:
    """Run the first part that is left, record its numbers, and end the item's run with its last part."""
    part = found.left[0]
    job = part.job
    try:
        if not part.attack:
            records = run_job(job, size, out=out, results=results, jobs=1, show=show)
        else:
            records = run_part(job, size, part.cell, part.attack, out=out, show=show)
    except SeepageError as error:
        found.failed.append((part, str(error)))
        return
    keep_records(results, job.item.id, with_earlier(results, records))
    found.measured.append((part, records))
    if part.attack and not open_parts([job], size, out, results):
        # All of its attacks have run: what is left is the report and the pictures.
        whole = run_job(job, size, out=out, results=results, jobs=1, show=show)
        keep_records(results, job.item.id, with_earlier(results, whole))


def _parts_of(job: Job, size: Size, out: Path, kept: Sequence[Record], data_sets: int) -> list[Part]:
    """The parts of a job without a record, with what each is expected to take."""
    kept = [r for r in kept if (r.size, r.paper_data, r.data) == (size, job.paper_data, data_name(job))]
    done = {(record.row, record.column) for record in kept if str(job.seed) in record.seeds}
    needs = job.item.needs[size]
    whole = needs.total * (CORES_PER_GPU if needs.gpu else 1.0) / data_sets
    if job.item.expect.by:
        # Which numbers it makes, only the function knows: it has run where any of them is kept.
        return [] if done else [Part(job, "", "", whole)]
    places = list(places_of(job))
    wanted = {(cell, attack): None for line, column, cell, attack in places if (line.name, column) not in done}
    if wanted and not any(attack for _, attack in wanted):  # facts of cells that no attack belongs to
        return [Part(job, "", "", 0.0)]
    weights, folder = _weights(job), folder_of(job, size, out)
    minute = whole / (sum(weights.values()) or 1.0) * _pace(kept, whole, weights, places)
    parts = [Part(job, cell, attack, minute * weights.get((cell, attack), 0.0)) for cell, attack in wanted if attack]
    return [_as_begun(part, folder) for part in parts]


def _pace(
    kept: Sequence[Record], whole: float, weights: Mapping[tuple[str, str], float], places: Sequence[Place]
) -> float:
    """How much longer the item's measured numbers took than was expected; 1 where too few say."""
    share = {(line.name, column): weights.get((cell, attack), 0.0) for line, column, cell, attack in places}
    taken = expected = 0.0
    for record in kept:
        seconds, weight = record.facts.get("cpu_seconds"), share.get((record.row, record.column), 0.0)
        if isinstance(seconds, int | float) and seconds > 0 and weight:
            taken += seconds / 60
            expected += whole * weight / sum(weights.values())
    # Of a few cheap parts, imports and recording are most of the time.
    return taken / expected if taken and expected > WELL_KNOWN * whole else 1.0


def _weights(job: Job) -> dict[tuple[str, str], float]:
    """How the time of a job is shared among its attacks: by steps, times examples."""
    found = {}
    for recipe in cells(job.tables):
        for name, spec in zip(attack_names(recipe.attack), recipe.attack, strict=True):
            steps = getattr(ATTACKS.build(spec), "steps", 1)
            count = recipe.batch.size * recipe.batch.count
            found[recipe.cell, name] = float(steps if isinstance(steps, int) else 1) * count
    return found


def _as_begun(part: Part, folder: Path) -> Part:
    """The part with the share of it that has run, by the last line that its attack wrote to the log."""
    place = folder / "attacks" / part.cell / part.attack
    checkpoints = sorted(place.glob("*-checkpoint.json"))
    if not checkpoints:
        return part
    step, total = json.loads(checkpoints[0].read_text()).get("step", 0), _total(folder, part)
    share = min(1.0, step / total) if total and isinstance(step, int) else 0.0
    return Part(part.job, part.cell, part.attack, part.minutes, share)


def _total(folder: Path, part: Part) -> int:
    """Steps of the part's attack, as its last report had them; 0 where it made none."""
    log = folder / "progress.jsonl"
    total = 0
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if f'"cell": {json.dumps(part.cell)}' in line and f'"attack": {json.dumps(part.attack)}' in line:
            try:
                total = int(json.loads(line)["total"])
            except (ValueError, KeyError):  # a line cut short by a kill
                continue
    return total


def _clock(show: ProgressCallback, started: float, seconds: float, title: str) -> ProgressCallback:
    """Progress of a part as the share of the time that has gone by, with the part's own share in words."""

    def shown(done: float, total: float, doing: Doing) -> None:
        share = f", {done / total:.0%}" if total else ""
        show(min(1.0, (time.monotonic() - started) / seconds), 1.0, Doing(f"{title}: {doing.phase}{share}"))

    return shown


def _memory_gib() -> float:
    """Memory of this machine in GiB; infinite where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (AttributeError, ValueError, OSError):  # Windows
        return float("inf")


class _TimeIsUp(BaseException):
    """Raised in the middle of a part. No `Exception`, and no `KeyboardInterrupt`, which attacks answer."""


@contextmanager
def _until(seconds: float) -> Iterator[None]:
    """End the `with` block after so many seconds, and go on behind it.

    Where there are no timers (Windows, or a thread other than the main one), the block ends by itself: `measure` looks
    at the clock between two parts.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TimeIsUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _TimeIsUp
