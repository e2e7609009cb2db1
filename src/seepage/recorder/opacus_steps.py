"""Opacus: steps of a private optimizer as outputs whose epsilon can be measured. Needs `seepage[opacus]`.

    pairs = step_pairs(model, optimizer, F.cross_entropy, inputs, labels)
    print(Measurement(delta=1e-5, unit="example", computed=epsilon(sigma=1.1)).pairs(pairs).line)

Each call is a real step from the same weights: forward pass, backward pass, `optimizer.step()`. What is measured is how
the weights moved. The canary is one example that is in the batch, or is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.base.nn import generator
from seepage.errors import SeepageError
from seepage.measure.privacy.measured import Pair
from seepage.measure.privacy.measured.canaries import MAX_ENTRIES, Array

Loss = Callable[[Tensor, Tensor], Tensor]
CANARIES = (("an example", 1.0), ("an example 100 times as strong", 100.0))


def step_pairs(
    model: nn.Module,
    optimizer: Any,
    loss: Loss,
    inputs: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
) -> list[Pair]:
    """Pairs of an example that joins a step's batch.

    Args:
        model: What `PrivacyEngine.make_private` returned, with few parameters; its weights are put back after each
            step, and the optimizer's momentum is not.
        optimizer: The optimizer that it returned. Its steps are not counted by the engine's accountant.
        loss: The mean loss of outputs and labels.
        inputs: `[n, *shape]` examples that are in every batch, at least one. The canary is another one.
        labels: `[n]` their classes.
        seed: Draws the canary.

    Raises:
        SeepageError: For a model that is too large, and for no examples.
    """
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    size = sum(parameter.numel() for parameter in params)
    if not 0 < size <= MAX_ENTRIES:
        raise SeepageError(
            f"this model trains {size} numbers, and steps are measured on 1 to {MAX_ENTRIES}; give a small one, since "
            "the noise does not depend on it"
        )
    if not len(inputs):
        raise SeepageError("a step needs examples; give at least one")
    draw = generator(seed, "canary")
    found = []
    for name, strength in CANARIES:
        x = strength * torch.randn(inputs.shape[1:], generator=draw).to(inputs)
        y = labels[0]  # a class that the model has
        step = _CanaryStep(model, optimizer, loss, params, (inputs, labels), (x, y))
        found.append(Pair(name, partial(step.sample, False), partial(step.sample, True), step.direction()))
    return found


@dataclass(frozen=True)
class _CanaryStep:
    """Steps with and without one canary."""

    model: nn.Module
    optimizer: Any
    loss: Loss
    params: list[nn.Parameter]
    batch: tuple[Tensor, Tensor]
    canary: tuple[Tensor, Tensor]

    def moved(self, *, included: bool) -> Array:
        """The change of the weights by one step; the weights themselves are restored."""
        inputs, labels = self.batch
        if included:
            x, y = self.canary
            inputs, labels = torch.cat([inputs, x[None]]), torch.cat([labels, y[None].to(labels)])
        before = [parameter.detach().clone() for parameter in self.params]
        hook, self.optimizer.step_hook = self.optimizer.step_hook, None  # the accountant counts the training alone
        try:
            self.optimizer.zero_grad()
            self.loss(self.model(inputs), labels).backward()
            self.optimizer.step()
        finally:
            self.optimizer.step_hook = hook
        after = torch.cat([(p.detach() - b).flatten() for p, b in zip(self.params, before, strict=True)])
        with torch.no_grad():
            for parameter, weights in zip(self.params, before, strict=True):
                parameter.copy_(weights)
        found: Array = after.double().cpu().numpy()
        return found

    def sample(self, included: bool, trials: int, rounds: int) -> Array:
        """Changes by single steps, `[trials, rounds, d]`."""
        rows = [self.moved(included=included) for _ in range(trials * rounds)]
        return np.stack(rows).reshape(trials, rounds, -1)

    def direction(self) -> Array:
        """The gradient of the canary alone, as it moves the weights: less of it."""
        x, y = self.canary
        self.model.disable_hooks()  # type: ignore[operator]  # which keep gradients for the optimizer
        try:
            parts = torch.autograd.grad(self.loss(self.model(x[None]), y[None]), self.params, allow_unused=True)
        finally:
            self.model.enable_hooks()  # type: ignore[operator]
        whole = [torch.zeros_like(p) if g is None else g for p, g in zip(self.params, parts, strict=True)]
        found: Array = -torch.cat([part.flatten() for part in whole]).detach().double().cpu().numpy()
        return found
