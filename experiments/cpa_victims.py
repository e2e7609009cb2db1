"""Victims of the Cocktail Party Attack: data, the paper's FC-2 trained as it says, clients with local steps."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.nn import forward, frozen_randomness, generator, in_mode
from seepage.models import fc2
from seepage.types import Batch, ClientUpdate, LocalProblem, Tensors, Update

HELD_BACK = 256
"""The first so many test images are for development; scored batches of up to half of the others avoid them."""


@dataclass(frozen=True, kw_only=True)
class LocalSteps(ClientUpdate):
    """Epochs of mini-batch SGD from the server's weights; sends the difference of weights."""

    lr: float = 1e-3
    epochs: int = 10
    size: int = 32
    examples: int = 32
    seed: int = 0

    def _batches(self, n: int) -> list[Tensor]:
        draw = generator(self.seed, "local order")
        return [part for _ in range(self.epochs) for part in torch.randperm(n, generator=draw).split(self.size)]

    def compute(self, problem: LocalProblem) -> Update:
        now = {name: p.detach().clone() for name, p in problem.params.items()}
        inputs, labels = problem.batch.inputs, problem.batch.labels
        for part in self._batches(len(inputs)):
            leaves = {name: p.requires_grad_() for name, p in now.items()}
            with in_mode(problem.model, training=True):
                logits = forward(problem.model, leaves, inputs[part], buffers=problem.buffers)
            slopes = torch.autograd.grad(self.loss_of(logits, labels[part]), list(leaves.values()))
            now = {name: (p - self.lr * g).detach() for (name, p), g in zip(leaves.items(), slopes, strict=True)}
        return Update.from_states(problem.params, now)

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        steps = self.epochs * -(-self.examples // self.size)
        return {name: tensor / (-self.lr * steps) for name, tensor in update.tensors.items()}

    def separable(self, model: nn.Module) -> bool:
        return False


def load(path: str, train: int = 0) -> tuple[Batch, Batch]:
    """Train and test images of a data file; a file without a split is split after a seeded shuffle."""
    with np.load(path) as file:
        if "x_train" in file.files:
            parts = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
        else:
            order = np.random.default_rng(7).permutation(len(file["x"]))
            x, y = file["x"][order], file["y"][order]
            train = train or round(0.68 * len(x))
            parts = [(x[:train], y[:train]), (x[train:], y[train:])]
    both = [Batch(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y).long()) for x, y in parts]
    return both[0], both[1]


def trained(path: str, *, hidden: int, epochs: int, seed: int) -> tuple[nn.Module, Batch, int]:
    """FC-2 trained as in the paper (Adam 1e-3, batch 128), from the cache where it was trained before; test images."""
    train, test = load(path)
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    with frozen_randomness(seed):
        model = fc2(tuple(train.inputs.shape[1:]), classes, hidden=hidden)
    key = hashlib.sha256(f"{Path(path).name}/{hidden}/{epochs}/{seed}".encode()).hexdigest()[:12]
    cache = Path(tempfile.gettempdir()) / f"seepage-fc2-{key}.pt"
    if cache.exists():
        model.load_state_dict(torch.load(cache, weights_only=True))
        return model, test, classes
    optimizer, draw = torch.optim.Adam(model.parameters(), 1e-3), generator(seed, "train")
    for _ in range(epochs):
        for part in torch.randperm(len(train), generator=draw).split(128):
            loss = F.cross_entropy(model(train.inputs[part]), train.labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), cache)
    return model, test, classes


def draw(test: Batch, n: int, seed: int) -> Batch:
    """A batch of n images that development did not see; where the others are fewer than two batches, of all."""
    first = HELD_BACK if len(test) - HELD_BACK >= 2 * n else 0
    chosen = first + torch.randperm(len(test) - first, generator=generator(seed, "batch"))[:n]
    return Batch(test.inputs[chosen], test.labels[chosen])


def development(test: Batch, n: int, seed: int) -> Batch:
    """A batch for tuning."""
    chosen = torch.randperm(min(HELD_BACK, len(test)), generator=generator(seed, "development"))[:n]
    return Batch(test.inputs[chosen], test.labels[chosen])
