"""Run attacks on recorded rounds in parallel. A worker process gets only folders that an attacker may read."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.membership import MEMBERSHIP_TESTS, MembershipTest
from seepage.audit.attempt import (
    Attempt,
    FolderProgress,
    Spent,
    has_attempt,
    save_attempt,
    spent_before,
    stopped_after,
    tried,
)
from seepage.audit.candidates import FILE
from seepage.audit.decided import decided_by, in_stages, not_needed
from seepage.audit.membership import judge_members, save_judgment
from seepage.audit.outcome import Status
from seepage.audit.recipe.case import Recipe
from seepage.audit.record import case_folders, is_all_recorded, is_skipped
from seepage.base.clock import Limit, limited
from seepage.base.executor import Executor, LocalExecutor, LogFollower, Plan, Work
from seepage.base.lock import scratch
from seepage.base.nn import generator
from seepage.base.progress import Doing, ProgressCallback, no_progress
from seepage.base.registry import Spec
from seepage.federation.transcript.foreign import Facts, read_facts
from seepage.federation.transcript.recorded import RecordedTranscript, open_transcript
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.types import Architecture, Reconstruction, Transcript

LEAST_SECONDS = 1.0
"""Time for which searches that were stopped are not taken up again."""
NO_GUESS = -1
"""Number of steps of an attack that the clock stopped before there was anything to show."""
NO_GUESS_YET = "its time was over before it had a first guess; the same command again goes on, with as many minutes"
"""The reason for such an attack."""
POLL_SECONDS = 0.3
"""Seconds between polls of the workers' progress."""


@dataclass(frozen=True)
class Source:
    """One case to attack: the folder of its recorded rounds, and the folder of its truth if there is one.

    Attributes:
        name: Name of the case and of its folder below `attacks/`.
        observed: Folder an attacker may read.
        private: Folder with the truth, or None.
        architecture: Model to use in place of the recorded one; None: the recorded one.
        batch_size: Batch size to use where the recording states none.
        inferred: The source from which `batch_size` was inferred; None where it was stated.
        trust: Whether this run wrote the folder itself, so that model code named in it may be executed.
        recipe: What it is attacked by; where the run itself `simulated` the case, also what recorded it.
    """

    name: str
    observed: Path
    private: Path | None
    architecture: Architecture | None = None
    batch_size: int | None = None
    trust: bool = False
    recipe: Recipe = Recipe()  # noqa: RUF009 - frozen
    inferred: str | None = None
    simulated: bool = False

    @property
    def skipped(self) -> bool:
        """Whether the case could not be recorded."""
        return self.private is not None and is_skipped(self.private)

    @cached_property
    def facts(self) -> Facts:
        """The content of `knowledge.json`, read without building the model."""
        return read_facts(self.observed)

    def open(self, device: str) -> RecordedTranscript:
        """The recorded rounds."""
        return open_transcript(
            self.observed,
            architecture=self.architecture,
            batch_size=self.batch_size,
            size_inferred=self.inferred is not None,
            device=device,
            trust=self.trust,
        )

    def for_attack(self) -> "Source":
        """This source without the truth, and without the recipe, whose seed would draw it again."""
        return replace(self, private=None, recipe=Recipe())

    def __getstate__(self) -> dict[str, Any]:
        """All but the recipe, so that none travels, not even an empty one: elsewhere the default stands for it."""
        return {name: value for name, value in vars(self).items() if name != "recipe"}

    def rounds(self, attack: Attack) -> int:
        """Number of runs of an attack on this case: one on all rounds together, or one per round."""
        if attack.rounds == "all":
            return 1
        if "indices" not in self.facts.known:
            return self.facts.rounds
        # Rounds that draw from one data set may number thousands; only the first `batch.count` of them are attacked.
        return min(self.facts.rounds, self.recipe.batch.count)


