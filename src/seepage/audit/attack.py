"""Run attacks on recorded rounds in parallel. A worker process gets only folders that an attacker may read."""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.membership import MEMBERSHIP_TESTS, MembershipTest
from seepage.audit.attempt import Attempt, FolderProgress, has_attempt, save_attempt, tried
from seepage.audit.budget import SOON, Estimate, Planner, Searching, estimated, load_optimizers, read_budget
from seepage.audit.candidates import FILE
from seepage.audit.case import RunBudget
from seepage.audit.decided import decided_by, in_stages, not_needed
from seepage.audit.membership import judge_members, save_judgment
from seepage.audit.recipe.case import Recipe
from seepage.audit.record import case_folders, is_all_recorded, is_skipped
from seepage.base.executor import Executor, LocalExecutor, LogFollower, Plan, Work
from seepage.base.lock import scratch
from seepage.base.nn import generator
from seepage.base.progress import Doing, ProgressCallback, no_progress
from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.transcript.foreign import Facts, read_facts
from seepage.federation.transcript.recorded import RecordedTranscript, open_transcript
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.types import Architecture, Reconstruction, Transcript

READS_ROWS = "linear"
"""The attack that certifies what closed forms reveal row by row."""
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
        recipe: The recipe that recorded the case; None where another run recorded it.
    """

    name: str
    observed: Path
    private: Path | None
    architecture: Architecture | None = None
    batch_size: int | None = None
    trust: bool = False
    recipe: Recipe | None = None
    inferred: str | None = None

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
        """This source without the truth."""
        return replace(self, private=None)

    def rounds(self, attack: Attack) -> int:
        """Number of runs of an attack on this case: one on all rounds together, or one per round."""
        if attack.rounds == "all":
            return 1
        if "indices" not in self.facts.known:
            return self.facts.rounds
        # Rounds that draw from one data set may number thousands; only the first `batch.count` of them are attacked.
        return min(self.facts.rounds, 1 if self.recipe is None else self.recipe.batch.count)


def own_source(recipe: Recipe, recipes: Sequence[Recipe], folder: Path) -> Source:
    observed, private = case_folders(folder, recipe.case, len(recipes))
    return Source(recipe.case, observed, private, trust=True, recipe=recipe)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One attack on one round (or, for attacks that need all rounds, on all of them).

    Attributes:
        source: The recorded rounds; without the truth.
        folder: The run folder.
        note: What a reader should know of how it was run.
    """

    case: str
    name: str
    part: Spec
    t: int
    seed: int
    device: str
    source: Source
    folder: Path
    note: str = ""

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
        return has_attempt(self.outcome)

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
        transcript = self.source.open(self.device)
        outcome = self._attempt(attack, OneRound(transcript, self.t) if attack.rounds == "one" else transcript)
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        save_attempt(outcome, self.outcome)
        self.progress.clear()

    def _attempt(self, attack: Attack, transcript: Transcript) -> Attempt:
        """The attack's reconstruction with its wall-clock and processor seconds, or the reason why there is none."""

        def attacked() -> Reconstruction:
            found = attack(transcript, seed=self.seed, progress=self.progress)
            check_reconstruction(found, transcript)
            return replace(found, notes=(*found.notes, self.note)) if self.note else found

        found, status, reason, spent = tried(attacked)
        return Attempt(status if found is None else found.status, repr(attack), found, reason, *spent)

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
    """An attack to run on another machine, with the files of its `observed/` and neither truth nor recipe.

    The recipe is left out because its seed would redraw the private examples from their data set.
    """

    task: Task

    def __post_init__(self) -> None:
        alone = replace(self.task.source, private=None, recipe=None)
        object.__setattr__(self, "task", replace(self.task, source=alone))

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

    def __init__(self, tasks: Sequence[Task], log: Path, show: ProgressCallback) -> None:
        self.shares = {(task.case, task.name, task.t): 0.0 for task in tasks}
        self.several = len({task.case for task in tasks}) > 1
        self.show = show
        self.follower = LogFollower(log, log.stat().st_size if log.exists() else 0)

    def look(self) -> None:
        """Read the new lines and show the total progress."""
        latest = Doing()
        for line in self.follower.fresh().splitlines():
            event = _event(line)
            if event is None:
                continue
            key = (event["case"], event["attack"], event["round"])
            if key in self.shares and self.shares[key] < 1:
                self.shares[key] = event["done"] / max(1, event["total"]) * 0.99
            latest = Doing(f"{event['attack']} on {event['case']}" if self.several else str(event["attack"]))
        self.show(sum(self.shares.values()), len(self.shares), latest)

    def finish(self, task: Work) -> None:
        assert isinstance(task, Task)
        self.shares[task.case, task.name, task.t] = 1.0
        # A task that began here, and left a checkpoint, may have ended on another machine.
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
    recipes: Sequence[Recipe],
    folder: Path,
    jobs: int | None = None,
    show: ProgressCallback = no_progress,
    *,
    on: Executor | None = None,
    tell: Callable[[str], None] | None = None,
) -> Plan:
    """Run every attack on every round of every case that has no outcome yet.

    Args:
        sources: The cases.
        recipes: For each case the recipe with its attacks, seed and device.
        folder: The run folder.
        jobs: Number of attacks that run in parallel; None: one per core.
        show: Called with progress messages.
        on: Executor that runs the attacks; None: worker processes on this machine.
        tell: Called, before the attacks begin, with how long their searches take, where that is over some seconds;
            None: no estimate is made.

    Returns:
        Number of attacks that ran in parallel on the device of the first case.

    Raises:
        SeepageError: Where a round cannot be read or a worker died (out of memory, most likely).
        KeyboardInterrupt: After Ctrl-C; finished outcomes and checkpoints stay, and the same command resumes from them.
    """
    queues = _queues(sources, recipes, folder)
    todo = [task for queue in queues for stage in queue.stages for task in stage if not task.done]
    executor = on or LocalExecutor()
    # Cases are grouped by device; the groups run in turn, each with the parallelism that suits its device.
    devices = dict.fromkeys(recipe.device for recipe in recipes)
    counts = {device: sum(task.device == device for task in todo) for device in devices}
    plans = {device: executor.plan(jobs, count, device) for device, count in counts.items()}
    known: dict[str, float] = {}
    if todo and tell is not None:
        found, known = _estimate(queues, plans[recipes[0].device].jobs, recipes[0].minutes, SOON)
        if found.seconds > SOON:
            tell(found.line)
    if todo:
        meter = _Meter(todo, folder / "progress.jsonl", show)
        with meter.watched():
            for device, plan in plans.items():
                group = [queue for queue in queues if queue.recipe.device == device]
                planner = None
                if recipes[0].minutes is not None:
                    budget = read_budget(folder) or RunBudget(minutes=recipes[0].minutes)
                    planner = Planner(budget, folder, plan.jobs, known)
                with executor.kept(plan) as runner:
                    for stage in _stages(group, planner, meter.finish):
                        runner.run(_dearest_first(stage) if plan.jobs > 1 else stage, plan, folder, meter.finish)
    return plans[recipes[0].device]


