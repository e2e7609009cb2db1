"""What an attack is, and how it tells how far it has come."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor

from seepage.errors import Inapplicable
from seepage.types import Reconstruction, Tensors, Transcript

__all__ = ["Attack", "Checkpoint", "Inapplicable", "Progress", "Silent", "ignore"]


@dataclass(frozen=True)
class Checkpoint:
    """Where a search stood: tensors, and JSON (without NaN) for all that is no tensor; `facts["step"]` counts up."""

    tensors: Tensors
    facts: dict[str, Any]


@runtime_checkable
class Progress(Protocol):
    """The audit's side of a running attack: shows how far it is, and keeps its checkpoints."""

    def report(self, done: int, total: int, objective: float) -> None:
        """`done` of `total` steps; `objective` is the best so far."""

    def load(self) -> Checkpoint | None:
        """The checkpoint that an interrupted run of this attack left, or None."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, replacing the last one."""


class Silent:
    """Progress that nobody watches: nothing is shown, nothing is kept."""

    def report(self, done: int, total: int, objective: float) -> None:
        pass

    def load(self) -> Checkpoint | None:
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        pass


ignore = Silent()


class Attack(ABC):
    """A frozen, keyword-only dataclass of hyperparameters; its `repr` is its provenance.

    An attack reads a `Transcript` and nothing else. It leaves the model as it found it (parameters, buffers, mode,
    hooks), and the same transcript and seed give the same bits on a CPU.

    Attributes:
        rounds: `one`: reads the first round of the transcript it is given. `all`: needs all rounds together.
    """

    rounds: ClassVar[Literal["one", "all"]] = "one"

    @abstractmethod
    def check(self, transcript: Transcript) -> None:
        """Raise `Inapplicable(reason, remedy)` where this attack cannot say anything about this transcript."""

    @abstractmethod
    def __call__(self, transcript: Transcript, *, seed: int, progress: Progress = ignore) -> Reconstruction:
        """Attack. Raises `Inapplicable` as `check` does."""

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float | None:
        """The attack's own objective at given inputs, or None where it has none.

        The audit calls this with the truth, after the attack, to tell a wrong objective from a weak search.
        """
        return None

    def inner_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> Tensors:
        """What `Reconstruction.inner` would hold at given inputs, by the same names; empty where it holds nothing.

        The audit calls this with the truth, after the attack, to say how far its steps came.
        """
        return {}
