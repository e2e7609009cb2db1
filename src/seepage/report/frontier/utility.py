"""The cost of a defense: accuracy after federated training with it, client seconds, bytes sent, and its epsilon."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.plans import Federation
from seepage.audit.simulate.federation import Clients, FederationState
from seepage.audit.simulate.setting import Setting, SharedParts, State, train_federation
from seepage.base.executor import Executor, Work
from seepage.base.progress import Doing, Phase, ProgressCallback
from seepage.base.storage import SCHEMA, read_json, write_json
from seepage.errors import SeepageError
from seepage.federation.data import Dataset, FileDataset
from seepage.federation.types import Batch, Update
from seepage.measure.privacy.guarantee import guarantee_of
from seepage.report.frontier.sweep import SweepEntry, Utility

TIMING_REPEATS = 7
"""Number of timed repetitions of a client's work; their median is reported."""


@dataclass(frozen=True)
class FederatedSetting:
    """A recipe's clients and the state their training starts from."""

    recipe: Recipe
    plan: Federation
    clients: Clients
    start: State
    examples: int

    @classmethod
    def of(cls, recipe: Recipe, utility: Utility, shared: SharedParts | None = None) -> "FederatedSetting":
        """Load the data, build and train the model as the recipe says, and share the data out."""
        assert recipe.federation is not None
        recipe = replace(recipe, federation=replace(recipe.federation, rounds=utility.rounds))
        assert recipe.federation is not None
        setting = Setting.of(recipe, shared)
        clients = setting.clients()
        return cls(recipe, recipe.federation, clients, setting.state, 0 if clients.test is None else len(clients.test))

    def busiest(self) -> list[int]:
        """The rounds of the client that takes part most often; they determine epsilon."""
        taken: dict[int, list[int]] = {}
        for t in range(self.plan.rounds):
            for client in self.clients.chosen(t, self.plan):
                taken.setdefault(client, []).append(t)
        return max(taken.values(), key=len, default=[])

    def carried(self, dataset: Dataset) -> "FederatedSetting":
        """This setting for another machine, with images that are read from files loaded into memory."""
        if not isinstance(dataset, FileDataset):
            return self
        held = _InMemory(self.clients.lookup(torch.arange(len(dataset))))
        return replace(self, clients=replace(self.clients, lookup=held))

    def defended(self, recipe: Recipe) -> "FederatedSetting":
        """This setting with the defense of another recipe that is otherwise the same."""
        clients = replace(self.clients, defense=recipe.make_defense())
        return replace(self, recipe=replace(self.recipe, defense=recipe.defense), clients=clients)

    def train(self, folder: Path) -> dict[str, Any]:
        """Train with the defense in all clients; returns the accuracy, with the number of examples behind it."""
        reached = train_federation(self.recipe, self.clients, self.start, folder / "private", lambda done, total: None)
        return {
            "accuracy": reached.accuracies[-1][1] if reached.accuracies else None,
            "accuracy_examples": self.examples,
        }

    def max_participations(self) -> int:
        """Largest number of local steps of one round that use the same example, over all clients."""
        rule, most = self.clients.rule, self.plan.examples or max(map(len, self.clients.parts))
        return max(rule.max_participations(min(len(places), most)) for places in self.clients.parts if len(places))


@dataclass(frozen=True)
class _InMemory:
    """Looks up examples by index in tensors held in memory."""

    whole: Batch

    def __call__(self, places: Tensor) -> Batch:
        return Batch(self.whole.inputs[places], self.whole.labels[places], places)


def measure_all(
    entries: Sequence[SweepEntry],
    utility: Utility,
    folder: Path,
    jobs: int | None,
    show: ProgressCallback,
    on: Executor,
) -> list[dict[str, Any]]:
    """The cost of every entry, in order. Costs that `folder/utility/` holds already are not measured again.

    Args:
        entries: Defenses.
        utility: Rounds of training.
        folder: The run folder.
        jobs: Number of trainings that run in parallel; None: as many as `on` allows.
        show: Called with progress messages.
        on: Executor that runs the trainings; client seconds are always measured on this machine.
    """
    everyone = [EntryTraining(entry.name, _read_by_all(entry.recipe), utility, folder) for entry in entries]
    todo = [training for training in everyone if not training.done_file.exists()]
    left = {training.done_file for training in todo}

    def done(training: Work) -> None:
        assert isinstance(training, EntryTraining)
        left.discard(training.done_file)
        show(len(todo) - len(left), len(todo), Doing(f"with {training.name}", Phase.TRAINING))

    if todo:
        show(0, len(todo), Doing(f"with {todo[0].name}", Phase.TRAINING))
        on.run(todo, on.plan(jobs, len(todo), todo[0].device), folder, done)
    shared = SharedParts()
    return [_priced(entry, utility, each.done_file, shared) for entry, each in zip(entries, everyone, strict=True)]


