"""Train a fresh model to the state in which a real server would send it out."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.audit.recipe.plans import Training
from seepage.base.nn import called, forward, generator, in_mode
from seepage.base.storage import read_tensors, write_tensors
from seepage.errors import SeepageError
from seepage.federation.clients.losses import target_of
from seepage.federation.models.weights import load_weights, pretrained_state, read_state
from seepage.federation.sent_tensors import check_fits
from seepage.federation.types import Architecture, Batch, Tensors

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
    state = pretrained_state(architecture.use) if own else read_state(Path(os.path.expanduser(plan.weights)))
    return load_weights(model, state, num_classes, plan.weights)


NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Where a training keeps how far it is, so that a killed one resumes with the same bits.

    Attributes:
        path: The file; None: nothing is kept.
        pause: Least seconds between two checkpoints.
    """

    path: Path | None = None
    pause: float = 10.0
    _saved_at: list[float] = field(default_factory=lambda: [time.monotonic()], repr=False)

    def load(self, params: Tensors, buffers: Tensors, optimizer: torch.optim.Optimizer, draw: torch.Generator) -> int:
        """Bring all four, in place, to the checkpoint; returns the number of steps taken, 0 where there is none."""
        if self.path is None or not self.path.exists():
            return 0
        kept = read_tensors(self.path)
        parts: dict[str, Tensors] = {"params": {}, "buffers": {}, "optimizer": {}, "draw": {}}
        for name, tensor in kept.items():
            head, _, rest = name.partition("/")
            parts.setdefault(head, {})[rest] = tensor
        for head, own in (("params", params), ("buffers", buffers)):
            check_fits(parts[head], own, f"the checkpoint {self.path}", "the model")
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(parts[head][name])
        state: dict[int, Tensors] = {}
        for name, tensor in parts["optimizer"].items():
            number, _, entry = name.partition("/")
            state.setdefault(int(number), {})[entry] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        draw.set_state(parts["draw"]["state"])
        return int(parts["draw"]["step"])

    def save(
        self, step: int, params: Tensors, buffers: Tensors, optimizer: torch.optim.Optimizer, draw: torch.Generator,
        *, last: bool = False,
    ) -> None:  # fmt: skip
        """Write the checkpoint, unless the latest one is younger than `pause`; the last one is always written."""
        if self.path is None or (not last and time.monotonic() - self._saved_at[-1] < self.pause):
            return
        tensors: Tensors = {"draw/state": draw.get_state(), "draw/step": torch.tensor(step)}
        for head, own in (("params", params), ("buffers", buffers)):
            tensors |= {f"{head}/{name}": tensor.detach().cpu() for name, tensor in own.items()}
        for number, entries in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{name}": torch.as_tensor(entry).cpu() for name, entry in entries.items()}
        write_tensors(self.path, tensors)
        self._saved_at[:] = [time.monotonic()]


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
    checkpoint: TrainingCheckpoint = TrainingCheckpoint(),
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
        checkpoint: From which an interrupted training resumes, with the same bits.

    Raises:
        SeepageError: If the loss stops being finite.
    """
    params = {name: tensor.clone().requires_grad_() for name, tensor in state[0].items()}
    buffers = {name: tensor.clone() for name, tensor in state[1].items()}
    if not plan.steps:  # PyTorch's first optimizer takes a second of a core to be made
        return {name: tensor.detach() for name, tensor in params.items()}, buffers
    leaves = list(params.values())
    optimizer: torch.optim.Optimizer
    if plan.optimizer == "adam":
        optimizer = torch.optim.Adam(leaves, lr=plan.lr)
    else:
        optimizer = torch.optim.SGD(leaves, lr=plan.lr, momentum=0.9)
    draw = generator(seed, "training")
    # The moments of the optimizer and the generator's state belong to the checkpoint: the rest follows from them.
    for step in range(checkpoint.load(params, buffers, optimizer, draw), plan.steps):
        chosen = pool[torch.randperm(len(pool), generator=draw)[: plan.batch_size]]
        batch = batches(chosen)
        with in_mode(model, training=True):
            # Not `forward`: training is meant to update the buffers.
            logits = called(model, {**params, **buffers}, batch.inputs)
        value = loss(logits, batch.labels)
        if not torch.isfinite(value):
            raise SeepageError(
                f"the training loss is {value.item()} after {step} steps; lower the rate with --set training.lr="
                f"{plan.lr / 10:g}"
            )
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        checkpoint.save(step + 1, params, buffers, optimizer, draw, last=step + 1 == plan.steps)
        progress(step + 1, plan.steps)
    return {name: tensor.detach() for name, tensor in params.items()}, buffers


def accuracy(model: nn.Module, state: tuple[Tensors, Tensors], batch: Batch, loss: str = "cross_entropy") -> float:
    """Share of a batch that the model classifies rightly, in eval mode; of tokens and pixels, where each has a target.

    Of values, the share of their variance that the model explains, at least 0; of a binary cross-entropy by the chances
    that its logits stand for.
    """
    with torch.no_grad(), in_mode(model, training=False):
        logits = forward(model, state[0], batch.inputs, buffers=state[1])
    labels = batch.labels
    if labels.is_floating_point() and target_of(labels, loss) == "value":
        said = logits.sigmoid() if loss == "bce" else logits
        left = (said - labels.reshape(logits.shape)).square().sum()
        whole = (labels - labels.mean(0)).square().sum()
        return max(0.0, float(1 - left / whole)) if whole > 0 else 0.0
    if labels.is_floating_point():  # chances of classes
        labels = labels.argmax(1)
    labeled = labels >= 0  # a token without a next one has no target
    # One logit is of the second class, where it is above zero.
    named = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
    return float((named == labels)[labeled].float().mean())
