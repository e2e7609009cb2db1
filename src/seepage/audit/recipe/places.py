"""Where private data lie, kept out of what is handed on: a path names a project, a person, or what somebody has.

Results say what kind of thing was audited (`folder`, `npz`) and not how it is called. `score.names = true` in a recipe
asks for the names: of data, of classes (which are names of folders), and the paths of the recipe.
"""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from seepage.audit.recipe.contents import MARK, has_separator, split_text
from seepage.audit.recipe.files import list_recipes
from seepage.audit.recipe.overrides import texts_in
from seepage.base.registry import datasets, is_dotted
from seepage.base.toml import load_toml
from seepage.base.words import each_text

HIDDEN = "\N{HORIZONTAL ELLIPSIS}"
"""What stands in place of a path."""

_WORDS = frozenset({"use", "name", "label"})


def kind_of(use: str) -> str:
    """Name of a data set in results: its own where the package has it, else its kind of file.

    >>> kind_of("digits"), kind_of("/home/me/patients"), kind_of("ward.npz"), kind_of("mine:load")
    ('digits', 'folder', 'npz', 'mine:load')
    """
    here = os.path.exists(os.path.expanduser(use))
    if not here and (use in datasets or is_dotted(use)):
        return use
    suffix = Path(use).suffix.lower()
    kinds = [name for name, entry in datasets.items() if suffix and suffix in entry.facts.get("suffix", ())]
    # A .csv holds a table or texts.
    return suffix[1:] if len(kinds) > 1 else kinds[0] if kinds else "folder"


def is_own(use: str) -> bool:
    """Whether the names of a data set are its owner's: so of files, and of what a user-defined loader loads."""
    return kind_of(use) != use or is_dotted(use)


def called(use: str, name: str, *, names: bool) -> str:
    """Name of a data set in a sentence of a result.

    Args:
        use: How a recipe names it.
        name: Its own name.
        names: Whether the recipe asks for names.

    >>> called("digits", "digits", names=False), called("/data/ward-7", "ward-7", names=False)
    ('digits', 'your data')
    """
    return name if names or not is_own(use) else "your data"


def without_places(record: Any, places: Sequence[str]) -> Any:
    """A JSON record without the given paths, and without those of the user's own folders, wherever it has a text.

    Args:
        record: What is to be written.
        places: Paths; one without a slash is a word like others, and stays.

    >>> without_places({"reason": ["cannot read /data/ward-7/x.png"]}, ["/data/ward-7"])
    {'reason': ['cannot read …/x.png']}
    """
    own = {os.path.expanduser(place) for place in places} | {os.path.abspath(os.path.expanduser(p)) for p in places}
    found = sorted((place for place in {*places, *own} if os.sep in place.strip(os.sep)), key=len, reverse=True)
    found += [str(place) for place in (Path.cwd(), Path.home()) if len(place.parts) > 1]
    return each_text(record, lambda text: _replaced(text, found))


def _replaced(text: str, places: Sequence[str]) -> str:
    for place in places:
        text = text.replace(place, HIDDEN)
    return text


def paths_in(tables: Any) -> list[str]:
    """The texts in a recipe's tables that are paths by their form: of data, and whatever else has a slash."""
    return [text for place, text in texts_in(tables) if _is_path(place, text)]


def _is_path(place: str, text: str) -> bool:
    if place in ("data", "data.use", "auxiliary.use"):
        return is_own(text) and not is_dotted(text)
    return place.rpartition(".")[2] not in _WORDS and (has_separator(text) or text.startswith("~"))


def shown_recipe(text: str) -> str | None:
    """A run's recipe without its paths; None where it is no recipe. As it is where it asks for names."""
    try:
        tables = load_toml(text)
    except ValueError:
        return None
    if asks_for_names(tables):
        return text
    hidden = set(paths_in(tables))
    if not hidden:
        return text
    written = {json.dumps(path) for path in hidden}
    shown = tomli_w.dumps(each_text(tables, lambda one: HIDDEN if one in hidden else one))
    for line in split_text(text)[1]:
        name, _, digest = line.removeprefix(MARK).rpartition(": ")
        if name not in written:
            shown += f"{MARK}{name}: {digest}"
    return shown


def asks_for_names(tables: Mapping[str, Any]) -> bool:
    """Whether a recipe asks for the names of data and classes in its results."""
    score = tables.get("score")
    return isinstance(score, Mapping) and score.get("names") is True


_OF_DATA = frozenset({
    ".pt", ".pth", ".safetensors", ".ckpt", ".bin", ".npz", ".zip", ".csv", ".parquet", ".txt", ".jsonl", ".json",
})  # fmt: skip
"""Endings of files whose names may tell of what is in them."""


def shown_command(command: str, hidden: Sequence[str]) -> str:
    """A command line without paths: each argument that is one of these, or has a slash, is left out.

    >>> shown_command("seepage audit cafe/exact --data photos --out=/tmp/x", ["photos"])
    'seepage audit cafe/exact --data … --out=…'
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    known, shown = list_recipes(), []
    for word in words:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name, has, path = value.partition("=")  # of --set data.use=PATH
        if path in hidden or (has and has_separator(path)):
            value = f"{name}={HIDDEN}"
        elif (
            value in hidden
            or value.startswith("~")
            or (value not in known and (has_separator(value) or Path(value).suffix.lower() in _OF_DATA))
        ):
            value = HIDDEN
        whole = f"{option}{equals}{value}"
        shown.append(whole if HIDDEN in whole else shlex.quote(whole))
    return " ".join(shown)