def estimate(
    sources: Sequence[Source],
    recipes: Sequence[Recipe],
    jobs: int | None = None,
    on: Executor | None = None,
    *,
    revealed: Collection[str] = (),
) -> Estimate:
    """Estimated time of the searches of `attack_cases`; arguments as there. Nothing is attacked or written.

    Args:
        sources: The cases.
        recipes: The recipe of each case.
        jobs: Number of attacks that run in parallel; None: one per core.
        on: Executor that would run the attacks; None: worker processes on this machine.
        revealed: Names of the cases whose every example closed forms reveal: nothing behind `linear` is needed there.
    """
    with scratch() as folder:
        queues = _queues(sources, recipes, folder)
        count = sum(len(stage) for queue in queues for stage in queue.stages)
        plan = (on or LocalExecutor()).plan(jobs, count, recipes[0].device)
        queues = [queue.through(READS_ROWS) if queue.source.name in revealed else queue for queue in queues]
        return _estimate(queues, plan.jobs, recipes[0].minutes)[0]


def _estimate(
    queues: Sequence["_CaseQueue"], jobs: int, minutes: float | None, soon: float = 0.0
) -> tuple[Estimate, dict[str, float]]:
    """How long the searches that are yet to run take, together and by attack; and each by its key."""
    stages = [
        _searches(task for queue, place in own for task in queue.stages[place] if not task.done)
        for own in _places(queues)
    ]
    total, seconds = estimated(stages, jobs, soon)
    names: dict[str, float] = {}
    for one in (one for stage in stages for one in stage if seconds.get(one.key)):
        names[one.name] = names.get(one.name, 0.0) + seconds[one.key]
    found = {name: round(took, 1) for name, took in names.items()}
    return Estimate(seconds=round(total, 1), searches=found, minutes=minutes), seconds


