"""Rows that ship beside a built-in recipe: what seepage's own attacks reached on the very same victims.

`recipes/compare/standard.json` is made from a run of `recipes/compare/standard.toml` by `experiments/compare.py`. It is
shown below what an audit of that recipe found with attacks of one's own, as long as nothing else was changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.files import BUILT_IN, find_recipe, read_recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.row import Row
from seepage.base.storage import read_json

MARK = " *"
"""Behind the name of an attack whose row is stored."""


@dataclass(frozen=True)
class Stored:
    """Stored rows.

    Attributes:
        rows: Of cases that were audited just now, the best of each case first.
        made: How they were made, in a sentence.
    """

    rows: tuple[Row, ...] = ()
    made: str = ""

    def of(self, case: str, found: Sequence[Row]) -> list[Row]:
        """Those of one case, but for attacks that ran just now with the same options."""
        ran = {(row.attack, row.options) for row in found}
        return [
            row.model_copy(update={"attack": row.attack + MARK})
            for row in self.rows
            if row.case == case and (row.attack, row.options) not in ran
        ]


def stored_rows(name: str | None, audited: Sequence[Recipe]) -> Stored:
    """What is stored of the recipe with this name, where the audited cases are its own.

    Args:
        name: As it was typed.
        audited: The cases, with whatever attacks.
    """
    place = find_recipe(name)
    beside = place.with_suffix(".json")
    if not place.is_relative_to(BUILT_IN) or not beside.is_file():
        return Stored()
    victims = {_victim(case) for case in audited}
    same = {case.case for case in resolve_cases(read_recipe(place)) if _victim(case) in victims}
    found: dict[str, Any] = read_json(beside)
    rows = [Row.model_validate(row) for row in found["rows"] if row["case"] in same]
    return Stored(tuple(rows), found["made"])


def _victim(case: Recipe) -> str:
    """What is attacked, in words: the case without whatever attacks it, and how long these may take."""
    return repr(replace(case, attack=(), all_attacks=False, device="cpu"))
