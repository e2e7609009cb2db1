"""From a recipe's tables to audit cases, with every mistake found at once; and back to TOML with all defaults."""

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

import tomli_w

from seepage.audit.recipe.auxiliary import Auxiliary
from seepage.audit.recipe.case import AttackerKnowledge, Recipe, Scoring
from seepage.audit.recipe.overrides import choose, copy_tables, overlay
from seepage.audit.recipe.parts import problems_of, seed_problems
from seepage.audit.recipe.plans import (
    Batches,
    BoundsPlan,
    EpsilonPlan,
    Federation,
    MembershipPlan,
    RecipeTable,
    Rounds,
    Training,
)
from seepage.base.registry import Spec
from seepage.base.storage import SCHEMA
from seepage.errors import Problems, SeepageError, short

_TABLES: dict[str, type[RecipeTable]] = {
    one.table: one
    for one in (
        Training, Federation, Batches, Rounds, AttackerKnowledge, Auxiliary, MembershipPlan, BoundsPlan, EpsilonPlan,
        Scoring,
    )
}  # fmt: skip
_PLAIN: dict[str, type] = {"name": str, "seed": int, "device": str, "all_attacks": bool,
                           "undefended": bool}  # fmt: skip
_LABEL = re.compile(r"[A-Za-z0-9_][\w.-]{0,59}", re.ASCII)
"""Folders are called by labels."""
MOST_CASES = 10_000
"""Combinations of a grid; more count as a mistake."""
_OF_CASE = ("case", "varied", "twin", "control")
"""Fields of a `Recipe` that say which case it is."""
_ASIDE = ("expect", "small", "frontier", "utility")
"""What an audit leaves alone: what `seepage reproduce` reads, and what `seepage frontier` sweeps and trains."""
_KEYS = [*_PLAIN, "data", "model", "client", "partition", *_TABLES, "defense", "attack", "grid", "case", *_ASIDE]


def resolve_cases(tables: Mapping[str, Any], *, controls: bool = False) -> list[Recipe]:
    """The audit cases of a recipe: one per combination of its grid, in order.

    Args:
        tables: The recipe's tables.
        controls: Whether the cases that `undefended` asks for follow: those with a defense, without it.

    Raises:
        Problems: With every mistake in the recipe.
    """
    problems = _unknown_keys(tables)
    recipes: list[Recipe] = []
    for choice in _combinations(tables.get("grid", {}), problems):
        case = _base(tables)
        try:
            for key, value in choice.items():
                choose(case, key, value)
        except SeepageError as error:
            problems.append(str(error))
            continue
        recipe = _resolve(case, _case_name(choice), problems)
        if recipe is not None:
            varied = frozenset(key.partition(".")[0] for key in choice)
            recipes.append(_numbered(replace(recipe, varied=varied), recipes))
    for case in _list(tables.get("case", []), "case", problems):
        recipe = _laid_over(case, _base(tables), problems)
        if recipe is not None:
            recipes.append(_numbered(recipe, recipes))
    if problems:
        raise Problems("the recipe has mistakes:", dict.fromkeys(problems))
    return _with_twins(recipes, controls=controls)


def _with_twins(recipes: Sequence[Recipe], *, controls: bool) -> list[Recipe]:
    """The cases, each with a defense beside its name without one: a case of the recipe, or else one that is added."""
    plain = {_undefended(recipe): recipe.case for recipe in recipes if not recipe.defense}
    found, added = [], list[Recipe]()
    for recipe in recipes:
        same = _undefended(recipe)
        if controls and recipe.defense and recipe.undefended and same not in plain:
            known = AttackerKnowledge(known=[item for item in recipe.knowledge.known if item != "defense"])
            control = replace(
                recipe, case=f"{recipe.case[:68]}_undefended", varied=recipe.varied | {"defense"}, defense=(),
                knowledge=known, bounds=None, epsilon=None, control=True,
            )  # fmt: skip
            added.append(_numbered(control, [*recipes, *added]))
            plain[same] = added[-1].case
        found.append(replace(recipe, twin=plain.get(same)) if recipe.defense else recipe)
    return found + added


def _undefended(recipe: Recipe) -> str:
    """What two cases have in common that differ in their defense alone, and in what is measured beside the attacks."""
    known = AttackerKnowledge(known=[item for item in recipe.knowledge.known if item != "defense"])
    return repr(
        replace(
            recipe, case="", varied=frozenset(), defense=(), knowledge=known, membership=None, bounds=None,
            epsilon=None, undefended=False,
        )
    )  # fmt: skip


