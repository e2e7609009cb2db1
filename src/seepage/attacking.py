"""Run attacks on recorded rounds, side by side. A worker is given folders an attacker may read, and nothing else."""

import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seepage.attacks import Attack, Inapplicable
from seepage.errors import SeepageError
from seepage.functional import generator
from seepage.outcome import FolderProgress, Outcome, has_outcome, save_outcome
from seepage.parts import Part, make_attack
from seepage.recipe import Recipe
from seepage.recorded import RecordedTranscript, keeps_rounds, open_transcript
from seepage.recording import Show, is_skipped, made_anew, place_of
from seepage.transcript import OneRound
from seepage.types import Architecture, Reconstruction, Transcript
from seepage.vertical import IndexedTranscript

POLL = 0.3
"""Seconds between looks at the workers' progress."""


@dataclass(frozen=True)
class Source:
    """One cell to attack: where its rounds lie, and its truth if there is one.

    Attributes:
        name: The cell's name, and the folder's below `attacks/`.
        observed: Folder an attacker may read.
        private: Folder with the truth, or None.
        architecture: The model, where the recorded one is replaced.
        batch_size: Batch size, where the record has none.
        trust: The folder was written by this run, so its model may be somebody's own code.
        recipe: The recipe that recorded it, where this run did.
    """

    name: str
    observed: Path
    private: Path | None
    architecture: Architecture | None = None
    batch_size: int | None = None
    trust: bool = False
    recipe: Recipe | None = None

    @property
    def skipped(self) -> bool:
        """Whether the cell could not be recorded."""
        return self.private is not None and is_skipped(self.private)

    @property
    def kept(self) -> bool:
        """Whether its rounds lie in the folder; else they are made anew, which takes the private data."""
        return self.recipe is None or keeps_rounds(self.observed)

    def open(self, device: str) -> RecordedTranscript | IndexedTranscript:
        if self.recipe is not None and self.private is not None and not self.kept:
            return made_anew(self.recipe, self.observed, self.private, device)
        return open_transcript(
            self.observed,
            architecture=self.architecture,
            batch_size=self.batch_size,
            device=device,
            trust=self.trust,
        )

    def for_attack(self) -> "Source":
        """The same without the truth, wherever the rounds can be had without it."""
        return replace(self, private=None) if self.kept else self

    def rounds(self, attack: Attack) -> int:
        """How many runs of an attack this cell takes: one on all rounds together, or one for each round."""
        transcript = self.open("cpu")
        if attack.rounds == "all":
            return 1
        if "indices" not in transcript.knowledge.told:
            return len(transcript)
        # Rounds over one data set are many and alike.
        return min(len(transcript), 1 if self.recipe is None else self.recipe.batch.count)


def own_source(recipe: Recipe, recipes: Sequence[Recipe], folder: Path) -> Source:
    observed, private = (place_of(folder, part, recipe, recipes) for part in ("observed", "private"))
    return Source(recipe.cell, observed, private, trust=True, recipe=recipe)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One attack on one round (or, for attacks that need all rounds, on all of them).

    Attributes:
        source: Where the rounds are; without the truth, unless the rounds are made anew from it.
        outcome: Where the outcome goes, without suffix.
    """

    cell: str
    name: str
    part: Part
    t: int
    seed: int
    device: str
    source: Source
    outcome: Path

    @property
    def done(self) -> bool:
        return has_outcome(self.outcome)

    @property
    def facts(self) -> dict[str, str | int]:
        return {"cell": self.cell, "attack": self.name, "round": self.t}


def run_task(task: Task, threads: int, log: Path) -> None:
    """Attack and keep the outcome. A fault in the attack's code is an outcome too, so that the others go on."""
    torch.set_num_threads(threads)
    attack = make_attack(task.part.use, task.part.options)
    transcript: Transcript = task.source.open(task.device)
    if attack.rounds == "one":
        transcript = OneRound(transcript, task.t)
    progress = FolderProgress(log, task.outcome.with_name(f"{task.outcome.name}-checkpoint"), task.facts)
    clocks = time.perf_counter(), time.process_time()
    try:
        found = attack(transcript, seed=task.seed, progress=progress)
        check_reconstruction(found, transcript)
        seconds, cpu_seconds = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
        outcome = Outcome(found.status, repr(attack), found, None, seconds, cpu_seconds)
    except Inapplicable as error:
        outcome = Outcome("inapplicable", repr(attack), None, str(error))
    except SeepageError:
        raise
    except Exception as error:  # an attack may be somebody's own code
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(place.filename).name} line {place.lineno})"
        outcome = Outcome("error", repr(attack), None, reason)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    save_outcome(outcome, task.outcome)
    progress.clear()


