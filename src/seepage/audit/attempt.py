"""One attempt of an attack on one round, on disk: a reconstruction, or the reason why there is none."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from seepage.attacks.base import Checkpoint
from seepage.audit.row import Status
from seepage.core.storage import SCHEMA, append_line, check_schema, read_json, read_tensors, write_json, write_tensors
from seepage.errors import SeepageError
from seepage.types import Reconstruction, Tensors
from seepage.types import Status as SearchStatus


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
    """

    status: Status
    attack: str
    reconstruction: Reconstruction | None = None
    reason: str | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0


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


def open_attempt(path: Path) -> Attempt:
    """Read what `save_attempt` wrote."""
    facts = read_json(path.with_suffix(".json"))
    check_schema(facts, path.with_suffix(".json"))
    found = None
    try:
        if "space" in facts:
            found = _reconstruction(facts, read_tensors(path.with_suffix(".safetensors")))
        return Attempt(facts["status"], facts["attack"], found, facts["reason"], facts["seconds"], facts["cpu_seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise SeepageError(
            f"{path}.json is damaged ({type(error).__name__}: {error}); delete it and run again"
        ) from error


def _reconstruction(facts: Mapping[str, Any], tensors: Tensors) -> Reconstruction:
    status: SearchStatus = facts["status"]
    return Reconstruction(
        inputs=tensors["inputs"],
        labels=tensors.get("labels"),
        space=facts["space"],
        indices=tensors.get("indices"),
        ambiguity=frozenset(facts["ambiguity"]),
        objective=tensors.get("objective"),
        certified=tensors.get("certified"),
        inner={name[6:]: tensor for name, tensor in tensors.items() if name.startswith("inner/")},
        status=status,
        history=tuple((int(step), float(value)) for step, value in facts["history"]),
        cost=facts["cost"],
        notes=tuple(facts["notes"]),
    )


def has_attempt(path: Path) -> bool:
    """Whether a complete attempt is stored at this path."""
    return path.with_suffix(".json").exists()


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
        return Checkpoint(tensors, facts)

    def save(self, checkpoint: Checkpoint) -> None:
        if self._saved_at and time.monotonic() - self._saved_at[-1] < self.pause:
            return
        step = torch.tensor(int(checkpoint.facts["step"]))
        write_tensors(self.checkpoint.with_suffix(".safetensors"), {**checkpoint.tensors, "step": step})
        write_json(self.checkpoint.with_suffix(".json"), checkpoint.facts)
        self._saved_at[:] = [time.monotonic()]

    def clear(self) -> None:
        """Remove the checkpoint of a finished attack."""
        for suffix in (".json", ".safetensors"):
            self.checkpoint.with_suffix(suffix).unlink(missing_ok=True)
