"""Changes to a recipe's tables: `key=value` settings of the command line, and one choice of a grid."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from seepage.attacks import ATTACKS
from seepage.errors import SeepageError
from seepage.named import problems_with


def change(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Apply `key=value` settings of the command line, e.g. `attack.steps=50` or `data.size=64`.

    A setting of `attack` goes to every attack that takes that option. A setting replaces a grid over the same key.

    Raises:
        SeepageError: Where a setting has no `=`, or no attack takes the option.

    >>> change({"batch": {"size": 1}}, ["batch.size=4"])
    {'batch': {'size': 4}}
    """
    tables = copy_tables(tables)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise SeepageError(f"--set takes KEY=VALUE such as batch.size=4, got {setting!r}")
        _set(tables, key.strip(), _value(text.strip()))
    return tables


def copy_tables(value: Any) -> Any:
    """A deep copy of dicts and lists."""
    if isinstance(value, dict):
        return {key: copy_tables(item) for key, item in value.items()}
    return [copy_tables(item) for item in value] if isinstance(value, list) else value


def _value(text: str) -> Any:
    """A TOML value; bare words are texts."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _set(tables: dict[str, Any], key: str, value: Any) -> None:
    head, _, rest = key.partition(".")
    _unsweep(tables, key)
    if head == "attack" and rest:
        takers = [table for table in tables.get("attack", []) if _takes(table, rest)]
        if not takers:
            names = ", ".join(str(table.get("use")) for table in tables.get("attack", []))
            raise SeepageError(
                f"no attack of this recipe takes the option {rest!r} (attacks: {names}); see seepage list"
            )
        for table in takers:
            table[rest] = value
    elif rest:
        tables.setdefault(head, {})[rest] = value
    else:
        tables[head] = value


def _unsweep(tables: dict[str, Any], key: str) -> None:
    """Take a key out of the grid, also where the grid sweeps its whole table."""
    grid = tables.get("grid", {})
    grid.pop(key, None)
    head, _, rest = key.partition(".")
    choices = grid.get(head)
    if rest and isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        left = [{name: value for name, value in choice.items() if name != rest} for choice in choices]
        grid[head] = [choice for i, choice in enumerate(left) if choice not in left[:i]]
    if not grid:
        tables.pop("grid", None)


def _takes(table: Mapping[str, Any], option: str) -> bool:
    entry = ATTACKS.get(str(table.get("use")))
    if entry is None:
        return True  # somebody's own attack; checked when it is made
    return not any("has no option" in problem for problem in problems_with(entry.make, {option: None}, "attack"))


def choose(cell: dict[str, Any], key: str, value: Any) -> None:
    """Put one choice of a grid into a cell's tables."""
    head, _, rest = key.partition(".")
    if head == "attack" and rest:
        _set(cell, key, value)
    elif rest:
        cell.setdefault(head, {})[rest] = value
    elif isinstance(value, dict) and isinstance(cell.get(head), dict):
        cell[head] |= value
    else:
        cell[head] = value
