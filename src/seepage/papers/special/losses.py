"""How training goes with and without a defense in every round (CAFE, Figure 7 and Table 11)."""

from collections.abc import Mapping
from typing import Any

from seepage.core.progress import ProgressCallback
from seepage.papers.run import Value
from seepage.papers.special.parties import finite, loss, parties_of
from seepage.recipe.resolve import cells

SHARES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Where Table 11 looks, as shares of all rounds: 0, 1,000, 2,000, 3,000, 4,000, 6,000 and 8,000."""


def training_losses(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """The mean loss over all samples after so many rounds, a row for each cell of the recipe.

    A row is called as its `[[case]]`, or `true gradients` without a defense. None where the loss is no longer finite.
    """
    recipes, values = cells(tables), []
    for number, recipe in enumerate(recipes):
        victim, _ = parties_of(recipe)
        row = "true gradients" if victim.defense is None else recipe.name
        for column, share in enumerate(SHARES):
            t = round(share * victim.rounds)
            found = finite(float(f"{loss(victim, t):.5g}"))
            facts = {"round": t, "defense": repr(victim.defense), "reason": None if found is not None else "diverged"}
            values.append(Value(row=row, column=column, ours=found, facts=facts))
        show(number + 1, len(recipes), recipe.name)
    return values
