"""The victim of a recipe in memory, for items that look at more than an audit keeps."""

from collections.abc import Mapping
from typing import Any

from seepage.api import record
from seepage.errors import SeepageError
from seepage.recipe.case import Recipe
from seepage.recipe.resolve import cells
from seepage.simulate.setting import Setting
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
    setting = Setting.of(recipe)
    model, (params, buffers) = setting.model, setting.state
    model.load_state_dict({**params, **buffers})
    client, told = recipe.make_client(), recipe.knowledge.told
    return [(record(model, batch, client=client, told=told, seed=recipe.seed), batch) for batch in setting.batches]  # type: ignore[arg-type]
