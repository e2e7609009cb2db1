"""Options of attacks chosen on batches of their own: `[tune]` of a recipe, `--tune` on the command line.

Every combination of values is a labeled attack of one more audit, whose batches come after the scored ones in the same
random order of private examples. So the two share the model and no example: the choice never saw what is scored.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seepage.audit.attack import attack_names
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.overrides import copy_tables, takes
from seepage.audit.recipe.plans import TunePlan
from seepage.audit.row import Result, Row, TunedRow, TunedTry
from seepage.base.registry import Spec
from seepage.errors import SeepageError, short

TUNING = "tune"
"""Folder of the tuning run, within the run folder."""
MOST_TRIES = 1000
"""Combinations of one attack's options; more count as a mistake."""
LEFT_OUT = ("tune", "membership", "bounds", "epsilon", "frontier", "utility", "expect", "small")


def tuning_tables(tables: Mapping[str, Any], recipes: Sequence[Recipe]) -> dict[str, Any]:
    """The recipe of the tuning run: every combination as an attack of its own, on batches after the scored ones.

    Args:
        tables: The recipe's tables, with `[tune]`.
        recipes: Its cases.

    Raises:
        SeepageError: Where no attack takes an option, and where the cases have attacks of their own.
    """
    plan = _plan(recipes)
    found = {key: copy_tables(value) for key, value in tables.items() if key not in LEFT_OUT}
    listed = found.get("attack", [])
    swept = [key for key in found.get("grid", {}) if key.partition(".")[0] == "attack"]
    if swept or any("attack" in case for case in found.get("case", [])):
        raise SeepageError(
            "[tune] chooses options for all cases, and cases of this recipe have attacks of their own; leave out the "
            "grid over attack, or the cases with attacks, or name the attack with --attack"
        )
    for key in plan.options:
        if not any(takes(table, "attack", key.removeprefix("attack.")) for table in listed):
            names = ", ".join(str(table.get("use")) for table in listed)
            raise SeepageError(f"no attack of this recipe takes {short(key)} (attacks: {names}); see seepage list")
    found["attack"] = [
        {**table, **options, "label": _label(name, place)}
        for name, table in zip(_names(listed), listed, strict=True)
        for place, options in enumerate(_tries(table, plan))
        if options
    ]
    # Scored are the first `count` batches of the order; a grid may choose how many, so the most of all cases count.
    found.pop("undefended", None)
    found["all_attacks"] = True  # comparing two values needs the rows of both
    batch = {**found.get("batch", {}), "count": plan.count, "skip": max(recipe.batch.count for recipe in recipes)}
    found["batch"] = batch
    for choice in found.get("grid", {}).get("batch", []):
        choice.pop("count", None)
    found.get("grid", {}).pop("batch.count", None)
    for case in found.get("case", []):
        case.get("batch", {}).pop("count", None)
    return found


def chosen_options(tables: Mapping[str, Any], recipes: Sequence[Recipe], tried: Result) -> list[TunedRow]:
    """For each attack that takes any of the options: the combination of highest mean score over the tuning cases.

    Args:
        tables: The recipe's tables.
        recipes: Its cases.
        tried: The result of the tuning run.
    """
    plan, found = _plan(recipes), []
    for name, table in zip(_names(tables["attack"]), tables["attack"], strict=True):
        tries = []
        metric = "psnr"
        for place, options in enumerate(_tries(table, plan)):
            rows = [row for row in tried.rows if row.attack == _label(name, place)]
            metric = "rouge_1" if any(row.of_text for row in rows) else metric
            tries.append(TunedTry(options=options, value=_mean(rows, metric)))
        if not any(one.options for one in tries):
            continue
        scored = [one for one in tries if one.value is not None]
        best = max(scored, key=lambda one: one.value or -math.inf, default=None)  # of equal ones the first
        chosen = {} if best is None else best.options
        run = TunedRow(attack=name, metric=metric, chosen=chosen, tried=tries, batches=plan.count, run=TUNING)
        found.append(run)
    return found


def with_options(tables: Mapping[str, Any], tuned: Sequence[TunedRow]) -> dict[str, Any]:
    """The recipe's tables with the options that were chosen."""
    chosen = {row.attack: row.chosen for row in tuned}
    own = [
        {**table, **chosen.get(name, {})}
        for name, table in zip(_names(tables["attack"]), tables["attack"], strict=True)
    ]
    return {**tables, "attack": own}


def _plan(recipes: Sequence[Recipe]) -> TunePlan:
    plan = recipes[0].tune
    assert plan is not None
    return plan


def _names(listed: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of a recipe's attacks in its run."""
    return attack_names([Spec.of(table) for table in listed])


def _label(name: str, place: int) -> str:
    return f"{name[:50]}-{place + 1}"


def _tries(table: Mapping[str, Any], plan: TunePlan) -> Iterator[dict[str, Any]]:
    """Every combination of the options that an attack takes; one without any where it takes none."""
    own = {key.removeprefix("attack."): values for key, values in plan.options.items()}
    own = {option: values for option, values in own.items() if takes(table, "attack", option)}
    if math.prod(map(len, own.values())) > MOST_TRIES:
        raise SeepageError(f"--tune has more than {MOST_TRIES:,} combinations; name fewer values")
    for values in itertools.product(*own.values()):
        yield dict(zip(own, values, strict=True))


def _mean(rows: Sequence[Row], metric: str) -> float | None:
    """Mean over cases, each of which has a score; None where one has none, so that no value wins by refusing."""
    values = [row.mean(metric) for row in rows]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else None