def _queues(sources: Sequence[Source], recipes: Sequence[Recipe], folder: Path) -> list["_CaseQueue"]:
    # Each attack is constructed once, not once per case.
    made = {repr(spec): spec for recipe in recipes for spec in recipe.attack}
    attacks = {key: ATTACKS.build(spec) for key, spec in made.items()}
    pairs = [(source, recipe) for source, recipe in zip(sources, recipes, strict=True) if not source.skipped]
    return [_CaseQueue.of(source, recipe, attacks, folder) for source, recipe in pairs]


@dataclass(frozen=True)
class _CaseQueue:
    """The tasks of one case.

    Attributes:
        source: The case.
        recipe: Its recipe.
        stages: Tasks that wait for those of the stages before; what came of these may make them unnecessary.
    """

    source: Source
    recipe: Recipe
    stages: tuple[list[Task], ...]

    @classmethod
    def of(cls, source: Source, recipe: Recipe, attacks: Mapping[str, Attack], folder: Path) -> "_CaseQueue":
        """The tasks of one case; `attacks` are by the `repr` of their specs."""
        specs = dict(zip(attack_names(recipe.attack), recipe.attack, strict=True))
        made = {name: (spec.use, attacks[repr(spec)]) for name, spec in specs.items()}
        tasks = {
            name: [_task(Task, source, recipe, folder, name, spec, t) for t in range(source.rounds(made[name][1]))]
            for name, spec in specs.items()
        }
        order = [list(specs)] if recipe.all_attacks else in_stages(made)
        stages = [[task for name in names for task in tasks[name]] for names in order]
        if recipe.membership is not None and (source.observed / FILE).exists():
            # Nothing waits for a membership test: it keeps a core busy that has no attack to run.
            named = ((use.replace(":", "."), Spec(use)) for use in recipe.membership.tests)
            stages[-1] += [_task(MembershipTask, source, recipe, folder, name, part) for name, part in named]
        return cls(source, recipe, tuple(stages))

    def through(self, attack: str) -> "_CaseQueue":
        """The stages up to the one of this attack; all where it is not among them, or where all attacks run."""
        at = [number for number, stage in enumerate(self.stages) if any(task.part.use == attack for task in stage)]
        return replace(self, stages=self.stages[: at[0] + 1]) if at and not self.recipe.all_attacks else self

    def left(self, number: int, finish: Callable[[Task], None]) -> list[Task]:
        """The tasks of a stage that still have to run.

        For each attack that need not run, an outcome `not_needed` with the reason is written, and `finish` is called.

        Args:
            number: Index of the stage.
            finish: Called with each task that is left out.
        """
        tasks = [task for task in self.stages[number] if not task.done]
        before = [task.outcome.parent for stage in self.stages[:number] for task in stage]
        facts, stated = self.source.facts, self.source.batch_size
        size = facts.batch_size if stated is None else stated
        # Of rounds over one data set each shows some examples again: no count of a round says that all are found.
        known = bool(tasks and before) and not self.recipe.all_attacks and "indices" not in facts.known
        names = decided_by(list(dict.fromkeys(before)), facts.rounds, size) if known else []
        if not names or size is None:
            return tasks
        inferred = self.source.inferred is not None or (stated is None and "batch size" in facts.said)
        reason = not_needed(names, size * facts.rounds, inferred=inferred)
        # A user-defined attack is what the run is for.
        needless = [task for task in tasks if task.is_attack and not ATTACKS.is_foreign(task.part.use)]
        for task in needless:
            save_attempt(Attempt("not_needed", repr(ATTACKS.build(task.part)), None, reason), task.outcome)
            finish(task)
        return [task for task in tasks if task not in needless]


