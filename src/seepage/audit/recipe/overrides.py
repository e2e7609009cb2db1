"""Changes to a recipe's tables: `key=value` settings of the command line, and one choice of a grid."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any

from seepage.base.registry import attacks, defenses
from seepage.base.toml import load_toml
from seepage.errors import SeepageError, short


def change(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Apply `key=value` settings of the command line, e.g. `attack.steps=50` or `data.size=64`.

    A setting of `attack` goes to every attack that takes that option, one of `defense` to every such defense. A
    setting replaces a grid over the same key.

    Raises:
        SeepageError: Where a setting has no `=`, or nothing takes the option.

    >>> change({"batch": {"size": 1}}, ["batch.size=4"])
    {'batch': {'size': 4}}
    """
    tables = copy_tables(tables)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            raise SeepageError(f"--set takes KEY=VALUE such as batch.size=4, got {setting!r}")
        put(tables, key.strip(), parsed(text.strip()))
    return tables


def overlay(tables: Mapping[str, Any], changes: Mapping[str, Any], *, keep: bool = False) -> dict[str, Any]:
    """A recipe's tables with others laid over them: a case, a choice of a grid, an item's small form.

    Tables are merged option by option; texts, numbers, lists and the grid are replaced whole. Options of one model, or
    data set, are none of another's: where a table names another thing, it is replaced whole as well. An empty list or
    grid takes the recipe's own away.

    Args:
        tables: A recipe's tables, which are left as they are.
        changes: What is laid over them.
        keep: Let options stay where another thing is named.

    >>> overlay({"batch": {"size": 32, "count": 4}, "seed": 1}, {"batch": {"size": 2}})
    {'batch': {'size': 2, 'count': 4}, 'seed': 1}
    >>> overlay({"model": {"use": "fc2", "hidden": 9}}, {"model": {"use": "convnet"}})
    {'model': {'use': 'convnet'}}
    """
    merged = dict(tables)
    for key, value in changes.items():
        own = merged.get(key)
        merged[key] = copy_tables(value)
        if isinstance(own, dict) and isinstance(value, dict) and key != "grid":
            same = value.get("use", own.get("use")) == own.get("use")
            merged[key] = {**own, **merged[key]} if same or keep else merged[key]
        if value == [] or (key == "grid" and value == {}):
            del merged[key]
    return merged


def copy_tables(value: Any) -> Any:
    """A deep copy of dicts and lists."""
    if isinstance(value, dict):
        return {key: copy_tables(item) for key, item in value.items()}
    return [copy_tables(item) for item in value] if isinstance(value, list) else value


def walk(tables: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value in tables that is no table and no list, in order, with the keys that lead to it.

    >>> list(walk({"grid": {"model.use": ["fc2", "vit"]}, "attack": [{"steps": 3}]}))
    [(('grid', 'model', 'use'), 'fc2'), (('grid', 'model', 'use'), 'vit'), (('attack', 'steps'), 3)]
    """
    if isinstance(tables, Mapping):
        for key, value in tables.items():
            yield from walk(value, (*where, *str(key).split(".")))
    elif isinstance(tables, list | tuple):
        for value in tables:
            yield from walk(value, where)
    else:
        yield where, tables


def texts_in(tables: Any) -> Iterator[tuple[str, str]]:
    """Every text in tables with its place, `data.use`; whether in a grid, in a case, or neither, is left out."""
    for where, text in walk(tables):
        if isinstance(text, str):
            yield ".".join([*dropwhile({"grid", "case"}.__contains__, where[:-1]), *where[-1:]]), text


def parsed(text: str) -> Any:
    """A TOML value; bare words are texts."""
    try:
        return load_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set one value, in place: what `change` does for each setting, with a value that needs no parsing."""
    head, _, rest = key.partition(".")
    _unsweep(tables, key)
    if head in _LISTS and rest:
        _put_in_list(tables.get(head, []), head, rest, value)
    elif rest:
        _table(tables, head)[rest] = value
    else:
        tables[head] = value


def choose_part(tables: dict[str, Any], head: str, use: str) -> None:
    """Name another `data` or `model`, in place. The options of the old one do not belong to the new one and go."""
    drop_cases(tables, head)
    own = tables.get(head)
    swept = any(name in (head, f"{head}.use") for name in tables.get("grid", {}))
    if swept or not isinstance(own, dict) or own.get("use") != use:
        put(tables, head, {"use": use})


def drop_cases(tables: dict[str, Any], head: str) -> None:
    """Take out, in place, the cases that set `head` themselves: who chooses it by hand does not ask for those."""
    cases = [case for case in tables.get("case", []) if not (isinstance(case, dict) and head in case)]
    tables["case"] = cases
    if not cases:
        del tables["case"]


def _put_in_list(parts: Any, head: str, option: str, value: Any) -> None:
    """Set an option of every part (attack or defense) that takes it."""
    listed = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    takers = [part for part in listed if takes(part, head, option)]
    if not takers:
        names = ", ".join(str(part.get("use")) for part in listed) or "none"
        raise SeepageError(f"no {head} of this recipe takes the option {option!r} ({head}s: {names}); see seepage list")
    for part in takers:
        part[option] = value


def _table(tables: dict[str, Any], head: str) -> dict[str, Any]:
    found = tables.setdefault(head, {})
    if not isinstance(found, dict):
        raise SeepageError(f"{head} is {short(found)} in this recipe and has no options; set {head} itself")
    return found


def _unsweep(tables: dict[str, Any], key: str) -> None:
    """Take a key out of the grid, also where the grid sweeps its whole table, or parts of a table that is set whole."""
    grid = tables.get("grid", {})
    if not isinstance(grid, dict):
        return
    head, _, rest = key.partition(".")
    for swept in [name for name in grid if name == key or (not rest and name.startswith(f"{head}."))]:
        del grid[swept]
    choices = grid.get(head)
    if rest and isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        left = [{name: value for name, value in choice.items() if name != rest} for choice in choices]
        # How many batches are drawn does not make another case, as it makes no other case name.
        cases = [{name: value for name, value in choice.items() if name != "count"} for choice in left]
        grid[head] = [choice for i, choice in enumerate(left) if choice and cases[i] not in cases[:i]]
        if not grid[head]:
            del grid[head]
    if not grid:
        tables.pop("grid", None)


_LISTS = {"attack": attacks, "defense": defenses}
"""Tables that a recipe lists, with what their names stand for."""


def takes(part: Mapping[str, Any], head: str, option: str) -> bool:
    """Whether an attack or a defense takes an option, as far as that is known without importing its code."""
    entry = _LISTS[head].get(str(part.get("use")))
    if entry is None:
        return True  # somebody's own; checked when it is made
    return option in [known.name for known in entry.options]


def choose(case: dict[str, Any], key: str, value: Any) -> None:
    """Put one choice of a grid into a case's tables."""
    head, _, rest = key.partition(".")
    if rest:
        put(case, key, value)
    else:
        case[head] = overlay(case, {head: value}, keep=True).get(head, value)
