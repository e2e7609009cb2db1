"""The sweep of a frontier: defenses at several strengths, each against attackers aware and unaware of it.

[utility]    rounds = 100                                   federated training that the accuracy is measured after
[[frontier]] use = "gaussian_noise", clip = 1.0, sigma = [0.001, 0.01]   a list sweeps that option
[membership]                                                             who was in each batch is tested as well
[[frontier]] parts = [{ use = "dp_sgd", sigma = 0.5 }, { use = "soteria", ratio = 0.5 }]   several, left to right
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.plans import Count, RecipeTable
from seepage.audit.recipe.resolve import resolve_cases
from seepage.base.registry import Spec, membership_tests
from seepage.errors import SeepageError
from seepage.federation.types import Defense, Knowledge

DEFAULT_STRENGTHS: tuple[Mapping[str, Any], ...] = (
    {"use": "gaussian_noise", "clip": 1.0, "sigma": [0.001, 0.01, 0.1]},
    {"use": "dp_sgd", "sigma": [0.1]},
    {"use": "quantize", "bits": [4, 1]},
    {"use": "sparsify", "keep": [0.1]},
    {"use": "soteria", "ratio": [0.9]},
    {"use": "selective_encryption", "share": [0.2, 0.8]},
    {"use": "outpost", "prune": [0.9]},
)
"""The defenses that are swept if a recipe has no `[[frontier]]`."""

MAX_DEFENSES = 200
"""Largest number of defenses with their strengths; more are taken for a mistake in the recipe."""


@dataclass(frozen=True, kw_only=True)
class Utility(RecipeTable, table="utility"):
    """How the accuracy is measured.

    Args:
        rounds: Rounds of federated training with the defense in all clients, at least 1.
    """

    rounds: Count = 100


@dataclass(frozen=True)
class SweepEntry:
    """One defense at one strength, or none.

    Attributes:
        name: The defense with its strength, for display.
        recipe: The case whose attackers do not know of the defense.
        known: The case whose attackers know of it; None if no attack of the recipe can use that knowledge.
    """

    name: str
    recipe: Recipe
    known: Recipe | None


@dataclass(frozen=True)
class Sweep:
    """A frontier, fully resolved.

    Attributes:
        tables: The recipe that an audit runs: all cases.
        entries: The defenses of the cases; the first entry has none.
        utility: How the accuracy is measured.
    """

    tables: Mapping[str, Any]
    entries: tuple[SweepEntry, ...]
    utility: Utility


def sweep_of(tables: Mapping[str, Any], only: Sequence[Spec] = ()) -> Sweep:
    """The sweep of a recipe.

    Args:
        tables: A recipe's tables.
        only: The defenses to sweep: by name, of those in the recipe, or with options in place of the recipe's, of which
            a list is swept; empty: all of the recipe.

    Raises:
        SeepageError: For mistakes in the recipe.
    """
    for key in ("grid", "case", "defense", "rounds"):
        if tables.get(key):
            raise SeepageError(
                f"a frontier sweeps defenses over one setting, and this recipe has {key!r}; take it out, and name "
                "defenses in [[frontier]]"
            )
    utility = Utility.read(tables.get("utility", {}))
    choices = _choices(tables.get("frontier") or [dict(table) for table in DEFAULT_STRENGTHS], only)
    # Whoever compares defenses compares the rows of each attack.
    base = {"federation": {"clients": 20, "share": 0.5}, **tables, "all_attacks": True}
    base.pop("undefended", None)  # the first entry is
    plain = resolve_cases(base)[0]
    cases = [_case(parts, plain) for parts in choices]
    stated = [*plain.knowledge.known, *(["defense"] if "defense" not in plain.knowledge.known else [])]
    resolve_cases({**base, "case": cases})  # reports mistakes in a defense's options before it is constructed
    known = [_known(case, plain, stated) for case in cases]
    listed = [case for pair in zip(cases, known, strict=True) for case in pair if case is not None]
    swept = {key: value for key, value in base.items() if key != "frontier"}
    full = {**swept, "case": listed, "utility": {"rounds": utility.rounds}}
    recipes = iter(resolve_cases(full))
    entries = [SweepEntry("no defense", next(recipes), None)]
    for parts, case in zip(choices, known, strict=True):
        oblivious, words = next(recipes), " + ".join(str(Spec.of(table)) for table in parts)
        entries.append(SweepEntry(words, oblivious, next(recipes) if case is not None else None))
    return Sweep(full, tuple(entries), utility)


def _choices(tables: Any, only: Sequence[Spec]) -> list[list[dict[str, Any]]]:
    """Every defense at every strength, as lists of tables."""
    found = _strengths(tables)
    named = [part.use for part in only if not part.options]
    missing = [name for name in named if not any(part["use"] == name for parts in found for part in parts)]
    if missing:
        raise SeepageError(
            f"this frontier sweeps no {missing[0]!r}; give it strengths, as {missing[0]}:OPTION=VALUE,... or in a "
            "[[frontier]] table"
        )
    if only:
        found = [parts for parts in found if any(part["use"] in named for part in parts)]
        found += _strengths([part.table() for part in only if part.options])
    if not 0 < len(found) <= MAX_DEFENSES:
        raise SeepageError(
            f"a frontier sweeps 1 to {MAX_DEFENSES} defenses, and this recipe has {len(found)}; change its lists"
        )
    return found


def _strengths(tables: Any) -> list[list[dict[str, Any]]]:
    """Every combination of the options of each table."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise SeepageError("frontier must be a list of tables, written [[frontier]]")
    found: list[list[dict[str, Any]]] = []
    for table in tables:
        if "parts" in table:
            found.append(_composed(table))
            continue
        if not isinstance(table.get("use"), str):
            raise SeepageError('each [[frontier]] needs use = "NAME" of a defense, or parts = [{ use = "NAME" }, …]')
        lists = [value if isinstance(value, list) else [value] for value in table.values()]
        found += [[dict(zip(table, values, strict=True))] for values in itertools.product(*lists)]
    return found


