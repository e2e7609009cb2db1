"""The parties of a recipe with `[rounds]`, in memory, and how well their model does."""

import torch
from torch import Tensor

from seepage.core.nn import forward, in_mode
from seepage.errors import SeepageError
from seepage.recipe.case import Recipe
from seepage.simulate.setting import Setting
from seepage.transcript.vertical import IndexedVictim
from seepage.types import Batch, Tensors

MAX_UNSEEN = 100
"""Examples at most that accuracy is measured on; CAFE's Table 8 has as many."""


def parties_of(recipe: Recipe) -> tuple[IndexedVictim, Batch]:
    """The parties' joint data and protocol, as an audit would record them, and examples that they do not hold.

    Args:
        recipe: One cell, with `[rounds]`.

    Returns:
        The victim, and at most `MAX_UNSEEN` other private examples.

    Raises:
        SeepageError: Where the recipe has no `[rounds]`, and for mistakes in its data or model.
    """
    if recipe.rounds is None:
        raise SeepageError(f"the recipe {recipe.name} has no [rounds], which say who holds which samples; add them")
    setting = Setting.of(recipe)
    victim, _ = setting.victim()
    assert isinstance(victim, IndexedVictim)  # as the recipe has [rounds]
    return victim, setting.batch(setting.unseen[:MAX_UNSEEN])


def outputs(victim: IndexedVictim, params: Tensors, inputs: Tensor) -> Tensor:
    """`[n, classes]` what the model says of `[n, *shape]` inputs at these weights."""
    with torch.no_grad(), in_mode(victim.knowledge.model, training=False):
        parts = [forward(victim.knowledge.model, params, x, buffers=victim.buffers) for x in inputs.split(100)]
    return torch.cat(parts)


def loss(victim: IndexedVictim, t: int) -> float:
    """The mean loss over all samples after `t` rounds; not finite where training diverged."""
    found = outputs(victim, victim.params_at(t), victim.data.inputs)
    return float(victim.knowledge.client.loss_of(found, victim.data.labels))


def finite(value: float) -> float | None:
    """The value, or None where it is NaN or infinite.

    >>> finite(0.5), finite(float("inf"))
    (0.5, None)
    """
    return value if torch.isfinite(torch.tensor(value)) else None
