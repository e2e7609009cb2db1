"""Train a fresh model to the state in which a real server would send it out."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.nn import forward, generator, in_mode
from seepage.errors import SeepageError
from seepage.models.weights import load_weights, pretrained_state, read_state
from seepage.recipe.plans import Training
from seepage.types import Architecture, Batch, Tensors

WIDE_START = 0.5
"""Largest absolute value of a parameter of `training.init = wide`."""


def begin(model: nn.Module, plan: Training, architecture: Architecture, num_classes: int, *, seed: int) -> str | None:
    """Bring a fresh model, in place, to the initial state of its training.

    Returns:
        A sentence for the report if only some of the weights were loaded, else None.

    Raises:
        SeepageError: Where the weights cannot be read or do not fit.
    """
    if plan.init == "wide":
        draw = generator(seed, "wide")
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, NORMALIZATIONS):
                    continue
                for parameter in module.parameters(recurse=False):
                    drawn = torch.rand(parameter.shape, generator=draw) * 2 * WIDE_START - WIDE_START
                    parameter.copy_(drawn)
    if plan.weights is None:
        return None
    own = plan.weights == "pretrained"
    state = pretrained_state(architecture.use) if own else read_state(Path(plan.weights).expanduser())
    return load_weights(model, state, num_classes, plan.weights)


NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def train(
    model: nn.Module,
    state: tuple[Tensors, Tensors],
    batches: Callable[[Tensor], Batch],
    pool: Tensor,
    plan: Training,
    *,
    seed: int,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensors, Tensors]:
    """Train from `state` on examples of `pool` and return the new `(params, buffers)`; the model is not changed.

    Args:
        model: Architecture.
        state: `(params, buffers)` to start from.
        batches: Turns data-set indices into a batch.
        pool: `[m]` indices of the examples that may be used for training.
        plan: Steps, rate and batch size.
        seed: Seeds the draws of batches.
        loss: The mean loss of `[n, classes]` outputs against labels.
        progress: Called with (done, total) steps.

    Raises:
        SeepageError: If the loss stops being finite.
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
        value = loss(logits, batch.labels)
        if not torch.isfinite(value):
            raise SeepageError(
                f"the training loss is {value.item()} after {step} steps; lower the rate with --set training.lr="
                f"{plan.lr / 10:g}"
            )
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        progress(step + 1, plan.steps)
    return {name: tensor.detach() for name, tensor in params.items()}, buffers


def accuracy(model: nn.Module, state: tuple[Tensors, Tensors], batch: Batch) -> float:
    """Share of a batch that the model classifies rightly, in eval mode."""
    with torch.no_grad(), in_mode(model, training=False):
        logits = forward(model, state[0], batch.inputs, buffers=state[1])
    return float((logits.argmax(-1) == batch.labels).float().mean())