def _composed(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = table["parts"]
    tables = isinstance(parts, list) and all(isinstance(part, dict) and "use" in part for part in parts)
    if not tables or not parts or len(table) > 1:
        raise SeepageError(f'[[frontier]] parts must be a list of tables with use = "NAME", and stand alone: {table!r}')
    return [dict(part) for part in parts]


def _case(parts: list[dict[str, Any]], plain: Recipe) -> dict[str, Any]:
    """The case of a defense as a recipe's case."""
    words = "_".join("-".join([str(v) if k == "use" else f"{k}-{v}" for k, v in table.items()]) for table in parts)
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in words)[:60].strip(".")
    return {"name": name, "defense": parts, "attack": [part.table() for part in plain.attack]}


def _known(case: Mapping[str, Any], plain: Recipe, stated: list[str]) -> dict[str, Any] | None:
    """The same case with attackers who know of the defense; None if no attack can use that knowledge.

    An attacker who knows that zero-sum noise cancels within a group sums up the updates of the group.
    """
    defense = replace(plain, defense=tuple(map(Spec.of, case["defense"]))).make_defense()
    if defense is None or "defense" in plain.knowledge.known:
        return None
    group = plain.federation.per_round if plain.federation is not None else 1
    if any(stage.acts_on == "group" for stage in defense.stages()) and group > 1:
        own = {
            "client": {**plain.client.table(), "clients": group},
            "batch": {"size": plain.batch.size * group, "count": plain.batch.count},
        }
        return {**case, **own, "name": f"{case['name']}_known", "knowledge": {"known": stated}}
    attacks = [part.table() for part in plain.attack if plain.make_attack(part).adapts(_known_to(plain, defense))]
    if not attacks and _tests_adapt(plain, defense):
        attacks = [part.table() for part in plain.attack]  # none makes anything of it, and a case has one at least
    return (
        {**case, "name": f"{case['name']}_known", "attack": attacks, "knowledge": {"known": stated}}
        if attacks
        else None
    )


def _tests_adapt(recipe: Recipe, defense: Defense) -> bool:
    """Whether a membership test of the recipe makes anything of the defense."""
    stated = _known_to(recipe, defense)
    uses = () if recipe.membership is None else recipe.membership.tests
    return any(membership_tests.build(Spec(use)).adapts(stated) for use in uses)


def _known_to(recipe: Recipe, defense: Defense) -> Knowledge:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))  # has a layer for every defense to prune
    return Knowledge(model, recipe.make_client(), (1,), 1, defense=defense)