def _base(tables: Mapping[str, Any]) -> dict[str, Any]:
    """A case's tables before anything is chosen."""
    return {key: copy_tables(value) for key, value in tables.items() if key not in ("grid", "case", *_ASIDE)}


def _laid_over(case: Any, base: dict[str, Any], problems: list[str]) -> Recipe | None:
    """A case beyond the grid: every table of the case is laid over the recipe's."""
    if not isinstance(case, Mapping) or not isinstance(case.get("name"), str):
        problems.append('each [[case]] needs a name, such as name = "vertical"')
        return None
    unknowns = [key for key in case if key not in _KEYS or key in ("grid", "case", *_ASIDE, "score")]
    if unknowns:
        problems.append(f"the case {case['name']!r} cannot set {', '.join(unknowns)}")
        return None
    return _resolve(overlay(base, case), _case_name({"case.use": case["name"]}), problems)


def _unknown_keys(tables: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in tables:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            problems.append(f"unknown key {key!r}; {hint}a recipe has: {', '.join(_KEYS)}")
    return problems


def _combinations(grid: Any, problems: list[str]) -> list[dict[str, Any]]:
    """All combinations of a grid's values, the last key varying fastest; `[{}]` for a grid with a mistake.

    Args:
        grid: The recipe's `[grid]` table, unchecked: dotted key to a list of values.
        problems: A sentence is appended for each mistake.
    """
    if not isinstance(grid, Mapping):
        problems.append('[grid] must be a table such as "batch.size" = [1, 8]')
        return [{}]
    for key, values in grid.items():
        head = key.partition(".")[0]
        if not isinstance(values, list) or not values:
            problems.append(f"grid {key!r} must be a list with at least one value, got {values!r}")
            return [{}]
        if head not in _KEYS or head in ("grid", "case", *_ASIDE, "name", "score"):
            problems.append(f"grid {key!r} is no key of a recipe")
            return [{}]
    count = math.prod(len(values) for values in grid.values())
    if count > MOST_CASES:
        problems.append(f"the grid has {count} combinations and {MOST_CASES} are the most; make its lists shorter")
        return [{}]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _case_name(choice: Mapping[str, Any]) -> str:
    """A folder name for a combination: `fc2_size-8_steps-0`."""
    words = []
    for key, value in choice.items():
        head, _, rest = key.partition(".")
        pairs = value.items() if isinstance(value, dict) else [(rest or head, value)]
        # How many batches are drawn makes no other case.
        named = [(k, v) for k, v in pairs if (head, k) != ("batch", "count")]
        words += [str(v) if k == "use" else f"{k}-{_word(v)}" for k, v in named]
    name = "_".join(words) or "case"
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:80].strip(".") or "case"


def _numbered(recipe: Recipe, others: Sequence[Recipe]) -> Recipe:
    """The recipe with a number behind its case name where another has the same: each case has a folder of its own."""
    names = {other.case for other in others}
    name, number = recipe.case, 2
    while name in names:
        name, number = f"{recipe.case}-{number}", number + 1
    return replace(recipe, case=name)


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(_word(item) for item in value.values())
    if isinstance(value, list):
        return "+".join(_word(item) for item in value) or "none"
    return str(value)


def _resolve(tables: Mapping[str, Any], name: str, problems: list[str]) -> Recipe | None:
    """One case's tables as a `Recipe`; mistakes are added to `problems`."""
    before = len(problems)
    given: dict[str, Any] = {"case": name}
    for key, kind in _PLAIN.items():
        if key in tables:
            taken = (int, float) if kind is float else kind
            if not isinstance(tables[key], taken) or (kind is not bool and isinstance(tables[key], bool)):
                words = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a text")
                problems.append(f"{key} must be {words}, got {short(tables[key])}")
            elif kind is int:
                problems += seed_problems(tables[key], key)
            given[key] = tables[key]
    for key, make in _TABLES.items():
        if key in tables:
            given[key] = _table(make, tables[key], problems)
    for key, default in (("data", "album"), ("model", "fc2"), ("client", "fedsgd"), ("partition", "iid")):
        given[key] = _part(tables.get(key, {}), key, problems, default)
    for key in ("defense", "attack"):
        given[key] = tuple(_part(table, key, problems) for table in _list(tables.get(key, []), key, problems))
    if not given["attack"] and isinstance(tables.get("attack", []), list):
        problems.append('the recipe names no attack; add [[attack]] with use = "linear" or another of seepage list')
    if len(problems) > before:
        return None
    recipe = Recipe(**given)
    try:
        _ = recipe.rounds and recipe.rounds.drawn(recipe.batch.size, recipe.seed)
    except SeepageError as error:
        problems.append(str(error))
    if recipe.rounds is not None and recipe.federation is not None:
        problems.append("[rounds] follow one data set and [federation] shares it out; leave one of them out")
    if recipe.federation is not None and recipe.auxiliary is not None and recipe.auxiliary.use is None:
        problems.append("[federation] shares out all of the data set, so [auxiliary] needs use = ANOTHER; add it")
    if recipe.federation is None and "partition" in tables:
        problems.append("[partition] shares data out among the clients of a [federation]; add that table")
    return recipe


