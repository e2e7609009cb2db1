"""The parties of a recipe with `[rounds]`, in memory, and how well their model does."""

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.audit.record import built_model, open_data
from seepage.core.nn import forward, generator, in_mode, state_of
from seepage.errors import SeepageError
from seepage.recipe.case import Recipe
from seepage.transcript.vertical import IndexedVictim
from seepage.types import Batch, Knowledge, Tensors

UNSEEN = 100
"""Examples at most that accuracy is measured on; CAFE's Table 8 has as many."""


def parties_of(recipe: Recipe) -> tuple[IndexedVictim, Batch]:
    """The parties' joint data and protocol, as an audit would record them, and examples that they do not hold.

    Args:
        recipe: One cell, with `[rounds]`.

    Returns:
        The victim, and at most `UNSEEN` other private examples.

    Raises:
        SeepageError: Where the recipe has no `[rounds]`, and for mistakes in its data or model.
    """
    if recipe.rounds is None:
        raise SeepageError(f"the recipe {recipe.name} has no [rounds], which say who holds which samples; add them")
    dataset = open_data(recipe, {})
    model = built_model(recipe, dataset)
    knowledge = Knowledge(
        model=model,
        client=recipe.make_client(),
        input_shape=dataset.input_shape,
        num_classes=len(dataset.classes),
        told=frozenset({"indices"}),
        architecture=recipe.architecture,
    )
    order = torch.randperm(len(dataset.private), generator=generator(recipe.seed, "victims"))
    held, rest = (dataset.private[part] for part in order.tensor_split([recipe.rounds.samples]))
    data = dataset.batch(held).to(recipe.device)
    params, buffers = state_of(model)
    victim = IndexedVictim(
        knowledge=knowledge,
        params=params,
        data=Batch(data.inputs, data.labels, torch.arange(len(held))),
        design=recipe.rounds.drawn(recipe.batch.size, recipe.seed),
        rounds=recipe.rounds.count,
        buffers=buffers,
        defense=recipe.make_defense(),
        seed=recipe.seed,
        server=recipe.rounds.server,
    )
    return victim, dataset.batch(rest[:UNSEEN]).to(recipe.device)


def outputs(victim: IndexedVictim, params: Tensors, inputs: Tensor) -> Tensor:
    """`[n, classes]` what the model says of `[n, *shape]` inputs at these weights."""
    with torch.no_grad(), in_mode(victim.knowledge.model, training=False):
        parts = [forward(victim.knowledge.model, params, x, buffers=victim.buffers) for x in inputs.split(100)]
    return torch.cat(parts)


def loss(victim: IndexedVictim, t: int) -> float:
    """The mean loss over all samples after `t` rounds; not finite where training diverged."""
    found = outputs(victim, victim.params_at(t), victim.data.inputs)
    return float(F.cross_entropy(found, victim.data.labels))


def finite(value: float) -> float | None:
    """The value, or None where it is NaN or infinite.

    >>> finite(0.5), finite(float("inf"))
    (0.5, None)
    """
    return value if torch.isfinite(torch.tensor(value)) else None
