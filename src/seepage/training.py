"""Training: brings a fresh model to the state in which a real server would send it out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.errors import SeepageError
from seepage.functional import forward, generator, in_mode
from seepage.types import Batch, Tensors


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the model was trained before the audited round.

    Args:
        steps: Steps, one batch each; 0 leaves the model freshly initialised.
        lr: Learning rate.
        optimizer: `sgd`, with momentum 0.9, or `adam`.
        batch_size: Examples per step.
    """

    steps: int = 0
    lr: float = 0.02
    batch_size: int = 32
    optimizer: Literal["sgd", "adam"] = "sgd"

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "adam") or self.steps < 0 or self.lr <= 0 or self.batch_size < 1:
            raise SeepageError(
                f"training needs steps >= 0, lr > 0, batch_size >= 1 and sgd or adam, got {self}; correct the recipe"
            )


def train(
    model: nn.Module,
    state: tuple[Tensors, Tensors],
    batches: Callable[[Tensor], Batch],
    pool: Tensor,
    plan: Training,
    *,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensors, Tensors]:
    """Train from `state` on examples of `pool` and return the new `(params, buffers)`; the model is not changed.

    Args:
        model: Architecture.
        state: `(params, buffers)` to start from.
        batches: Turns data-set indices into a batch.
        pool: `[m]` indices the model may be trained on.
        plan: Steps, rate and batch size.
        seed: Seeds the drawing of batches.
        progress: Called with (done, total) steps.

    Raises:
        SeepageError: Where the loss stops being finite.
    """
    params = {name: tensor.clone().requires_grad_() for name, tensor in state[0].items()}
    buffers = {name: tensor.clone() for name, tensor in state[1].items()}
    leaves = list(params.values())
    optimizer: torch.optim.Optimizer
    if plan.optimizer == "adam":
        optimizer = torch.optim.Adam(leaves, lr=plan.lr)
    else:
        optimizer = torch.optim.SGD(leaves, lr=plan.lr, momentum=0.9)
    draw = generator(seed, "training")
    for step in range(plan.steps):
        chosen = pool[torch.randperm(len(pool), generator=draw)[: plan.batch_size]]
        batch = batches(chosen)
        with in_mode(model, training=True):
            # Not `forward`: training is meant to update the buffers.
            logits = torch.func.functional_call(model, {**params, **buffers}, (batch.inputs,))
        loss = F.cross_entropy(logits, batch.labels)
        if not torch.isfinite(loss):
            raise SeepageError(
                f"the training loss is {loss.item()} after {step} steps; lower the rate with --set training.lr="
                f"{plan.lr / 10:g}"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step + 1, plan.steps)
    return {name: tensor.detach() for name, tensor in params.items()}, buffers


def accuracy(model: nn.Module, state: tuple[Tensors, Tensors], batch: Batch) -> float:
    """Share of a batch that the model classifies rightly, in eval mode."""
    with torch.no_grad(), in_mode(model, training=False):
        logits = forward(model, state[0], batch.inputs, buffers=state[1])
    return float((logits.argmax(-1) == batch.labels).float().mean())
