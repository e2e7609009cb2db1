"""Stand-ins that watch: transcripts that change or keep their rounds, a progress that kills, states to compare."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.attacks.base import Checkpoint
from seepage.audit.attempt import FolderProgress
from seepage.federation.types import Knowledge, Round, Tensors, Transcript

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)


@dataclass(frozen=True)
class Kept:
    """A transcript that gives the very same rounds each time, so that changes to them show."""

    knowledge: Knowledge
    rounds: tuple[Round, ...]

    def __len__(self) -> int:
        return len(self.rounds)

    def __getitem__(self, t: int) -> Round:
        return self.rounds[t]


@dataclass(frozen=True)
class Changed:
    """A transcript whose rounds went through `change`."""

    whole: Transcript
    change: Callable[[Round], Round]

    @property
    def knowledge(self) -> Knowledge:
        return self.whole.knowledge

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, t: int) -> Round:
        return self.change(self.whole[t])


class Killed:
    """Progress that presses Ctrl-C once `after` checkpoints are kept; with 0 it only counts them."""

    def __init__(self, inner: FolderProgress | None, *, after: int) -> None:
        self.inner = inner
        self.after = after
        self.saves = 0

    def report(self, done: int, total: int, objective: float) -> None:
        if self.inner is not None:
            self.inner.report(done, total, objective)

    def load(self) -> Checkpoint | None:
        return None if self.inner is None else self.inner.load()

    def save(self, checkpoint: Checkpoint) -> None:
        if self.inner is not None:
            self.inner.save(checkpoint)
        self.saves += 1
        if self.saves == self.after:
            raise KeyboardInterrupt


def tensors_of(observed: Round) -> Tensors:
    """Every tensor of a round, by name."""
    parts = {"params": observed.params, "buffers": observed.buffers, "update": observed.update.tensors}
    named = {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
    loose = {"labels": observed.labels, "indices": observed.indices}
    return named | {name: tensor for name, tensor in loose.items() if tensor is not None}


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that a model's guest could leave changed."""
    parameters = dict(model.named_parameters())
    modules = dict(model.named_modules())
    return {
        "the parameters": {name: p.detach().clone() for name, p in parameters.items()},
        "the buffers": {name: b.detach().clone() for name, b in model.named_buffers()},
        "the parameter objects": {name: id(p) for name, p in parameters.items()},
        "requires_grad": {name: p.requires_grad for name, p in parameters.items()},
        "the gradients": {name: None if p.grad is None else p.grad.clone() for name, p in parameters.items()},
        "the modes": {name: module.training for name, module in modules.items()},
        "the hooks": {f"{name}.{kind}": len(getattr(m, kind)) for name, m in modules.items() for kind in HOOKS},
    }


def same(a: Any, b: Any) -> bool:
    """Bit-equality of nested dictionaries of tensors and plain values."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


OtherDevice = Callable[[], AbstractContextManager[torch.device | None]]
"""Opens a device that is not the CPU, or says that there is none."""


@contextmanager
def real_gpu() -> Iterator[torch.device | None]:
    """The first GPU, where PyTorch has one."""
    yield torch.device("cuda", 0) if torch.cuda.is_available() else None


@contextmanager
def globals_kept(who: str) -> Iterator[None]:
    """Assert that a block leaves every global state that torch, numpy and Python keep as it was."""

    def state() -> dict[str, Any]:
        return {
            "torch's global generator": torch.get_rng_state(),
            "numpy's global generator": str(np.random.get_state()),
            "Python's global generator": random.getstate(),
            "torch's default dtype": torch.get_default_dtype(),
            "torch's gradient mode": torch.is_grad_enabled(),
            "torch's number of threads": torch.get_num_threads(),
        }

    before = state()
    yield
    for what, now in state().items():
        assert same(now, before[what]), f"{who} changed {what}"
