"""What a recipe names on disk, by content: data, weights, and user code.

A run is known by its recipe. A path in a recipe says where something lies and not what it is: with other photos or
other weights behind the same path, an old verdict is not that of today's model. So the text by which a run is known
ends with one comment for each thing that the recipe names, which holds a digest of its content.
"""

import ast
import hashlib
import importlib.util
import json
import os
import platform
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.overrides import texts_in
from seepage.audit.recipe.resolve import resolved
from seepage.audit.recipe.trust import own_code
from seepage.base.registry import is_network_file
from seepage.base.storage import walk
from seepage.errors import SeepageError

MOST_HASHED = 4 * 2**30
"""Bytes (4 GiB) up to which a data set is hashed; a larger one is identified by its files' names, sizes and times."""

MARK = "# content of "
"""What the comment of one thing begins with."""

OWN = "seepage"
"""The package whose code is not part of a run's name: its version stands in `env.json`."""

_DATA = ("data.use", "auxiliary.use")
"""Places whose text is a path wherever one of that name exists."""

_NO_PATH = frozenset({"use", "name", "label", "known", "tests", "metrics", "keep", "root"})
"""Options that are words; `keep` and `root` are folders that are written to."""


def run_text(tables: Mapping[str, Any], recipes: Sequence[Recipe]) -> str:
    """The recipe with every default written out, and the content of what it names: by this a run is known.

    Args:
        tables: A recipe's tables.
        recipes: Its cases.

    Raises:
        SeepageError: Where something that it names cannot be read.
    """
    text = resolved(tables, recipes)
    lines = (f"{MARK}{json.dumps(name)}: {digest}\n" for name, digest in contents(tomllib.loads(text)).items())
    return text + "".join(lines)


def split_text(text: str) -> tuple[str, list[str]]:
    """The recipe of a run's text, and the comments on the content of what it names."""
    lines = text.splitlines(keepends=True)
    own = [line for line in lines if line.startswith(MARK)]
    return "".join(line for line in lines if not line.startswith(MARK)), own


def contents(tables: Any) -> dict[str, str]:
    """A digest of each file, folder and module that tables name, in order of the names.

    >>> contents({"data": {"use": "album"}, "model": {"use": "fc2", "hidden": 9}})
    {}
    """
    found = {}
    try:
        for name in own_code(tables):
            file = is_network_file(name) and os.path.isfile(name)
            found[name] = digest_of(Path(name)) if file else _digest_of_code(name.partition(":")[0])
        for place, text in texts_in(tables):
            path = Path(os.path.expanduser(text)) if text and "\0" not in text else None
            if path is not None and _is_named(place, text, path):
                found[text] = digest_of(path)
    except OSError as error:
        raise SeepageError(f"cannot read {error.filename}: {error.strerror or error}; check who may read it") from error
    return {name: digest for name, digest in sorted(found.items()) if digest}


def _is_named(place: str, text: str, path: Path) -> bool:
    """Whether a text counts as a path: of data where it exists; elsewhere of a file, or a folder with a slash."""
    if place in _DATA or (place in ("data", "auxiliary")):
        return os.path.exists(path)  # unlike Path.exists, False for a name too long to be one
    if place.rpartition(".")[2] in _NO_PATH:
        return False
    slash = has_separator(text) or place.endswith("folder")
    return os.path.isfile(path) or (slash and os.path.isdir(path))


def has_separator(text: str) -> bool:
    """Whether a text has a slash, or what else separates folders here."""
    return any(separator in text for separator in {os.sep, os.altsep or os.sep})


def digest_of(path: Path) -> str:
    """`sha256:...` of a file, or of all regular files below a folder with their names; hidden ones are left out.

    More than `MOST_HASHED` bytes are not read: the digest is then one of names, sizes and times of change (`stat:...`).
    """
    files = [path] if path.is_file() else list(_files_below(path))
    facts = [(file.relative_to(path).as_posix(), file.stat()) for file in files]
    digest = hashlib.sha256()
    large = sum(found.st_size for _, found in facts) > MOST_HASHED
    for file, (name, found) in zip(files, facts, strict=True):
        digest.update(f"{name}\0{found.st_size}\0".encode(errors="surrogateescape"))
        if large:
            digest.update(f"{found.st_mtime_ns}\0".encode())
            continue
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"{'stat' if large else 'sha256'}:{digest.hexdigest()}"


def _files_below(folder: Path, suffix: str = "") -> Iterator[Path]:
    for entry in walk(folder, hidden=False, most=None):
        if entry.name.endswith(suffix) and entry.is_file() and f"{os.sep}__pycache__{os.sep}" not in entry.path:
            yield Path(entry.path)


# --- code --------------------------------------------------------------------------------------------------------


def _digest_of_code(module: str) -> str:
    """A digest of the sources of a module, and of those beside it that it imports; empty where none is found.

    Nothing is imported for it. What is installed is known by its version, and not read: PyTorch alone has thousands of
    files.
    """
    top = module.partition(".")[0]
    start = None if top == OWN else _home_of(top)
    if start is None:
        return ""
    installed = _is_installed(start)
    if installed and (release := _release_of(top)):
        return release
    files, left = set[Path](), [start]
    while left:
        place = left.pop()
        new = {place} if place.is_file() else set(_files_below(place, ".py"))
        for file in sorted(new - files):
            files.add(file)
            names = [] if installed else _imports(file.read_bytes())
            left += [beside for name in names if (beside := _beside(start.parent, name)) is not None]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(start.parent).as_posix()}\0".encode(errors="surrogateescape"))
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return f"sha256:{digest.hexdigest()}"


def _release_of(top: str) -> str:
    """Name and version of the installed packages that a module belongs to, or of Python; empty where it is of none."""
    if top in sys.stdlib_module_names:
        return f"Python {platform.python_version()}"
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(packages_distributions().get(top, []))))


def _home_of(top: str) -> Path | None:
    """The file of a module, or the folder of a package; the current folder goes first, as when it is imported."""
    here = _beside(Path.cwd(), top)
    if here is not None:
        return here
    try:
        spec = importlib.util.find_spec(top)  # of a name without a dot: nothing is imported
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _beside(folder: Path, name: str) -> Path | None:
    """A module or a package of that name in a folder."""
    if (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file():
        return folder / name if (folder / name).is_dir() else folder / f"{name}.py"
    return None


def _is_installed(path: Path) -> bool:
    paths = sysconfig.get_paths()
    return any(path.is_relative_to(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib"))


@lru_cache(maxsize=1024)  # a run asks twice, and a test often
def _imports(source: bytes) -> list[str]:
    """First parts of the names that a source file imports, wherever in it; none of one that is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return sorted(found)