def own_source(recipe: Recipe, recipes: Sequence[Recipe], folder: Path) -> Source:
    observed, private = case_folders(folder, recipe.case, len(recipes))
    return Source(recipe.case, observed, private, trust=True, recipe=recipe, simulated=True)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One attack on one round (or, for attacks that need all rounds, on all of them).

    Attributes:
        source: The recorded rounds; without the truth.
        folder: The run folder.
        clock: When the attacks of the run end; on the machine of the run alone.
        seconds: Time that it has, from its start.
        steps: Steps after which it ends, to repeat what the clock of another run once stopped; None: it has its time.
        spent: What its earlier parts took, which a clock stopped.
    """

    case: str
    name: str
    part: Spec
    t: int
    seed: int
    device: str
    source: Source
    folder: Path
    clock: "RunClock | None" = None
    seconds: float = math.inf
    steps: int | None = None
    spent: Spent = (0.0, 0.0)

    @property
    def title(self) -> str:
        return f"{self.name} on {self.case}"

    @property
    def is_attack(self) -> bool:
        """Whether it looks for examples; a membership test does not."""
        return True

    @property
    def outcome(self) -> Path:
        """Path of the attempt's files, without suffix."""
        return self.folder / "attacks" / self.case / self.name / f"{self.t:06d}"

    @property
    def done_file(self) -> Path:
        return self.outcome.with_suffix(".json")

    @property
    def done(self) -> bool:
        """Whether there is an outcome that is not to be taken up again."""
        return has_attempt(self.outcome) and not self.stopped

    @property
    def stopped(self) -> bool:
        """Whether its clock stopped it, so that it can go on."""
        return stopped_after(self.outcome) not in (None, self.steps)

    @property
    def searches(self) -> bool:
        """Whether it is a search, which has a share of the time and gets better with it; a closed form is not."""
        attack = ATTACKS.build(self.part)
        return bool(getattr(attack, "steps", None) or getattr(getattr(attack, "search", None), "steps", None))

    def begun(self) -> "Task":
        """This task as it is handed to a worker: with the time that it has."""
        if self.clock is None:
            return self
        return replace(self, clock=None, seconds=self.clock.share(self), spent=spent_before(self.outcome))

    @property
    def progress(self) -> FolderProgress:
        """The progress object that the attack reports its steps and checkpoints to."""
        facts = {"case": self.case, "attack": self.name, "round": self.t}
        checkpoint = self.outcome.with_name(f"{self.outcome.name}-checkpoint")
        return FolderProgress(self.folder / "progress.jsonl", checkpoint, facts)

    def run(self, threads: int) -> None:
        """Run the attack and save the attempt. An exception in the attack is saved as well, so the others continue."""
        torch.set_num_threads(threads)
        attack: Attack = ATTACKS.build(self.part)
        if self.steps == NO_GUESS:
            save_attempt(Attempt("not_tried", repr(attack), None, NO_GUESS_YET, stopped=NO_GUESS), self.outcome)
            return
        transcript = self.source.open(self.device)
        with limited(self.seconds, self.steps) as limit:
            outcome = self._attempt(
                attack, OneRound(transcript, self.t) if attack.rounds == "one" else transcript, limit
            )
        if outcome.status == "interrupted" and not limit.over:
            raise KeyboardInterrupt
        wall, processor = self.spent
        outcome = replace(outcome, seconds=wall + outcome.seconds, cpu_seconds=processor + outcome.cpu_seconds)
        save_attempt(outcome, self.outcome)
        if not limit.over:
            self.progress.clear()

    def _attempt(self, attack: Attack, transcript: Transcript, limit: Limit) -> Attempt:
        """The attack's reconstruction with its wall-clock and processor seconds, or the reason why there is none."""

        def attacked() -> Reconstruction:
            found = attack(transcript, seed=self.seed, progress=self.progress)
            check_reconstruction(found, transcript)
            return found

        try:
            found, ended, reason, refusal, spent = tried(attacked)
        except KeyboardInterrupt:
            if not limit.over:
                raise
            return Attempt("not_tried", repr(attack), None, NO_GUESS_YET, stopped=NO_GUESS)
        status: Status = ended if found is None else found.status
        stopped = limit.steps if limit.over and status == "interrupted" else None
        return Attempt(status, repr(attack), found, reason, *spent, refusal, stopped)

    def serialized(self) -> "SerializedAttack":
        """The attack with the files it may read."""
        return SerializedAttack(self)


