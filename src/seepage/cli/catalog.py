"""Everything that has a name, for `seepage list`. Nothing is imported for it but the registry."""

from typing import Any

from seepage.recipe.files import list_recipes
from seepage.registry import KINDS, Entry
from seepage.signatures import Option

_FACTS = ("needs", "paper", "cost", "unit")
"""What a kind says of its entries beside their names and options."""


def catalog() -> dict[str, list[dict[str, str]]]:
    """Names with what a reader needs to choose: `{"attacks": [{"name", "needs", "paper", "cost", ...}], ...}`."""
    own = {"name": "module:factory", "about": "your own: factory(input_shape, num_classes) returns a torch.nn.Module"}
    files = {"name": "PATH", "about": "an image folder with a folder per class, a .zip with labels.csv, or a .npz"}
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