def check_reconstruction(found: object, transcript: Transcript) -> None:
    """Raise `ValueError` for what a score could make no sense of; somebody's own attack may return anything."""
    if not isinstance(found, Reconstruction):
        raise ValueError(f"the attack returned a {type(found).__name__} instead of a seepage.Reconstruction")
    shape = transcript.knowledge.input_shape
    if found.space == "input" and tuple(found.inputs.shape[1:]) != shape:
        raise ValueError(f"the attack returned guesses of shape {tuple(found.inputs.shape[1:])} instead of {shape}")
    if not found.inputs.isfinite().all():
        raise ValueError("the attack returned NaN or infinite values")


class _Meter:
    """Adds up how far all tasks are, from the lines the workers append."""

    def __init__(self, tasks: Sequence[Task], log: Path, show: Show) -> None:
        self.shares = {(task.cell, task.name, task.t): 0.0 for task in tasks}
        self.log, self.show = log, show
        self.offset = log.stat().st_size if log.exists() else 0

    def look(self) -> None:
        """Read new lines and show the sum."""
        latest = ""
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self.offset)
                fresh = file.read()
            whole = fresh.rpartition(b"\n")[0]
            self.offset += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                event = _event(line)
                if event is None:
                    continue
                key = (event["cell"], event["attack"], event["round"])
                if key in self.shares and self.shares[key] < 1:
                    self.shares[key] = event["done"] / max(1, event["total"]) * 0.99
                latest = f"{event['attack']} on {event['cell']}"
        self.show(sum(self.shares.values()), len(self.shares), latest)

    def finish(self, task: Task) -> None:
        self.shares[task.cell, task.name, task.t] = 1.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look every `POLL` seconds, from a thread, while a block runs."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(POLL):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.look()


