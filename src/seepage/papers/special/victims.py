"""Victims of a recipe in memory, for items that need more than an audit keeps."""

from collections.abc import Mapping
from typing import Any

from seepage.api import record
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.simulate.setting import Setting
from seepage.errors import SeepageError
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.federation.types import Batch

MAX_UNSEEN = 100
"""Examples at most that accuracy is measured on; CAFE's Table 8 has as many."""


def first_case(tables: Mapping[str, Any], seed: int) -> Recipe:
    """The first case of a recipe's tables, at a seed."""
    return resolve_cases({**tables, "seed": seed})[0]


def victims_of(recipe: Recipe) -> list[tuple[SimulatedTranscript, Batch]]:
    """Pairs of a transcript and its private batch, drawn as an audit draws them.

    Args:
        recipe: One case without `[federation]`, `[rounds]` and `[[defense]]`.

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
    client, known = recipe.make_client(), recipe.knowledge.known
    return [(record(model, batch, client=client, known=known, seed=recipe.seed), batch) for batch in setting.batches]  # type: ignore[arg-type]


def parties_of(recipe: Recipe) -> tuple[IndexedVictim, Batch]:
    """The parties' joint data and protocol, as an audit would record them, and examples that they do not hold.

    Args:
        recipe: One case, with `[rounds]`.

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
