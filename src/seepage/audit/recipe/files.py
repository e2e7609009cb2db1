"""Files of recipes: the built-in ones by name, and anybody's by its path."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

from seepage.base.registry import datasets
from seepage.base.toml import LARGEST, load_toml
from seepage.errors import SeepageError, unknown

BUILT_IN = Path(__file__).parents[1] / "recipes"
"""Recipes that ship with the package; `seepage audit` without arguments runs `default.toml` from here."""

OF_TEXT = ("token_sequences", "token_set")
"""Attacks of examples that are token numbers, in place of the default recipe's, which are of pictures and tables."""


def read_recipe(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        SeepageError: Where the file is missing or no TOML.
    """
    from seepage.base.storage import check_regular  # which imports PyTorch, and names of recipes need none

    check_regular(path, LARGEST)
    try:
        return load_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SeepageError(f"cannot read the recipe {path}: {error.strerror or error}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = str(error)[:200]
        raise SeepageError(f"the recipe {path} is not valid TOML: {reason}; correct that line") from error


def find_recipe(name: str | None) -> Path:
    """The file of a recipe: a path, or the name of a built-in one.

    Args:
        name: None: the default one, whatever files of that name lie here.

    Raises:
        SeepageError: For an unknown name, and for data in place of a recipe.
    """
    if name is None:
        return BUILT_IN / "default.toml"
    path = Path(name)
    if path.is_dir() or path.suffix.lower() in (".zip", ".npz"):
        recorded = f", or attack recorded updates with: seepage attack {path} --attack NAME" if path.is_dir() else ""
        raise SeepageError(
            f"{path} is no recipe but looks like data; audit your own images with --data {path}{recorded}"
        )
    if path.suffix == ".toml" or path.exists():
        return path
    built_in = _built_in()
    if name in built_in:
        return built_in[name]
    if name in datasets:
        raise SeepageError(f"{name} is a data set and no recipe; audit it with --data {name}")
    raise unknown("recipe", name, [*built_in, "FILE.toml"])


def list_recipes() -> dict[str, str]:
    """The built-in recipes, `default`, `cafe/exact`, ..., with what the comment at their head says."""
    return {name: _head(file) for name, file in sorted(_built_in().items())}


def _head(file: Path) -> str:
    """The first sentence of a recipe's opening comment."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    text = " ".join(line.lstrip("# ") for line in lines)
    return re.split(r"\.\s+(?=[A-Z])", text)[0].rstrip(".")


def _built_in() -> dict[str, Path]:
    return {file.relative_to(BUILT_IN).with_suffix("").as_posix(): file for file in BUILT_IN.rglob("*.toml")}
