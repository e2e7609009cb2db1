"""What a defense costs: accuracy after federated training with it, seconds of a client, bytes sent, and its epsilon."""

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from seepage.data import Dataset
from seepage.defenses import Compose, PartialAccess, Quantize, SelectiveEncryption
from seepage.errors import SeepageError
from seepage.federating import Held, clients_of, train_federation
from seepage.federation import Clients, Federation, Stage
from seepage.frontier.sweep import Entry, Utility
from seepage.functional import state_of
from seepage.promise import promise_of
from seepage.recipe import Recipe
from seepage.recording import Show, built_model, open_data
from seepage.storage import SCHEMA, read_json, write_json
from seepage.training import train
from seepage.types import Batch, Defense, Update

REPEATS = 7
"""Times that a client's work is measured; the median counts."""


@dataclass(frozen=True)
class Scene:
    """A recipe's clients and the stage their training starts from."""

    recipe: Recipe
    plan: Federation
    clients: Clients
    start: Stage
    examples: int

    @classmethod
    def of(cls, recipe: Recipe, utility: Utility, sets: dict[str, Dataset]) -> "Scene":
        """Load the data, build and train the model as the recipe says, and share the data out."""
        assert recipe.federation is not None
        recipe = replace(recipe, federation=replace(recipe.federation, rounds=utility.rounds))
        assert recipe.federation is not None
        dataset = open_data(recipe, sets)
        model = built_model(recipe, dataset)

        def batch_of(indices: torch.Tensor) -> Batch:
            return dataset.batch(indices).to(recipe.device)

        params, buffers = train(model, state_of(model), batch_of, dataset.train, recipe.training, seed=recipe.seed)
        held = Held.of(recipe, dataset)
        clients = clients_of(recipe, dataset, held, model)
        return cls(recipe, recipe.federation, clients, Stage(0, params, buffers), len(held.test))

    def busiest(self) -> list[int]:
        """The rounds of the client that takes part in most of them."""
        taken: dict[int, list[int]] = {}
        for t in range(self.plan.rounds):
            for client in self.clients.chosen(t, self.plan):
                taken.setdefault(client, []).append(t)
        return max(taken.values(), key=len, default=[])


def measure_all(
    entries: Sequence[Entry], utility: Utility, folder: Path, jobs: int, show: Show
) -> list[dict[str, Any]]:
    """The price of every entry, in order. What `folder/utility/` has already is not measured again.

    Args:
        entries: Defenses.
        utility: Rounds of training.
        folder: The run folder.
        jobs: Trainings at a time.
        show: Progress.
    """
    todo = [entry for entry in entries if not _place(folder, entry).exists()]
    if jobs > 1 and len(todo) > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(todo)), mp_context=context) as pool:
            running = [pool.submit(train_entry, entry.recipe, utility, folder, _place(folder, entry)) for entry in todo]
            for number, future in enumerate(running):
                show(number, len(todo), f"training with {todo[number].name}")
                future.result()
    else:
        for number, entry in enumerate(todo):
            show(number, len(todo), f"training with {entry.name}")
            train_entry(entry.recipe, utility, folder, _place(folder, entry))
    sets: dict[str, Dataset] = {}
    return [_priced(entry, utility, _place(folder, entry), sets) for entry in entries]


def _place(folder: Path, entry: Entry) -> Path:
    return folder / "utility" / f"{entry.recipe.cell}.json"


def train_entry(recipe: Recipe, utility: Utility, folder: Path, path: Path) -> None:
    """Train with a defense in all clients and write the accuracy, or why there is none."""
    found: dict[str, Any] = {"accuracy": None, "accuracy_examples": None, "reason": None}
    try:
        scene = Scene.of(_read_by_all(recipe), utility, {})
        state = scene.start.params, scene.start.buffers
        stage = train_federation(scene.recipe, scene.clients, state, folder / "private", lambda done, total: None)
        found |= {
            "accuracy": stage.accuracies[-1][1] if stage.accuracies else None,
            "accuracy_examples": scene.examples,
        }
    except SeepageError as error:
        found["reason"] = str(error)
    write_json(path, {"schema": SCHEMA, **found})


def _read_by_all(recipe: Recipe) -> Recipe:
    """Without the defenses that hide entries from the server and not from the sum of all updates."""
    hiding = (PartialAccess, SelectiveEncryption)
    kept = [part for part in recipe.defense if not isinstance(_alone(recipe, part), hiding)]
    return replace(recipe, defense=tuple(kept))


def _alone(recipe: Recipe, part: Any) -> Defense | None:
    return replace(recipe, defense=(part,)).make_defense()


def _priced(entry: Entry, utility: Utility, path: Path, sets: dict[str, Dataset]) -> dict[str, Any]:
    """Accuracy, with seconds, bytes and epsilon added where they are not measured yet."""
    found: dict[str, Any] = read_json(path)
    if "bytes" in found:
        return found
    found |= {"seconds": None, "bytes": None, "bytes_plain": None, "promise": None}
    if found["reason"] is None:
        scene = Scene.of(entry.recipe, utility, sets)
        defense = entry.recipe.make_defense()
        promise = promise_of(defense, scene.busiest())
        seconds, update = _timed(scene)
        plain = sum(tensor.numel() * tensor.element_size() for tensor in update.tensors.values())
        found |= {"seconds": round(seconds, 6), "bytes": sent_bytes(update, defense), "bytes_plain": plain}
        found["promise"] = None if promise is None else asdict(promise)
    write_json(path, found)
    return found


def _timed(scene: Scene) -> tuple[float, Update]:
    """Median seconds of one client's work on one thread, and what it sends."""
    client = scene.clients.chosen(0, scene.plan)[0]
    threads, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for _ in range(REPEATS):
            begun = time.perf_counter()
            reply = scene.clients.reply(scene.start, client, scene.plan)
            seconds.append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    return median(seconds), reply.update


def sent_bytes(update: Update, defense: Defense | None) -> int:
    """Bytes of an update in the shortest of some plain forms, before any general compression.

    All entries; or the entries that are not zero, with a bit for each entry or with a number of 4 bytes for each sent.
    Quantized entries take their bits, and 4 bytes for each tensor's scale. Encryption is counted as if it added
    nothing.

    >>> sent_bytes(Update({"w": torch.zeros(80)}), None), sent_bytes(Update({"w": torch.ones(80)}), Quantize(bits=1))
    (0, 14)
    """
    parts = defense.parts if isinstance(defense, Compose) else (defense,)
    last = parts[-1]
    if isinstance(last, SelectiveEncryption):  # what reads as zero is sent as a ciphertext
        return sum(tensor.numel() * tensor.element_size() for tensor in update.tensors.values())
    bits = last.bits if isinstance(last, Quantize) else None
    total = 0
    for tensor in update.tensors.values():
        size, count = tensor.numel(), int((tensor != 0).sum())
        own = 8 * tensor.element_size() if bits is None else bits
        entries = min(size * own, count * own + min(size, 32 * count))
        total += -(-entries // 8) + (4 if bits is not None else 0)
    return total
