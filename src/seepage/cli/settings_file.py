"""`seepage.toml`, or `[tool.seepage]` of `pyproject.toml`, in the working folder: options of `seepage audit`

The folder may be a stranger's: such a file names no code that is run and no place outside of the folder to write to,
and moves no threshold of what counts as recovered. What is typed on the command line goes before it.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from seepage.errors import SeepageError, printable, unknown

FILES = (("seepage.toml", ()), ("pyproject.toml", ("tool", "seepage")))
"""Names of files, the first that is there counts; and the path to the table in it."""

OPTIONS = (
    "recipe", "data", "model", "weights", "client", "batch_size", "attack", "defense", "told", "seed", "device",
    "settings", "tune", "out", "jobs", "membership", "bounds", "prove", "fail_if", "baseline", "no_pictures",
)  # fmt: skip
"""What it may set, by the name of the parameter. Not `--on`: to join a cluster is to run its code."""

TYPED_ONLY = {"recovered_likeness", "recovered_gain_db", "exact_db", "names"}
"""Keys of [score] that such a file may not set."""

SAID = 400
"""Letters of the line that says what was taken from the file."""

SPELLED = {"set": "settings"}
SPELLED_BACK = {new: old for old, new in SPELLED.items()}
REPEATABLE = ("attack", "defense", "told", "settings", "tune")


def find_settings(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """The name of the file and its options; None where there is none.

    Raises:
        SeepageError: Where it is no TOML, or sets what is no option.
    """
    for name, path in FILES:
        if not (folder / name).is_file():
            continue
        table: Any = _read(folder / name)
        for key in path:
            table = table.get(key, {}) if isinstance(table, Mapping) else {}
        if table or not path:
            return name, _checked(name, table)
    return None


def _read(path: Path) -> dict[str, Any]:
    from seepage.core.storage import check_regular
    from seepage.core.toml import LARGEST, load_toml

    check_regular(path, LARGEST)
    try:
        return load_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SeepageError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    except ValueError as error:  # of tomllib, and of text that is no UTF-8
        raise SeepageError(f"{path} is not valid TOML ({str(error)[:200]}); correct it") from error


def _checked(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    found = {SPELLED.get(key, key.replace("-", "_")): value for key, value in table.items()}
    for key, value in found.items():
        if key not in OPTIONS:
            raise unknown(f"option in {name}", key, [option.replace("_", "-") for option in OPTIONS])
        if isinstance(value, dict) or (isinstance(value, list) and key not in REPEATABLE):
            raise SeepageError(f"{key.replace('_', '-')} in {name} is one value, as on the command line; correct it")
        if key in REPEATABLE and not isinstance(value, list):
            found[key] = [value]
    out = found.get("out")
    here = Path.cwd().resolve()
    if out is not None and not (here / str(out)).resolve().is_relative_to(here):  # through a link, too
        raise SeepageError(f"out in {name} leads out of this folder ({printable(str(out))[:80]}); give --out yourself")
    return found


def use_settings(context: typer.Context) -> None:
    """Let the file of the working folder give the options of `audit` that are not typed, and say which."""
    if context.invoked_subcommand != "audit":
        return
    found = find_settings(Path())
    if found is None:
        return
    name, options = found
    _refuse_power(name, options)
    context.default_map = {"audit": options}
    if options:
        pairs = ((SPELLED_BACK.get(key, key.replace("_", "-")), value) for key, value in options.items())
        said = ", ".join(f"{key} = {value}" for key, value in pairs)
        print(printable(f"using {name}: {said}")[:SAID], file=sys.stderr)


def _refuse_power(name: str, options: Mapping[str, Any]) -> None:
    """Raise where the options of a file, or the recipe that they name, take what only who types the command may give.

    That is: code to run, what counts as recovered (which would open a gate), and that names of data are written down.
    """
    from seepage.cli.options import tables_of
    from seepage.recipe.trust import own_code

    taken = {"recipe", "data", "model", "weights", "client", "batch_size", "seed", "device", "told", "settings"}
    given = {key: value for key, value in options.items() if key in taken}
    tables = tables_of(
        given.pop("recipe", None), attacks=options.get("attack"), defenses=options.get("defense"), **given
    )
    found = own_code(tables)
    if found:
        raise SeepageError(
            f"{name} names code to run ({printable(found[0])[:80]}), which only your own command line may; leave "
            "it out there, and name the recipe or --model yourself"
        )
    moved = [key for key in _scoring(tables) if key.rpartition(".")[2] in TYPED_ONLY]
    if moved:
        raise SeepageError(
            f"{name} sets {printable(moved[0])[:80]}, which only your own command line may: it decides what a gate "
            "sees or what a result names; leave it out there, and give the recipe or --set yourself"
        )


def _scoring(tables: Any, place: str = "") -> Iterator[str]:
    """Every key of scoring in a recipe's tables, by its dotted name: of cases and of grids, too."""
    if isinstance(tables, list):
        for table in tables:
            yield from _scoring(table, place)
    if not isinstance(tables, Mapping):
        return
    for key, value in tables.items():
        inside = f"{place}.{key}" if place else str(key)
        if "score" in inside.split("."):
            yield inside
        yield from _scoring(value, inside)
