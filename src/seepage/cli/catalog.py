"""The catalog of all registered names, for `seepage list`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from seepage.audit.recipe.files import list_recipes
from seepage.base.registry import KINDS, Entry
from seepage.base.signatures import Option
from seepage.cli.console import open_console

_FACTS = ("needs", "paper", "cost", "unit")
"""What a kind says of its entries beside their names and options."""


def catalog() -> dict[str, list[dict[str, str]]]:
    """Names with what a reader needs to choose: `{"attacks": [{"name", "needs", "paper", "cost", ...}], ...}`."""
    own = {"name": "module:factory", "about": "your own: factory(input_shape, num_classes) returns a torch.nn.Module"}
    files = {
        "name": "PATH",
        "about": "an image folder with a folder per class, a .zip with labels.csv, an .npz, a table or texts",
    }
    more = {"models": [own], "data": [files]}
    listed = {kind: [_row(entry) for entry in registry.describe()] for kind, registry in KINDS.items()}
    return {
        **{kind: [*rows, *more.get(kind, [])] for kind, rows in listed.items()},
        "recipes": [
            *({"name": name, "about": about} for name, about in list_recipes().items()),
            {"name": "FILE.toml", "about": "your own"},
        ],
    }


def _row(entry: Entry[Any]) -> dict[str, str]:
    about = "; ".join(filter(None, (entry.about, entry.facts.get("origin"))))
    facts = {name: str(entry.facts[name]) for name in _FACTS if name in entry.facts}
    return {"name": entry.name, **facts, "options": ", ".join(map(str, entry.options)), "about": about}


def explained(kind: str) -> dict[str, list[Option]]:
    """All options of a kind, by name; empty for kinds without options."""
    return {entry.name: entry.options for entry in KINDS[kind].describe()} if kind in KINDS else {}


def print_kind(entries: Sequence[Mapping[str, str]], options: Mapping[str, Sequence[Option]]) -> None:
    """Print the names of one kind with one paragraph each and a line for every option."""
    console = open_console()
    for entry in entries:
        console.print(Text(entry["name"], style="bold"))
        for key, value in entry.items():
            if key not in ("name", "options") and value:
                console.print(Text(f"  {key}: {value}"), soft_wrap=console.whole_lines)
        for option in options.get(entry["name"], ()):
            head = f"  {option.name} = {option.default}" if option.default else f"  {option.name}, to be given"
            console.print(Text(f"{head}: {option.about}" if option.about else head), soft_wrap=console.whole_lines)


def print_catalog(found: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """All names, a table per kind."""
    console = open_console()
    for kind, entries in found.items():
        columns = [c for c in ("name", "needs", "paper", "cost", "about", "unit") if any(c in e for e in entries)]
        if kind == "attacks":
            columns.remove("about")
        table = Table(title=kind, title_justify="left", title_style="bold", pad_edge=False)
        for column in columns:
            table.add_column(column, no_wrap=column == "name")
        for entry in entries:
            table.add_row(*(Text(entry.get(column, "")) for column in columns))
        console.print(table)
    console.print("All options of a kind: seepage list KIND, e.g. seepage list attacks")
