"""Searches that can be stopped and taken up again: the loop over their steps, and how their state travels to disk."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.base.clock import between_steps, current_limit
from seepage.base.storage import Tensors


@dataclass(frozen=True)
class Checkpoint:
    """Where a search stood: tensors, and JSON (without NaN) for all that is no tensor; `facts["step"]` counts up."""

    tensors: Tensors
    facts: dict[str, Any]


RECORDS = 100
"""History entries, progress reports and checkpoints per run: one every `steps / RECORDS` steps."""


LASTING = 0.2
"""Seconds from which on a step is left in the middle where its time is over; the state before it is kept for that."""
SHOWN_EVERY = 2.0
"""Seconds, at most and a step, between two reports of a running search."""


def record_interval(steps: int) -> int:
    """Steps between two records of a run.

    >>> record_interval(25_000), record_interval(30)
    (250, 1)
    """
    return max(1, steps // RECORDS)


def run_steps(
    search: "Resumable",
    first: int,
    steps: int,
    advance: Callable[[int], float],
    note: Callable[[int, float], None] = lambda step, value: None,
    show: Callable[[int, float], None] = lambda step, value: None,
    *,
    every: int | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> tuple[int, bool]:
    """Advance a search from step `first` to its end; the end of its time, or Ctrl-C, ends it with what there is.

    It stops between two steps. A step that lasts is also left in the middle, where it looks at the clock: then the
    search stands again where it stood before that step, so that what it answers depends on the whole steps alone.

    Args:
        search: Whose state comes back where a step is left in the middle.
        first: Steps made before, by the run whose checkpoint this one resumes.
        steps: Steps in all.
        advance: Makes one step, given the number of steps before it, and returns the objective.
        note: Given the steps made and the last objective, at the same steps in every run: for the history.
        show: The same, and in between as time goes by: for progress and checkpoints.
        every: Steps between two notes; None: `steps / RECORDS`. The last step is always noted.
        ended: Whether the search is over early.

    Returns:
        The steps made in all, and whether they were interrupted.

    >>> run_steps(Resumable(), 2, 5, lambda step: step / 10, lambda step, value: print(step, value), every=2)
    4 0.3
    5 0.4
    (5, False)
    """
    step, every, limit = first, every or record_interval(steps), current_limit()
    kept: Checkpoint | None = None
    shown, lasts = time.monotonic(), True  # of the first step nobody knows how long it takes
    try:
        while step < steps and not ended():
            between_steps()
            begun = time.monotonic()
            kept = search.checkpoint(step) if lasts else None
            limit.whole = kept is None
            value = advance(step)
            limit.whole, kept, now = True, None, time.monotonic()
            step, lasts = step + 1, now - begun > LASTING
            due = step % every == 0 or step == steps or ended()
            if due:
                note(step, value)
            if due or now - shown > SHOWN_EVERY:
                show(step, value)
                shown = now
    except KeyboardInterrupt:
        search.resume(kept)
        return step, True
    finally:
        limit.whole = True  # an answer is made now
    return step, False


class Resumable:
    """A search that resumes from its checkpoint with the same bits.

    Attributes:
        kept: Names of the attributes that change on the way: tensors, plain values, lists and dictionaries of these,
            other resumable searches, and what has a `state_dict`, such as optimizers and their schedules.

    >>> class Doubling(Resumable):
    ...     kept = ("numbers",)
    ...     numbers = torch.ones(2)
    >>> search = Doubling()
    >>> saved = search.checkpoint(step=3)
    >>> search.numbers *= 2
    >>> search.resume(saved), search.numbers
    (3, tensor([1., 1.]))
    """

    kept: ClassVar[tuple[str, ...]] = ()

    def checkpoint(self, step: int) -> Checkpoint:
        """The state after this many steps, in copies that going on leaves alone."""
        tensors: Tensors = {}
        state = {name: pack(getattr(self, name), name, tensors) for name in self.kept}
        return Checkpoint(tensors, {"step": step, **state})

    def resume(self, checkpoint: Checkpoint | None) -> int:
        """Take up the state of a checkpoint, if there is one; returns the steps made before."""
        if checkpoint is None:
            return 0
        for name in self.kept:
            setattr(self, name, _restored(getattr(self, name), checkpoint.facts[name], checkpoint.tensors))
        return int(checkpoint.facts["step"])


def _restored(own: Any, packed: Any, tensors: Tensors) -> Any:
    """The unpacked value; tensors that optimizers hold, and searches, are filled in place."""
    if isinstance(own, Resumable):
        own.resume(Checkpoint(tensors, {"step": 0, **packed["kept"]}))
    elif hasattr(own, "load_state_dict"):
        own.load_state_dict(unpack(packed, tensors))
    elif isinstance(own, Tensor):
        with torch.no_grad():
            own.copy_(tensors[packed["tensor"]])
    elif isinstance(own, list) and own and isinstance(own[0], Tensor | Resumable):
        for part, one in zip(own, packed["items"], strict=True):
            _restored(part, one, tensors)
    else:
        return unpack(packed, tensors)
    return own


def pack(state: Any, path: str, tensors: Tensors) -> Any:
    """A search's nested state as JSON, its tensors moved into `tensors` under their path.

    Dictionaries become lists of pairs, because JSON would turn their whole-number keys into text.

    >>> import torch
    >>> tensors: Tensors = {}
    >>> packed = pack({0: [torch.ones(1), 2.0], "on": True}, "s", tensors)
    >>> unpack(packed, tensors)
    {0: [tensor([1.]), 2.0], 'on': True}
    """
    if isinstance(state, Tensor):
        # A clone: optimizers may hold views of one another, and safetensors stores each tensor by itself.
        tensors[path] = state.detach().clone()
        return {"tensor": path}
    if isinstance(state, Resumable):
        return {"kept": {name: pack(getattr(state, name), f"{path}/{name}", tensors) for name in state.kept}}
    if hasattr(state, "state_dict"):
        return pack(state.state_dict(), path, tensors)
    if isinstance(state, dict):
        return {"pairs": [[key, pack(value, f"{path}/{key}", tensors)] for key, value in state.items()]}
    if isinstance(state, list | tuple):
        kind = "items" if isinstance(state, list) else "tuple"
        return {kind: [pack(value, f"{path}/{i}", tensors) for i, value in enumerate(state)]}
    if isinstance(state, float) and not math.isfinite(state):
        return {"float": repr(state)}  # JSON has no NaN, and a search that blows up leaves some
    return state


def unpack(packed: Any, tensors: Tensors) -> Any:
    """The reverse of `pack`."""
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        return tensors[packed["tensor"]].clone()
    if "float" in packed:
        return float(packed["float"])
    if "pairs" in packed:
        return {key: unpack(value, tensors) for key, value in packed["pairs"]}
    if "tuple" in packed:
        return tuple(unpack(value, tensors) for value in packed["tuple"])
    return [unpack(value, tensors) for value in packed["items"]]
