"""Cuts the searches of a run so that its attacks end within the minutes that they were given.

Closed forms are not cut. Before the searches of a stage begin, the longest time of each is estimated from one
update of its case's client. Only where that may not fit, a few steps are timed, of the most expensive searches, until
the others fit in any case. The time of all of them is then compared with what is left of the minutes:

- steps of all of them are cut in proportion, to a quarter at the least;
- where a quarter is too much, searches are left out, the most expensive first, until a quarter of the others fits.

The plan depends on the speed of the machine. So it is written down, in `plan.json` of the run folder, before any of it
runs: a resumed run, and one repeated from the folder's recipe, follow it, with the same bits.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import Field

from seepage.attacks import Attack
from seepage.attacks.base import Silent
from seepage.audit.case import Cut, RunBudget, minutes_words
from seepage.base.schema import JsonRecord, parse
from seepage.base.storage import SCHEMA, check_schema, read_json, write_json
from seepage.errors import SeepageError
from seepage.federation.types import Batch, Transcript

PLAN = "plan.json"
"""File of a run folder with its plan."""
FLOOR = 0.25
"""Least share of its steps with which a search is run; with fewer it is left out."""
TIMED_STEPS = 3
"""Steps of a search that are timed; the first of them may be slower."""
PASS = 5.0
"""Time of one evaluation of a search in updates of the client, roughly at most: it differentiates twice."""
SOON = 10.0
"""Time in seconds that searches may take without being announced; of less no number is shown."""
LONG_STEP, PATIENCE = 0.3, 5.0
"""Times in seconds. A step up to `LONG_STEP`: a few steps of each search are timed; else two of one search. All timing
together up to `PATIENCE`: beyond, the remaining cases are estimated from the timed ones."""
SETUP = 100
"""Evaluations whose time a search takes before its first step, such as to fit a decoder, roughly and at most."""


def read_budget(folder: Path) -> RunBudget | None:
    """The plan of a run folder; None where it has none."""
    path = folder / PLAN
    if not path.exists():
        return None
    found = read_json(path)
    check_schema(found, path)
    return parse(RunBudget, {key: value for key, value in found.items() if key != "schema"}, str(path))


def recorded_plan(recipe: str | None) -> RunBudget | None:
    """The plan beside a `recipe.toml` that lies in a run folder; None where there is none."""
    path = None if recipe is None else Path(recipe)
    return read_budget(path.parent) if path is not None and path.name == "recipe.toml" and path.is_file() else None


def write_budget(folder: Path, budget: RunBudget) -> None:
    """Keep a plan in a run folder."""
    write_json(folder / PLAN, {"schema": SCHEMA, **budget.model_dump(mode="json")})


@dataclass(frozen=True)
class Searching:
    """An attack on one case that is about to run, as the planner needs it.

    Attributes:
        case: Name of the case.
        name: Name of the attack in the run.
        attack: The attack.
        rounds: Number of rounds that it runs on.
        seed: Seed of the first round.
        opened: Opens the first round; called only where the time is estimated.
        fewer: Builds the attack with this number of steps; None where it has no such option.
    """

    case: str
    name: str
    attack: Attack
    rounds: int
    seed: int
    opened: Callable[[], Transcript]
    fewer: Callable[[int], Attack | None]

    @property
    def key(self) -> str:
        return f"{self.case}/{self.name}"

    @property
    def steps(self) -> int:
        """Number of steps it is configured with; 0 where they cannot be cut."""
        able = self.attack.passes > 0 and self.fewer(1) is not None
        return steps_of(self.attack) if able else 0


def steps_of(attack: Attack) -> int:
    """Steps of an attack's search, or of the search that it guides; 0 where it has none."""
    return int(getattr(attack, "steps", None) or getattr(getattr(attack, "search", None), "steps", None) or 0)