@dataclass(frozen=True, kw_only=True)
class MembershipTask(Task):
    """One membership test on all rounds of a case. It reads `observed/` only, as an attack does."""

    @property
    def is_attack(self) -> bool:
        return False

    @property
    def searches(self) -> bool:
        return False

    @property
    def stopped(self) -> bool:
        return False

    @property
    def outcome(self) -> Path:
        """Path of the judgment's files, without suffix."""
        return judgment_path(self.folder, self.case, self.name)

    def run(self, threads: int) -> None:
        """Run the test and save the judgment."""
        torch.set_num_threads(threads)
        test: MembershipTest = MEMBERSHIP_TESTS.build(self.part)
        judgment = judge_members(
            test,
            self.source.open(self.device),
            self.source.observed,
            seed=self.seed,
            device=self.device,
            progress=self.progress,
        )
        save_judgment(judgment, self.outcome)


def judgment_path(folder: Path, case: str, test: str) -> Path:
    """Path of a judgment's files in a run folder, without suffix."""
    return folder / "membership" / case / test.replace(":", ".")


@dataclass(frozen=True)
class SerializedAttack:
    """An attack to run on another machine, with the files of its `observed/` alone."""

    task: Task

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", replace(self.task, source=self.task.source.for_attack(), clock=None))

    @property
    def key(self) -> str:
        return str(self.task.source.observed)

    def load(self) -> dict[str, bytes]:
        """The bytes of all files of `observed/`, by path relative to it."""
        folder = self.task.source.observed
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def run(self, loaded: Mapping[str, bytes], folder: Path, threads: int) -> None:
        """Unpack the files, attack, and write the outcome below `folder`."""
        with scratch() as place:
            for name, content in loaded.items():
                path = place / "observed" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            source = replace(self.task.source, observed=place / "observed")
            replace(self.task, source=source, folder=folder).run(threads)


def check_reconstruction(found: object, transcript: Transcript) -> None:
    """Raise `ValueError` for a reconstruction that cannot be scored; a third-party attack may return anything."""
    if not isinstance(found, Reconstruction):
        raise ValueError(f"the attack returned a {type(found).__name__} instead of a seepage.Reconstruction")
    shape = transcript.knowledge.input_shape
    if found.space == "input" and tuple(found.inputs.shape[1:]) != shape:
        raise ValueError(f"the attack returned guesses of shape {tuple(found.inputs.shape[1:])} instead of {shape}")
    if not found.inputs.isfinite().all():
        raise ValueError("the attack returned NaN or infinite values")