def _list(value: Any, key: str, problems: list[str]) -> list[Any]:
    if isinstance(value, list):
        return value
    problems.append(f"{key} must be a list of tables, written [[{key}]]")
    return []


def _table(make: type[RecipeTable], table: Any, problems: list[str]) -> RecipeTable | None:
    try:
        return make.read(table)
    except Problems as error:
        problems += error.problems
    except SeepageError as error:
        problems.append(str(error))
    return None


def _part(table: Any, key: str, problems: list[str], default: str | None = None) -> Spec:
    """The name and options of a part, such as an attack, from a recipe's unchecked table.

    Args:
        table: The table.
        key: Its key in the recipe.
        problems: A sentence is appended for each mistake.
        default: Name of the part where the table has no `use`; None: `use` is required.
    """
    if not isinstance(table, Mapping) or not isinstance(table.get("use", default), str):
        problems.append(f'{key} must be a table with use = "NAME", got {table!r}')
        return Spec("")
    part = Spec.of({"use": default, **table})
    label = table.get("label", "x")
    if ("label" in table and key != "attack") or not isinstance(label, str) or _LABEL.fullmatch(label) is None:
        problems.append(
            f"{key} {part.use!r}: label names the rows of an attack: letters, digits, '.', '-' and '_', "
            f"got {short(table['label'])}"
        )
    try:
        problems += problems_of(part, key)
    except SeepageError as error:
        problems.append(str(error))
    return part


def resolved(tables: Mapping[str, Any], recipes: Sequence[Recipe]) -> str:
    """The recipe as TOML with every default written out, so that the file alone repeats the run."""
    first = recipes[0]
    out = {f.name: _written(getattr(first, f.name)) for f in fields(first) if f.name not in _OF_CASE}
    if first.federation is None:  # by whom the data are held
        del out["partition"]
    for head, option in _swept(tables.get("grid", {})):
        # A choice of the grid that leaves this option out takes the recipe's own value, or else the default.
        own = tables.get(head, {})
        out[head].pop(option, None)
        if isinstance(own, Mapping) and option in own:
            out[head][option] = own[option]
    # What is off is left out: the text, and with it the name of the run, is what it was before there was such a key.
    out = {key: value for key, value in out.items() if value not in (None, [], {}) and value is not False}
    for key in ("grid", "case", "frontier", "utility"):
        if tables.get(key):
            out[key] = tables[key]
    return tomli_w.dumps(out)


def _written(value: Any) -> Any:
    """A field of a recipe as TOML has it.

    TOML has no null: an option that is None is left out, as it was in the recipe.
    """
    if isinstance(value, Spec):
        return value.table()
    if isinstance(value, tuple | list):
        return [_written(item) for item in value]
    if not is_dataclass(value):
        return value
    said = {f.name: getattr(value, f.name) for f in fields(value)}
    return {name: _written(option) for name, option in said.items() if option is not None}


def _swept(grid: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Table and option of each value that a grid sweeps, for tables that hold one thing."""
    pairs = []
    for key, choices in grid.items():
        head, _, rest = key.partition(".")
        if head in (*_PLAIN, "attack", "defense"):
            continue
        options = [rest] if rest else [name for choice in choices for name in choice]
        pairs += [(head, option) for option in options]
    return pairs


def run_name(text: str, name: str) -> str:
    """`NAME-HASH`: the same resolved recipe gives the same folder."""
    digest = hashlib.sha256(f"{SCHEMA}\n{text}".encode()).hexdigest()[:10]
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40].strip("-") or "audit"
    return f"{safe}-{digest}"
