"""The victim of a recipe in memory, for items that look at more than an audit keeps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seepage.api import record
from seepage.audit.record import built_model, open_data
from seepage.core.nn import generator, state_of
from seepage.errors import SeepageError
from seepage.recipe.case import Recipe
from seepage.recipe.resolve import cells
from seepage.simulate.training import train
from seepage.transcript.simulated import SimulatedTranscript
from seepage.types import Batch


def first_cell(tables: Mapping[str, Any], seed: int) -> Recipe:
    """The first cell of a recipe's tables, at a seed."""
    return cells({**tables, "seed": seed})[0]


def victims_of(recipe: Recipe) -> list[tuple[SimulatedTranscript, Batch]]:
    """What the server sees of each private batch, with the batch, drawn as an audit draws them.

    Args:
        recipe: One cell without `[federation]`, `[rounds]` and `[[defense]]`.

    Returns:
        For each batch a transcript of one round, and the truth behind it.

    Raises:
        SeepageError: For mistakes in its data or model, and a defense.
    """
    if recipe.defense:
        raise SeepageError(f"this item looks at updates as they are, and {recipe.name} defends them; leave it out")
    dataset = open_data(recipe, {})
    model = built_model(recipe, dataset)

    def batch_of(places: Tensor) -> Batch:
        return dataset.batch(places).to(recipe.device)

    params, buffers = train(model, state_of(model), batch_of, dataset.train, recipe.training, seed=recipe.seed)
    model.load_state_dict({**params, **buffers})
    order = torch.randperm(len(dataset.private), generator=generator(recipe.seed, "victims"))
    chosen = dataset.private[order][: recipe.batch.size * recipe.batch.count]
    batches = [batch_of(part) for part in chosen.split(recipe.batch.size)]
    client, told = recipe.make_client(), recipe.knowledge.told
    return [(record(model, batch, client=client, told=told, seed=recipe.seed), batch) for batch in batches]  # type: ignore[arg-type]