@dataclass
class Planner:
    """Plans the searches of a run, stage by stage.

    Attributes:
        budget: The plan so far.
        folder: The run folder.
        jobs: Searches that run side by side.
        known: Seconds of searches that were timed already, by their keys.
        clock: Seconds, from any start.
        started: When the attacks began.
    """

    budget: RunBudget
    folder: Path
    jobs: int
    known: Mapping[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter
    started: float = field(default_factory=time.perf_counter)

    def plan(self, searches: Sequence[Searching]) -> None:
        """Plan the searches that are not planned yet, and write down which of them are cut."""
        new = [one for one in searches if one.key not in self.budget.planned and one.steps]
        if not new:
            return
        seconds = {
            **at_most(new, updates_of(new)),
            **{one.key: self.known[one.key] for one in new if one.key in self.known},
        }
        for one in sorted(new, key=lambda one: seconds[one.key], reverse=True):
            # The most expensive ones are timed, until all others fit even at the longest time they may take.
            if sum(seconds.values()) / self.jobs <= self._left:
                break
            if one.key not in self.known:
                seconds[one.key] = timed(one) * one.rounds
        shares = fitting({key: cost / self.jobs for key, cost in seconds.items()}, self._left)
        cuts = [
            Cut(
                case=one.case,
                attack=one.name,
                steps=max(1, int(shares[one.key] * one.steps)) if shares[one.key] else 0,
                of=one.steps,
                seconds=round(seconds[one.key], 1),
            )
            for one in new
            if shares[one.key] < 1
        ]
        self.budget = self.budget.model_copy(update={"cut": [*self.budget.cut, *cuts]})
        keys = [*self.budget.planned, *(one.key for one in new)]
        self.budget = self.budget.model_copy(update={"planned": keys})
        write_budget(self.folder, self.budget)

    @property
    def _left(self) -> float:
        """Seconds that are left."""
        return 60 * self.budget.minutes - (self.clock() - self.started)


def updates_of(searches: Sequence[Searching]) -> dict[str, float]:
    """Seconds of one update of each case's client."""
    found: dict[str, float] = {}
    for one in searches:
        if one.case not in found:
            found[one.case] = update_seconds(one.opened())
    return found


def at_most(searches: Sequence[Searching], updates: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each search takes at most, by the time of one update of its case's client."""
    return {one.key: PASS * updates[one.case] * (SETUP + one.attack.passes) * one.rounds for one in searches}


def time_words(seconds: float) -> str:
    """A time in words: in seconds below a minute and a half.

    >>> time_words(0.2), time_words(80.0), time_words(100.0)
    ('1 s', '80 s', '2 minutes')
    """
    return f"{max(1, round(seconds))} s" if seconds < 90 else minutes_words(seconds)


class Estimate(JsonRecord):
    """Estimated time of a run's searches, shown before they begin. Closed forms are not timed.

    Attributes:
        seconds: Wall-clock seconds of all searches, run in parallel as configured, if none is cut.
        searches: Name of each attack, to its seconds over all cases and rounds.
        minutes: Limit in minutes of the attacks; None: no limit.
    """

    seconds: float
    searches: dict[str, float] = Field(default_factory=dict)
    minutes: float | None = None

    @property
    def line(self) -> str:
        """In words.

        >>> Estimate(seconds=100.0, searches={"gradient_matching": 95.0, "idlg": 5.0}, minutes=10).line
        'its searches take about 2 minutes (gradient_matching 2 minutes, idlg 5 s), less where one ends early'
        >>> Estimate(seconds=3.0, searches={"idlg": 5.0}).line
        'its searches take seconds (idlg)'
        >>> Estimate(seconds=3000.0, searches={"gradient_matching": 3000.0}, minutes=10).line
        'its searches would take about 50 minutes (gradient_matching 50 minutes), and are cut to 10 minutes: --minutes'
        >>> Estimate(seconds=0.0).line
        'none of its searches applies or is needed as it stands; closed forms are not timed'
        """
        if not self.searches:
            return "none of its searches applies or is needed as it stands; closed forms are not timed"
        dearest = sorted(self.searches.items(), key=lambda item: -item[1])
        if self.seconds <= SOON:
            return f"its searches take seconds ({', '.join(name for name, _ in dearest)})"
        each = ", ".join(f"{name} {time_words(seconds)}" for name, seconds in dearest)
        cut = self.minutes is not None and self.seconds > 60 * self.minutes
        words = f"its searches {'would ' * cut}take about {time_words(self.seconds)} ({each})"
        return (
            f"{words}, and are cut to {minutes_words(60 * (self.minutes or 0))}: --minutes"
            if cut
            else f"{words}, less where one ends early"
        )


def estimated(stages: Sequence[Sequence[Searching]], jobs: int, soon: float = 0.0) -> tuple[float, dict[str, float]]:
    """Seconds of all searches, stage after stage, and of each by its key: by its first steps on its case.

    Args:
        stages: Searches; those of one stage run side by side.
        jobs: How many at a time.
        soon: Seconds up to which nobody asks: then nothing is timed, and the two are 0 and empty.
    """
    every = [one for stage in stages for one in stage if one.steps]
    updates = updates_of(every)
    seconds = at_most(every, updates)
    if sum(seconds.values()) <= soon:
        return 0.0, {}
    started, ratios = time.perf_counter(), dict[str, float]()
    # Where steps are long, or cases many, searches are estimated by what others took of the most that they may take.
    for one in sorted(every, key=lambda one: one.attack.passes / one.steps):
        most, late = seconds[one.key], time.perf_counter() - started > PATIENCE
        slow = PASS * updates[one.case] * one.attack.passes / one.steps > LONG_STEP
        known = next((ratios[key] for key in (one.name, one.case) if key in ratios), None)
        if not applies(one):
            seconds[one.key] = 0.0
        elif (slow or late) and known is not None and most < math.inf:
            seconds[one.key] = known * most
        else:
            seconds[one.key] = timed(one, 2 if slow else TIMED_STEPS) * one.rounds
            if 0 < seconds[one.key] < most < math.inf:
                ratios[one.name] = ratios[one.case] = seconds[one.key] / most
    total = 0.0
    for stage in stages:
        own = [(seconds[one.key], one.rounds) for one in stage if one.steps]
        # One that is longer than the others together keeps one of the jobs busy to the end.
        longest = max((cost / rounds for cost, rounds in own), default=0.0)
        total += max(longest, sum(cost for cost, _ in own) / jobs)
    return total, seconds


def fitting(seconds: Mapping[str, float], left: float) -> dict[str, float]:
    """The share of its steps with which each search runs, so that all of them take no more than is left.

    >>> fitting({"a": 10.0, "b": 20.0}, 60.0)
    {'a': 1.0, 'b': 1.0}
    >>> fitting({"a": 10.0, "b": 20.0}, 15.0)
    {'a': 0.5, 'b': 0.5}
    >>> fitting({"a": 10.0, "b": 200.0}, 15.0)
    {'a': 1.0, 'b': 0.0}
    """
    kept = dict(seconds)
    while kept and FLOOR * sum(kept.values()) > left:
        del kept[max(kept, key=lambda key: kept[key])]
    share = min(1.0, max(0.0, left) / sum(kept.values())) if sum(kept.values()) else 1.0
    return {key: share if key in kept else 0.0 for key in seconds}


def applies(search: Searching) -> bool:
    """Whether a search can say anything about its case; a user-defined one that fails is left to its row."""
    try:
        search.attack.check(search.opened())
    except Exception:
        return False
    return True


class _Stopwatch(Silent):
    """Notes when each step was reported."""

    def __init__(self) -> None:
        self.at: list[tuple[int, float]] = []

    def report(self, done: int, total: int, objective: float) -> None:
        self.at.append((done, time.perf_counter()))


def load_optimizers() -> None:
    """Import what torch loads at the first use of an optimizer, which takes a second or more."""
    torch.optim.SGD([torch.zeros(1)], lr=1.0)


def timed(search: Searching, steps: int = TIMED_STEPS) -> float:
    """Seconds that a search takes on one round, from a few of its steps; 0 where it does not apply, or fails at once.

    What it does before its first step is counted as it is.
    """
    few = search.fewer(min(steps, search.steps))
    if few is None:
        return 0.0
    load_optimizers()
    try:
        seen = search.opened()
        made = steps_of(search.attack.fitted(seen))  # a step of L-BFGS stands for many of those that were asked for
        watch, started = _Stopwatch(), time.perf_counter()
        few(seen, seed=search.seed, progress=watch)
    except SeepageError:
        return 0.0
    except Exception:  # a user-defined attack, whose fault its row will say
        return 0.0
    if not watch.at:
        return time.perf_counter() - started
    (first, begun), (last, ended) = watch.at[0], watch.at[-1]
    step = (ended - begun) / (last - first) if last > first else (ended - started) / last
    return max(0.0, begun - started - first * step) + made * step


def update_seconds(transcript: Transcript) -> float:
    """Seconds of one update of the client on made-up examples; infinite where that cannot be computed."""
    knowledge, seen = transcript.knowledge, transcript[0]
    like = next(iter(seen.params.values()))
    size = seen.batch_size or 1
    inputs = torch.full((size, *knowledge.input_shape), 0.5, dtype=like.dtype, device=like.device)
    batch = Batch(inputs, torch.zeros(size, dtype=torch.long, device=like.device))
    try:
        for _ in range(2):  # the first is slower
            started = time.perf_counter()
            knowledge.client(knowledge.model, seen.params, batch, buffers=seen.buffers)
    except Exception:  # values and maps in place of classes, tokens in place of images: then steps are timed
        return float("inf")
    return time.perf_counter() - started