def _event(line: bytes) -> dict[str, Any] | None:
    """A progress line, or None for one that a kill cut short."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.keys() >= {"cell", "attack", "round", "done", "total"} else None


def run_tasks(tasks: Sequence[Task], jobs: int, threads: int, log: Path, show: Show) -> None:
    """Run all tasks, `jobs` at a time.

    Raises:
        SeepageError: Where a round cannot be read or a worker died (out of memory, most likely).
        KeyboardInterrupt: After Ctrl-C; finished outcomes and checkpoints stay, and the same command goes on from them.
    """
    if not tasks:
        return
    meter = _Meter(tasks, log, show)
    if jobs == 1:
        _run_here(tasks, threads, log, meter)
    else:
        _run_in_workers(tasks, jobs, threads, log, meter)


def _run_here(tasks: Sequence[Task], threads: int, log: Path, meter: _Meter) -> None:
    """Run tasks in this process, watched from a thread."""
    before = torch.get_num_threads()
    try:
        with meter.watched():
            for task in tasks:
                run_task(task, threads, log)
                meter.finish(task)
    finally:
        torch.set_num_threads(before)


def _run_in_workers(tasks: Sequence[Task], jobs: int, threads: int, log: Path, meter: _Meter) -> None:
    """Run tasks in `jobs` processes, of which this is one: torch alone takes half a gigabyte in each.

    The workers take tasks from the front. This process takes them from the back, as long as it can still withdraw
    them from the workers' queue.
    """
    # spawn, not fork: torch's thread pools do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs - 1, mp_context=context, initializer=_follow, initargs=(os.getpid(),))
    before = torch.get_num_threads()
    try:
        with meter.watched():
            with _deaf_to_ctrl_c():
                running = {pool.submit(run_task, task, threads, log): task for task in tasks}
            for future, task in running.items():
                future.add_done_callback(partial(_finished, meter, task))
            for future, task in reversed(running.items()):
                if future.cancel():
                    run_task(task, threads, log)
                    meter.finish(task)
            for future, task in running.items():
                if not future.cancelled():
                    _result(future, task)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        torch.set_num_threads(before)
    pool.shutdown()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Start workers that ignore Ctrl-C: it reaches every process of a terminal, and this one ends them itself."""
    if threading.current_thread() is not threading.main_thread():  # which alone may set signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(parent: int) -> None:
    """Make this worker end once its parent is gone: a killed parent cannot tell it, and it would wait forever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _finished(meter: _Meter, task: Task, future: "Future[None]") -> None:
    if not future.cancelled() and future.exception() is None:
        meter.finish(task)


def _result(future: "Future[None]", task: Task) -> None:
    try:
        future.result()
    except BrokenProcessPool as error:
        raise SeepageError(
            f"a worker died during {task.name} on {task.cell}, most likely for want of memory; "
            "run the same command again with --jobs 1, or a smaller batch or model"
        ) from error


def attack_names(parts: Sequence[Part]) -> list[str]:
    """A name for each attack of a recipe: its own, numbered where one is used twice.

    >>> attack_names([Part("dlg"), Part("linear"), Part("dlg", {"steps": 9})])
    ['dlg', 'linear', 'dlg-2']
    """
    names: list[str] = []
    for part in parts:
        base = part.use.replace(":", ".")
        uses = sum(name == base or name.startswith(f"{base}-") for name in names)
        names.append(base if not uses else f"{base}-{uses + 1}")
    return names


def threads_for(jobs: int, device: str) -> int:
    """Threads per attack, so that all attacks together use once the cores that torch may use (`OMP_NUM_THREADS`)."""
    return max(1, torch.get_num_threads() // jobs) if device == "cpu" else 1


def attack_cells(
    sources: Sequence[Source],
    parts: Sequence[Part],
    folder: Path,
    recipes: Sequence[Recipe] | None,
    jobs: int | None,
    show: Show,
    *,
    seed: int = 0,
    device: str = "cpu",
) -> int:
    """Run every attack on every round of every cell that has no outcome yet; returns the number of jobs used."""
    tasks = []
    for i, source in enumerate(sources):
        own = recipes[i].attack if recipes else parts
        seed, device = (recipes[i].seed, recipes[i].device) if recipes else (seed, device)
        if source.skipped:
            continue
        for name, part in zip(attack_names(own), own, strict=True):
            rounds = source.rounds(make_attack(part.use, part.options))
            tasks += [_task(source, name, part, t, folder, seed, device) for t in range(rounds)]
    todo = [task for task in tasks if not task.done]
    cores = os.cpu_count() or 1
    workers = max(1, min(jobs or (cores if device == "cpu" else 1), len(todo)))
    run_tasks(todo, workers, threads_for(workers, device), folder / "progress.jsonl", show)
    return workers


def _task(source: Source, name: str, part: Part, t: int, folder: Path, seed: int, device: str) -> Task:
    own = generator(seed, f"attack/{source.name}/{name}", t).initial_seed() % 2**31
    return Task(
        cell=source.name,
        name=name,
        part=part,
        t=t,
        seed=own,
        device=device,
        source=source.for_attack(),
        outcome=folder / "attacks" / source.name / name / f"{t:06d}",
    )