class _Meter:
    """Sums up the progress of all tasks from the lines that the workers append to their logs."""

    def __init__(self, tasks: Sequence[Task], log: Path, show: ProgressCallback, until: float = math.inf) -> None:
        self.shares = {(task.case, task.name, task.t): 0.0 for task in tasks}
        self.several = len({task.case for task in tasks}) > 1
        self.show, self.until, self.latest = show, until, Doing()
        self.follower = LogFollower(log, log.stat().st_size if log.exists() else 0)

    def look(self) -> None:
        """Read the new lines and show the total progress."""
        for line in self.follower.fresh().splitlines():
            event = _event(line)
            if event is None:
                continue
            key = (event["case"], event["attack"], event["round"])
            if key in self.shares and self.shares[key] < 1:
                self.shares[key] = event["done"] / max(1, event["total"]) * 0.99
            name = f"{event['attack']} on {event['case']}" if self.several else str(event["attack"])
            at = None if event.get("objective") is None else f"objective {event['objective']:.3g}"
            step = f"step {event['done']:,} of at most {event['total']:,}"
            self.latest = Doing(", ".join(filter(None, (name, step, at))))
        left = None if math.isinf(self.until) else max(0.0, self.until - time.monotonic())
        self.show(sum(self.shares.values()), len(self.shares), replace(self.latest, left=left))

    def finish(self, task: Work) -> None:
        assert isinstance(task, Task)
        self.shares[task.case, task.name, task.t] = 1.0
        if (
            stopped_after(task.outcome) is None
        ):  # a task that began here, and left a checkpoint, may have ended elsewhere
            task.progress.clear()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Call `look` every `POLL_SECONDS` seconds from a thread while the `with` block runs."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(POLL_SECONDS):
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
    """A parsed progress line, or None for an incomplete line left by a killed worker."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.keys() >= {"case", "attack", "round", "done", "total"} else None


def load_optimizers() -> None:
    """Import what torch loads at the first use of an optimizer, which takes a second or more."""
    torch.optim.SGD([torch.zeros(1)], lr=1.0)


def attack_names(parts: Sequence[Spec]) -> list[str]:
    """A unique name for each attack of a recipe: its label or else its registered name, numbered if used twice.

    The seed of an attack is derived from its name, so a labeled attack gives the same numbers at any place in the list.

    >>> attack_names([Spec("dlg"), Spec("linear"), Spec("dlg", {"steps": 9}), Spec("dlg", label="wide")])
    ['dlg', 'linear', 'dlg-2', 'wide']
    >>> attack_names([Spec("dlg", label="dlg-2"), Spec("dlg"), Spec("dlg")])
    ['dlg-2', 'dlg', 'dlg-3']
    """
    bases = [part.label or part.use.replace(":", ".") for part in parts]
    names: list[str] = []
    for place, base in enumerate(bases):
        number = bases[:place].count(base) + 1
        name = base if number == 1 else f"{base}-{number}"
        while name in names or (number > 1 and name in bases):  # the numbered name is another attack's label
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def ready_for(
    recipes: Sequence[Recipe], folder: Path, jobs: int | None, on: Executor | None
) -> AbstractContextManager[Executor]:
    """The executor for `attack_cases`, made ready while cases are still being recorded; arguments as there."""
    if is_all_recorded(recipes, folder):
        return nullcontext(on or LocalExecutor())
    attacked = sum(len(one.attack) * max(one.batch.count, one.rounds.count if one.rounds else 0) for one in recipes)
    tested = sum(len(one.membership.tests) for one in recipes if one.membership is not None)
    return (on or LocalExecutor()).ready(jobs, attacked + tested, recipes[0].device, load_optimizers)


def attack_cases(
    sources: Sequence[Source],
    folder: Path,
    jobs: int | None = None,
    show: ProgressCallback = no_progress,
    *,
    on: Executor | None = None,
    until: float = math.inf,
    repeated: Mapping[str, int] | None = None,
) -> Plan:
    """Run every attack on every round of every case that has no outcome yet.

    Args:
        sources: The cases.
        folder: The run folder.
        jobs: Number of attacks that run in parallel; None: one per core.
        show: Called with progress messages.
        on: Executor that runs the attacks; None: worker processes on this machine.
        until: When the attacks end, by `time.monotonic`: what is still searching then is stopped with its best guess,
            and goes on where it stood when this is called again. Infinite: all come to their own end.
        repeated: Steps after which attacks end whatever the time, by case, attack and round: as in a run before.

    Returns:
        Number of attacks that ran in parallel on the device of the first case.

    Raises:
        SeepageError: Where a round cannot be read or a worker died (out of memory, most likely).
        KeyboardInterrupt: After Ctrl-C; finished outcomes and checkpoints stay, and the same command resumes from them.
    """
    # Each attack is constructed once, not once per case.
    made = {repr(spec): spec for source in sources for spec in source.recipe.attack}
    attacks = {key: ATTACKS.build(spec) for key, spec in made.items()}
    queues = [_CaseQueue.of(source, attacks, folder, repeated or {}) for source in sources if not source.skipped]
    todo = [task for queue in queues for stage in queue.stages for task in stage if not task.done]
    executor = on or LocalExecutor()
    # Cases are grouped by device; the groups run in turn, each with the parallelism that suits its device.
    devices = dict.fromkeys(source.recipe.device for source in sources)
    counts = {device: sum(task.device == device for task in todo) for device in devices}
    plans = {device: executor.plan(jobs, count, device) for device, count in counts.items()}
    if todo:
        meter = _Meter(todo, folder / "progress.jsonl", show, until)
        with meter.watched():
            for device, plan in plans.items():
                group = [queue for queue in queues if queue.source.recipe.device == device]
                with executor.kept(plan) as runner:
                    _in_time(group, runner, plan, folder, meter, RunClock(until, plan.jobs))
    return plans[sources[0].recipe.device]


def _in_time(
    queues: Sequence["_CaseQueue"], runner: Executor, plan: Plan, folder: Path, meter: "_Meter", clock: "RunClock"
) -> None:
    """Run all tasks, stage by stage; then, in whatever time is left, those again that the clock has stopped."""

    def finish(work: Work) -> None:
        assert isinstance(work, Task)
        clock.end(work)
        meter.finish(work)

    def carry_out(tasks: Sequence[Task]) -> None:
        timed = [replace(task, clock=clock) for task in tasks]
        runner.run(_dearest_first(timed) if plan.jobs > 1 else timed, plan, folder, finish)

    clock.waiting = sum(task.searches for queue in queues for stage in queue.stages for task in stage if not task.done)
    for own in _places(queues):
        if tasks := [task for queue, place in own for task in queue.left(place, clock, meter.finish)]:
            carry_out(tasks)
    while clock.left > LEAST_SECONDS:
        again = [task for queue in queues for stage in queue.stages for task in stage if task.stopped]
        if not again:
            break
        clock.waiting = sum(task.searches for task in again)
        carry_out(again)


@dataclass
class RunClock:
    """How the time that is left is shared among the searches of a run.

    Attributes:
        until: When it is over, by `time.monotonic`.
        jobs: Tasks that run side by side.
        waiting: Searches that are still to come.
        running: Searches that have begun and have not ended.
    """

    until: float
    jobs: int
    waiting: int = 0
    running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def left(self) -> float:
        """Seconds that are left; infinite where there is no limit."""
        return max(0.0, self.until - time.monotonic())

    def share(self, task: Task) -> float:
        """Seconds that a task has which begins now: all that is left, of a search an even share of it."""
        if not task.is_attack:
            return math.inf
        if not task.searches:
            return self.left
        with self._lock:
            several = max(1, self.waiting + self.running)
            self.waiting, self.running = self.waiting - 1, self.running + 1
        return self.left * min(1.0, self.jobs / several)

    def end(self, task: Task) -> None:
        """A task has ended."""
        if task.searches:
            with self._lock:
                self.running -= 1


@dataclass(frozen=True)
class _CaseQueue:
    """The tasks of one case.

    Attributes:
        source: The case.
        stages: Tasks that wait for those of the stages before; what came of these may make them unnecessary.
    """

    source: Source
    stages: tuple[list[Task], ...]

    @classmethod
    def of(
        cls, source: Source, attacks: Mapping[str, Attack], folder: Path, repeated: Mapping[str, int]
    ) -> "_CaseQueue":
        """The tasks of one case; `attacks` are by the `repr` of their specs."""
        recipe = source.recipe
        specs = dict(zip(attack_names(recipe.attack), recipe.attack, strict=True))
        made = {name: (spec.use, attacks[repr(spec)]) for name, spec in specs.items()}
        tasks = {
            name: [_task(Task, source, folder, name, spec, t) for t in range(source.rounds(made[name][1]))]
            for name, spec in specs.items()
        }
        for own in tasks.values():
            own[:] = [replace(task, steps=repeated.get(str(task.outcome.relative_to(folder)))) for task in own]
        order = [list(specs)] if recipe.all_attacks else in_stages(made)
        stages = [[task for name in names for task in tasks[name]] for names in order]
        if recipe.membership is not None and (source.observed / FILE).exists():
            # Nothing waits for a membership test: it keeps a core busy that has no attack to run.
            named = ((use.replace(":", "."), Spec(use)) for use in recipe.membership.tests)
            stages[-1] += [_task(MembershipTask, source, folder, name, part) for name, part in named]
        return cls(source, tuple(stages))

    def left(self, number: int, clock: RunClock, finish: Callable[[Task], None]) -> list[Task]:
        """The tasks of a stage that still have to run.

        For each attack that need not run, an outcome `not_needed` with the reason is written, and `finish` is called.

        Args:
            number: Index of the stage.
            clock: On which what is left out takes no time.
            finish: Called with each task that is left out.
        """
        tasks = [task for task in self.stages[number] if not task.done]
        before = [task.outcome.parent for stage in self.stages[:number] for task in stage]
        facts, stated = self.source.facts, self.source.batch_size
        size = facts.batch_size if stated is None else stated
        # Of rounds over one data set each shows some examples again: no count of a round says that all are found.
        known = bool(tasks and before) and not self.source.recipe.all_attacks and "indices" not in facts.known
        names = decided_by(list(dict.fromkeys(before)), facts.rounds, size) if known else []
        if not names or size is None:
            return tasks
        inferred = self.source.inferred is not None or (stated is None and "batch size" in facts.said)
        reason = not_needed(names, size * facts.rounds, inferred=inferred)
        # A user-defined attack is what the run is for.
        needless = [task for task in tasks if task.is_attack and not ATTACKS.is_foreign(task.part.use)]
        for task in needless:
            save_attempt(Attempt("not_needed", repr(ATTACKS.build(task.part)), None, reason), task.outcome)
            clock.waiting -= task.searches
            finish(task)
        return [task for task in tasks if task not in needless]


def _places(queues: Sequence[_CaseQueue]) -> list[list[tuple[_CaseQueue, int]]]:
    """For each stage of a run, its cases, each with the index of the case's own stage.

    A case with fewer stages joins at the end, so that the expensive attacks of all cases run side by side.
    """
    most = max((len(queue.stages) for queue in queues), default=0)
    own = [[(queue, number - most + len(queue.stages)) for queue in queues] for number in range(most)]
    return [[(queue, place) for queue, place in stage if place >= 0] for stage in own]


def _dearest_first(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, the longest first, so that parallel processes end at about the same time.

    The order of the attack registry stands for run time. Foreign attacks and membership tests, which are not in it,
    come first: a foreign attack may take any time. Within one attack later cases come first, as they tend to be larger.
    """
    places = {use: place for place, use in enumerate(ATTACKS)}  # cheapest first
    return sorted(tasks, key=lambda task: places.get(task.part.use, len(places)))[::-1]


def _task(make: type[Task], source: Source, folder: Path, name: str, part: Spec, t: int = 0) -> Task:
    """The task of one attack on one round, or of a membership test; its seed is by its own name and its case's."""
    # A single case is called `cell` in its seeds, as when the rows of `results/` were recorded.
    case = "cell" if source.name == "case" else source.name
    purpose = f"attack/{case}/{name}" if make is Task else f"membership/{case}/{part.use}"
    return make(
        case=source.name,
        name=name,
        part=part,
        t=t,
        seed=generator(source.recipe.seed, purpose, t).initial_seed() % 2**31,
        device=source.recipe.device,
        source=source.for_attack(),
        folder=folder,
    )
