"""One attempt of an attack on one round, on disk: a reconstruction, or the reason why there is none."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from seepage.attacks.base import Checkpoint
from seepage.audit.row import Status
from seepage.base.clock import current_limit
from seepage.base.schema import JsonRecord, parse
from seepage.base.storage import SCHEMA, append_line, check_schema, read_json, read_tensors, write_json, write_tensors
from seepage.errors import Inapplicable, SeepageError
from seepage.federation.types import Ambiguity, Reconstruction, Space, Tensors
from seepage.federation.types import Status as SearchStatus

T = TypeVar("T")
Ended = Literal["ok", "inapplicable", "error"]
Spent = tuple[float, float]
"""Wall and processor seconds."""


@dataclass(frozen=True)
class Attempt:
    """One attack on one round.

    Attributes:
        status: The reconstruction's status, or `inapplicable`, or `error` for a fault in the attack's code.
        reconstruction: None where there is none.
        reason: Why there is no reconstruction, and what to change.
        seconds: Wall time of the attack alone.
        cpu_seconds: Processor time of the attack alone; unlike wall time, hardly affected by other load.
        attack: The attack's `repr`.
        refusal: The name of what is in the way where the attack does not apply.
        stopped: Steps after which the clock stopped it, with its checkpoint kept; None: it ended by itself.
    """

    status: Status
    attack: str
    reconstruction: Reconstruction | None = None
    reason: str | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    refusal: str | None = None
    stopped: int | None = None


def tried(call: Callable[[], T]) -> tuple[T | None, Ended, str | None, str | None, Spent]:
    """What a call of an attack or a test, which may be user code, returns; its status, or why it returns nothing.

    Returns:
        The result, the status, the reason and a refusal's name where there is none, and the wall and processor seconds.

    Raises:
        SeepageError: For mistakes of the user; any other error is an outcome.
    """
    clocks = time.perf_counter(), time.process_time()
    try:
        found = call()
        return found, "ok", None, None, (time.perf_counter() - clocks[0], time.process_time() - clocks[1])
    except Inapplicable as error:
        return None, "inapplicable", str(error), error.name, (0.0, 0.0)
    except SeepageError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(place.filename).name} line {place.lineno})"
        return None, "error", reason, None, (0.0, 0.0)


def save_attempt(outcome: Attempt, path: Path) -> None:
    """Write `PATH.safetensors` if there is a reconstruction, then `PATH.json`, whose presence marks completion."""
    found = outcome.reconstruction
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "status": outcome.status,
        "attack": outcome.attack,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 3),
        "cpu_seconds": round(outcome.cpu_seconds, 3),
        "refusal": outcome.refusal,
        "stopped": outcome.stopped,
    }
    if found is not None:
        optional = {name: getattr(found, name) for name in ("labels", "indices", "objective", "certified")}
        tensors: Tensors = {"inputs": found.inputs} | {k: t for k, t in optional.items() if t is not None}
        tensors |= {f"inner/{name}": tensor for name, tensor in found.inner.items()}
        write_tensors(path.with_suffix(".safetensors"), tensors)
        facts |= {
            "space": found.space,
            "ambiguity": sorted(found.ambiguity),
            "history": found.history,
            "cost": dict(found.cost),
            "notes": found.notes,
        }
    write_json(path.with_suffix(".json"), facts)


class _Facts(JsonRecord):
    """What `PATH.json` holds of every attempt."""

    status: Status
    attack: str
    reason: str | None
    seconds: float
    cpu_seconds: float
    refusal: str | None = None
    stopped: int | None = None


class _FactsOfResult(JsonRecord):
    """What it holds besides where there is a reconstruction."""

    status: SearchStatus
    space: Space
    ambiguity: list[Ambiguity]
    history: list[list[float]]
    cost: dict[str, float]
    notes: list[str]


def open_attempt(path: Path) -> Attempt:
    """Read what `save_attempt` wrote. It may come from others.

    Raises:
        SeepageError: For a damaged file, and for tensors that do not fit each other.
    """
    file = path.with_suffix(".json")
    facts = read_json(file)
    check_schema(facts, file)
    found = None
    if "space" in facts:
        found = _reconstruction(parse(_FactsOfResult, facts, str(file)), path.with_suffix(".safetensors"))
    return Attempt(reconstruction=found, **parse(_Facts, facts, str(file)).model_dump())


def _reconstruction(facts: _FactsOfResult, path: Path) -> Reconstruction:
    """A stored reconstruction.

    Args:
        facts: Content of its JSON file.
        path: Its safetensors file.

    Raises:
        SeepageError: For tensors that do not fit together.
    """
    tensors = read_tensors(path)
    wrong = _misfit(tensors)
    wrong = "history" if any(len(pair) != 2 for pair in facts.history) else wrong
    if wrong is not None:
        raise SeepageError(f"the {wrong} in {path} cannot be those of guesses; delete it and run again")
    return Reconstruction(
        inputs=tensors["inputs"],
        labels=tensors.get("labels"),
        space=facts.space,
        indices=tensors.get("indices"),
        ambiguity=frozenset(facts.ambiguity),
        objective=tensors.get("objective"),
        certified=tensors.get("certified"),
        inner={name[6:]: tensor for name, tensor in tensors.items() if name.startswith("inner/")},
        status=facts.status,
        history=tuple((int(step), value) for step, value in facts.history),
        cost=facts.cost,
        notes=tuple(facts.notes),
    )


def _misfit(tensors: Tensors) -> str | None:
    """The first tensor that does not belong to `k` guesses, by its name; None where all do."""
    inputs = tensors.get("inputs")
    if inputs is None or inputs.ndim < 2 or inputs.dtype == torch.bool:
        return "inputs"

    def per_guess(tensor: Tensor) -> bool:
        return tensor.ndim > 0 and len(tensor) == len(inputs)

    fits: dict[str, Callable[[Tensor], bool]] = {
        "labels": lambda t: per_guess(t) and t.dtype != torch.bool,  # values are floating-point numbers
        "indices": lambda t: per_guess(t) and t.dtype == torch.int64 and t.ndim == 1,
        "objective": lambda t: t.is_floating_point(),
        "certified": lambda t: per_guess(t) and t.dtype == torch.bool and t.ndim == 1,
    }
    odd = next((name for name, fit in fits.items() if name in tensors and not fit(tensors[name])), None)
    if odd is not None:
        return odd
    inner = (name for name in tensors if name.startswith("inner/"))
    return next((name for name in inner if not (per_guess(tensors[name]) and tensors[name].is_floating_point())), None)


def has_attempt(path: Path) -> bool:
    """Whether a complete attempt is stored at this path."""
    return path.with_suffix(".json").exists()


def stopped_after(path: Path) -> int | None:
    """Steps after which the clock stopped the attempt at this path; None where there is none, or it ended by itself."""
    return read_json(path.with_suffix(".json")).get("stopped") if has_attempt(path) else None


def spent_before(path: Path) -> Spent:
    """What the attempt at this path took until the clock stopped it; nothing where there is none."""
    facts = parse(_Facts, read_json(path.with_suffix(".json")), str(path)) if stopped_after(path) is not None else None
    return (0.0, 0.0) if facts is None else (facts.seconds, facts.cpu_seconds)


@dataclass(frozen=True)
class FolderProgress:
    """Progress of an attack, stored in a run folder: one line per report, and the latest checkpoint.

    Attributes:
        log: `progress.jsonl` of the run.
        checkpoint: Path of this attack's checkpoint, without suffix.
        task: Entries of each line that identify the attack.
        pause: Least seconds between two checkpoints: syncing one to disk can take longer than a step of the attack.
    """

    log: Path
    checkpoint: Path
    task: Mapping[str, Any]
    pause: float = 2.0
    _saved_at: list[float] = field(default_factory=list, repr=False)

    def report(self, done: int, total: int, objective: float) -> None:
        finite = objective if objective == objective and abs(objective) != float("inf") else None
        append_line(self.log, {**self.task, "done": done, "total": total, "objective": finite})

    def load(self) -> Checkpoint | None:
        # Where either is missing: a worker of a killed process may have cleared it in its last moments.
        if not all(self.checkpoint.with_suffix(suffix).exists() for suffix in (".json", ".safetensors")):
            return None
        facts = read_json(self.checkpoint.with_suffix(".json"))
        tensors = read_tensors(self.checkpoint.with_suffix(".safetensors"))
        # Two files cannot be renamed atomically together; a checkpoint whose two files disagree is ignored.
        if int(tensors.pop("step").item()) != facts["step"]:
            return None
        current_limit().steps = facts.pop("steps_in_all")
        return Checkpoint(tensors, facts)

    def save(self, checkpoint: Checkpoint) -> None:
        if self._saved_at and time.monotonic() - self._saved_at[-1] < self.pause:
            return
        step = torch.tensor(int(checkpoint.facts["step"]))
        write_tensors(self.checkpoint.with_suffix(".safetensors"), {**checkpoint.tensors, "step": step})
        write_json(self.checkpoint.with_suffix(".json"), {**checkpoint.facts, "steps_in_all": current_limit().steps})
        self._saved_at[:] = [time.monotonic()]

    def clear(self) -> None:
        """Remove the checkpoint of a finished attack."""
        for suffix in (".json", ".safetensors"):
            self.checkpoint.with_suffix(suffix).unlink(missing_ok=True)