@dataclass(frozen=True)
class EntryTraining:
    """The federated training of one entry. It writes the accuracy, or the reason why there is none.

    Attributes:
        name: Name of the entry.
        recipe: Recipe of the entry, without defenses that do not affect training.
        utility: Rounds of training.
        folder: The run folder.
    """

    name: str
    recipe: Recipe
    utility: Utility
    folder: Path

    @property
    def title(self) -> str:
        return f"training with {self.name}"

    @property
    def device(self) -> str:
        return self.recipe.device

    @property
    def done_file(self) -> Path:
        return self.folder / "utility" / f"{self.recipe.case}.json"

    def run(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.train(lambda: FederatedSetting.of(self.recipe, self.utility))

    def train(self, setting: Callable[[], FederatedSetting]) -> None:
        """Train in the setting that a function gives, and write the mark."""
        found: dict[str, Any] = {"accuracy": None, "accuracy_examples": None, "reason": None}
        try:
            found |= setting().train(self.folder)
        except SeepageError as error:
            found["reason"] = str(error)
        write_json(self.done_file, {"schema": SCHEMA, **found})

    def begun(self) -> "EntryTraining":
        return self

    def serialized(self) -> "SerializedTraining":
        return SerializedTraining(self)


@dataclass(frozen=True)
class SerializedTraining:
    """A training to run on another machine, with the clients and their data, which all entries share."""

    training: EntryTraining

    @property
    def key(self) -> str:
        return f"clients of {self.training.folder}"

    def load(self) -> FederatedSetting | SeepageError:
        shared = SharedParts()
        try:
            setting = FederatedSetting.of(replace(self.training.recipe, defense=()), self.training.utility, shared)
        except SeepageError as error:
            return error
        return setting.carried(*shared.datasets.values())

    def run(self, loaded: FederatedSetting | SeepageError, folder: Path, threads: int) -> None:
        def setting() -> FederatedSetting:
            if isinstance(loaded, SeepageError):
                raise loaded
            return loaded.defended(self.training.recipe)

        torch.set_num_threads(threads)
        replace(self.training, folder=folder).train(setting)


def _read_by_all(recipe: Recipe) -> Recipe:
    """The recipe without defenses that hide entries from the server but leave the sum of all updates intact."""
    made = [(part, replace(recipe, defense=(part,)).make_defense()) for part in recipe.defense]
    hides = [one is not None and all(stage.acts_on == "view" for stage in one.stages()) for _, one in made]
    return replace(recipe, defense=tuple(part for (part, _), hidden in zip(made, hides, strict=True) if not hidden))


def _priced(entry: SweepEntry, utility: Utility, path: Path, shared: SharedParts) -> dict[str, Any]:
    """The accuracy with client seconds, bytes and epsilon, which are measured if missing."""
    found: dict[str, Any] = read_json(path)
    if "bytes" in found:
        return found
    found |= {"seconds": None, "bytes": None, "bytes_plain": None, "promise": None}
    if found["reason"] is None:
        setting = FederatedSetting.of(entry.recipe, utility, shared)
        defense = entry.recipe.make_defense()
        promise = guarantee_of(defense, setting.busiest(), participations=setting.max_participations())
        seconds, update = _timed(setting)
        size = update.encoded_bytes() if defense is None else defense.wire_bytes(update)
        found |= {"seconds": round(seconds, 6), "bytes": size, "bytes_plain": update.nbytes}
        found["promise"] = None if promise is None else promise.model_dump(mode="json")
    write_json(path, found)
    return found


def _timed(setting: FederatedSetting) -> tuple[float, Update]:
    """Median seconds of one client's work on one thread, and the update that it sends."""
    client = setting.clients.chosen(0, setting.plan)[0]
    threads, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for _ in range(TIMING_REPEATS):
            begun = time.perf_counter()
            reply = setting.clients.reply(FederationState(0, *setting.start), client, setting.plan)
            seconds.append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    return median(seconds), reply.update
