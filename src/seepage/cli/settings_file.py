"""`seepage.toml`, or `[tool.seepage]` of `pyproject.toml`, in the working folder: options of `seepage audit`

The folder may be a stranger's: such a file names no code that is run and no place outside of the folder to write to,
and moves no threshold of what counts as recovered. What is typed on the command line goes before it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from seepage.base.registry import FETCHED, datasets
from seepage.base.signatures import describe
from seepage.errors import SeepageError, printable, say, short, unknown

FILES = (("seepage.toml", ()), ("pyproject.toml", ("tool", "seepage")))
"""Names of files, the first that is there counts; and the path to the table in it."""

OPTIONS: Mapping[str, type] = {
    "recipe": str, "data": str, "model": str, "weights": str, "client": str, "batch_size": int, "attack": str,
    "defense": str, "known": str, "seed": int, "device": str, "settings": str, "tune": str, "out": str, "jobs": int,
    "membership": bool, "bounds": bool, "prove": bool, "fail_if": str, "baseline": str, "pictures": bool,
}  # fmt: skip
"""What it may set, by the name of the parameter, and of what type. Not `--on`: to join a cluster is to run its code;
not `--reuse`: whose a run is, only who types the command can say."""

TYPED_ONLY = {"recovered_likeness", "recovered_gain_db", "exact_db", "names"}
"""Keys of [score] that such a file may not set."""

LONGEST, MOST = 200, 16
"""Letters of one text, and texts of one option: all that is taken from the file is printed, and nothing cut."""

SPELLED = {"set": "settings"}
SPELLED_BACK = {new: old for old, new in SPELLED.items()}
REPEATABLE = ("attack", "defense", "known", "settings", "tune")


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
    from seepage.base.storage import check_regular
    from seepage.base.toml import LARGEST, load_toml

    check_regular(path, LARGEST)
    try:
        return load_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SeepageError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    except ValueError as error:  # of tomllib, and of text that is no UTF-8
        raise SeepageError(f"{path} is not valid TOML ({str(error)[:200]}); correct it") from error


def _checked(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise SeepageError(f"{name} holds no table of options; correct it")
    found = {SPELLED.get(key, key.replace("-", "_")): value for key, value in table.items()}
    for key, value in found.items():
        if key not in OPTIONS:
            raise unknown(f"option in {name}", key, [option.replace("_", "-") for option in OPTIONS])
        spelled = SPELLED_BACK.get(key, key.replace("_", "-"))
        if isinstance(value, dict) or (isinstance(value, list) and key not in REPEATABLE):
            raise SeepageError(f"{spelled} in {name} is one value, as on the command line; correct it")
        values = value if isinstance(value, list) else [value]
        wrong = next((one for one in values if type(one) is not OPTIONS[key]), None)
        if wrong is not None:
            raise SeepageError(f"{spelled} in {name} must be {describe(OPTIONS[key])}, not {short(wrong)}; correct it")
        if len(values) > MOST or any(len(str(one)) > LONGEST or "\0" in str(one) for one in values):
            raise SeepageError(
                f"{spelled} in {name} has more than {MOST} values, or one of more than {LONGEST} letters or with "
                "a character that no name has, which nobody would read; give it on your own command line or in a recipe"
            )
        if key in REPEATABLE:
            found[key] = values
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
        say(printable(f"using {name}: {said}"))


def _refuse_power(name: str, options: Mapping[str, Any]) -> None:
    """Raise where the options of a file, or the recipe that they name, take what only who types the command may give.

    That is: code to run, what counts as recovered (which would open a gate), that names of data are written down, a
    folder that data sets are kept in, and whatever has to be fetched.
    """
    from seepage.audit.recipe.overrides import texts_in, walk
    from seepage.audit.recipe.trust import own_code
    from seepage.cli.options import SimulationOptions, tables_of

    own = SimulationOptions(
        **{key: value for key, value in options.items() if key in SimulationOptions.__dataclass_fields__}
    )
    tables = tables_of(options.get("recipe"), own, attacks=options.get("attack"), known=options.get("known"))
    found = own_code(tables)
    if found:
        raise SeepageError(
            f"{name} names code to run ({printable(found[0])[:80]}), which only your own command line may; leave "
            "it out there, and name the recipe or --model yourself"
        )
    fetched = next((f"{place} = {text}" for place, text in texts_in(tables) if _reaches_out(place, text)), None)
    if fetched is not None:
        raise SeepageError(
            f"{name} sets {printable(fetched)[:80]}, which only your own command line may: it writes outside of this "
            "folder or uses the network; leave it out there, and give the recipe, --data or --weights yourself"
        )
    moved = [".".join(where) for where, _ in walk(tables) if "score" in where and TYPED_ONLY & set(where)]
    if moved:
        raise SeepageError(
            f"{name} sets {printable(moved[0])[:80]}, which only your own command line may: it decides what a gate "
            "sees or what a result names; leave it out there, and give the recipe or --set yourself"
        )


def _reaches_out(place: str, text: str) -> bool:
    """Whether a text of a recipe names a folder to keep data sets in, or what is fetched where it is missing."""
    head, _, key = place.rpartition(".")
    fetched = text in datasets and datasets[text].facts.get("origin") == FETCHED
    of_data = place in ("data", "auxiliary") or (head in ("data", "auxiliary") and key == "use")
    return key == "root" or text == "pretrained" or (of_data and fetched)