def _places(queues: Sequence[_CaseQueue]) -> list[list[tuple[_CaseQueue, int]]]:
    """For each stage of a run, its cases, each with the index of the case's own stage.

    A case with fewer stages joins at the end, so that the expensive attacks of all cases run side by side.
    """
    most = max((len(queue.stages) for queue in queues), default=0)
    own = [[(queue, number - most + len(queue.stages)) for queue in queues] for number in range(most)]
    return [[(queue, place) for queue, place in stage if place >= 0] for stage in own]


def _stages(
    queues: Sequence[_CaseQueue], planner: Planner | None, finish: Callable[[Task], None]
) -> Iterator[list[Task]]:
    """The tasks of all cases, stage by stage; a stage's tasks are chosen once the stages before it are done."""
    for own in _places(queues):
        tasks = [task for queue, place in own for task in queue.left(place, finish)]
        if planner is not None:
            tasks = _within(planner, tasks, finish)
        if tasks:
            yield tasks


def _within(planner: Planner, tasks: Sequence[Task], finish: Callable[[Task], None]) -> list[Task]:
    """The tasks that fit the time budget, with their steps cut to it.

    For each other task an outcome `not_tried` with the reason is written, and `finish` is called.
    """
    planner.plan(_searches(tasks))
    found = []
    for task in tasks:
        cut = planner.budget.of(task.case, task.name) if task.is_attack else None
        if cut is None:
            found.append(task)
        elif cut.steps:
            found.append(replace(task, part=task.part.with_options(steps=cut.steps), note=cut.words))
        else:
            reason = f"{cut.words}, which --minutes {planner.budget.minutes:g} does not have; --all runs every attack"
            save_attempt(Attempt("not_tried", repr(ATTACKS.build(task.part)), None, reason), task.outcome)
            finish(task)
    return found


def _searches(tasks: Iterable[Task]) -> list[Searching]:
    """The planner's entries for these tasks: one for each case and attack; membership tests have none."""
    by_attack: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        if task.is_attack:
            by_attack.setdefault((task.case, task.name), []).append(task)
    return [_searching(own) for own in by_attack.values()]


def _searching(tasks: Sequence[Task]) -> Searching:
    """The planner's entry for one attack on one case.

    Args:
        tasks: The attack's tasks, one per round; all of the same case and the same attack, so that the first one stands
            for all of them.
    """
    first = tasks[0]
    attack = ATTACKS.build(first.part)

    def open_first_round() -> Transcript:
        transcript = first.source.open(first.device)
        return OneRound(transcript, first.t) if attack.rounds == "one" else transcript

    def with_steps(steps: int) -> Attack | None:
        try:
            return ATTACKS.build(first.part.with_options(steps=steps))
        except SeepageError:  # the attack has no option `steps`, or does not accept so few
            return None

    return Searching(
        case=first.case,
        name=first.name,
        attack=attack,
        rounds=len(tasks),
        seed=first.seed,
        opened=open_first_round,
        fewer=with_steps,
    )


def _dearest_first(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, the longest first, so that parallel processes end at about the same time.

    The order of the attack registry stands for run time. Foreign attacks and membership tests, which are not in it,
    come first: a foreign attack may take any time. Within one attack later cases come first, as they tend to be larger.
    """
    places = {use: place for place, use in enumerate(ATTACKS)}  # cheapest first
    return sorted(tasks, key=lambda task: places.get(task.part.use, len(places)))[::-1]


def _task(make: type[Task], source: Source, recipe: Recipe, folder: Path, name: str, part: Spec, t: int = 0) -> Task:
    """The task of one attack on one round, or of a membership test; its seed is by its own name and its case's."""
    # A single case is called `cell` in its seeds, as when the rows of `results/` were recorded.
    case = "cell" if source.name == "case" else source.name
    purpose = f"attack/{case}/{name}" if make is Task else f"membership/{case}/{part.use}"
    return make(
        case=source.name,
        name=name,
        part=part,
        t=t,
        seed=generator(recipe.seed, purpose, t).initial_seed() % 2**31,
        device=recipe.device,
        source=source.for_attack(),
        folder=folder,
    )
