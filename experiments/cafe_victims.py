"""The parties of the CAFE benchmarks: images, a fresh model, and the server's view of a frozen one."""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.cafe.target_layers import Site, find_sites, true_representations
from seepage.clients import FedSGD
from seepage.core.nn import frozen_randomness, generator, state_of
from seepage.models.vertical import vertical
from seepage.transcript.designs import Design
from seepage.transcript.vertical import IndexedTranscript, IndexedVictim, ServerStep
from seepage.types import Batch, Defense, Knowledge, Tensors, Update


def images(path: str, samples: int, seed: int) -> Batch:
    """The first N of a seeded order of a data file's images, as [N, C, H, W] in [0, 1]."""
    with np.load(path) as file:
        key = next(k for k in ("x_train", "x") if k in file.files)
        x, y = file[key], file[key.replace("x", "y")]
    order = torch.randperm(len(x), generator=generator(seed, "benchmark samples"))[:samples].numpy()
    inputs = torch.from_numpy(x[order]).permute(0, 3, 1, 2).float() / 255
    return Batch(inputs, torch.from_numpy(y[order]).long())


def prepare(
    data: Batch,
    design: Design,
    rounds: int,
    *,
    seed: int = 0,
    defense: Defense | None = None,
    server: ServerStep | None = None,
    model_options: dict[str, Any] | None = None,
    classes: int | None = None,
) -> IndexedVictim:
    """The parties with a fresh model."""
    shape, classes = tuple(data.inputs.shape[1:]), classes or int(data.labels.max()) + 1
    with frozen_randomness(seed):
        model = vertical(shape, classes, **(model_options or {}))
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), shape, classes, told=frozenset({"indices"}))
    return IndexedVictim(knowledge, params, data, design, rounds, buffers, defense, seed, server or ServerStep())


@dataclass
class Clock:
    """Wall and processor seconds of a block."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    clock.wall += time.perf_counter() - wall
    clock.cpu += time.process_time() - cpu


@dataclass(frozen=True)
class FrozenTranscript(IndexedTranscript):
    """Gradients of a frozen model from stored features: the victim's convolutions, done once instead of per round."""

    stored: list[Tensor] = field(default_factory=list, repr=False)
    sites: list[Site] = field(default_factory=list, repr=False)
    spent: Clock = field(default_factory=Clock, repr=False)

    def select(self, t: int, names: Collection[str]) -> Tensors:
        with clocked(self.spent):
            return self._select(t, names)

    def _select(self, t: int, names: Collection[str]) -> Tensors:
        victim = self._victim
        if any(".features." in name for name in names):
            return super().select(t, names)
        chosen = victim.design.indices(t)
        model: Any = victim.knowledge.model
        leaves = {n: p.detach().requires_grad_() for n, p in victim.params.items() if n in names}
        params = victim.params | leaves
        outputs = []
        for m, party in enumerate(model.parties):
            prefix = f"parties.{m}."
            own = {n[len(prefix) :]: p for n, p in params.items() if n.startswith(prefix)}
            u = F.linear(self.stored[m][chosen], own["first.weight"], own["first.bias"])
            rest = {n[5:]: p for n, p in own.items() if n.startswith("rest.")}
            outputs.append(torch.func.functional_call(party.rest, rest, (u,)))
        logits = F.linear(torch.cat(outputs, 1), params["head.weight"], params["head.bias"])
        if model.double_softmax:
            logits = logits.softmax(1)
        loss = F.cross_entropy(logits, victim.data.labels[chosen])
        found = torch.autograd.grad(loss, list(leaves.values()))
        update = Update(dict(zip(leaves, found, strict=True)))
        return victim._defended(update, victim.params, victim.batch(t), t).tensors


def frozen(victim: IndexedVictim) -> FrozenTranscript:
    """The server's view of a frozen victim, with its features stored."""
    sites = find_sites(victim.knowledge, victim.params)
    stored = []
    with torch.no_grad():
        for site in sites:
            blocks = victim.data.inputs[(slice(None), *site.block)]
            parts = [
                site.features(victim.knowledge.model, victim.params, victim.buffers, part) for part in blocks.split(50)
            ]
            stored.append(torch.cat(parts))
    return FrozenTranscript(victim.knowledge, victim, stored, sites)


def truth(victim: IndexedVictim) -> list[tuple[Tensor, Tensor]]:
    """The true V and H of each party."""
    parts = [
        true_representations(victim.knowledge, victim.params, victim.buffers, x, y)
        for x, y in zip(victim.data.inputs.split(100), victim.data.labels.split(100), strict=True)
    ]
    return [tuple(torch.cat(rows) for rows in zip(*one, strict=True)) for one in zip(*parts, strict=True)]  # type: ignore[misc]
