"""Recipes: flat TOML whose tables are the constructor arguments of one object each.

    name = "mine"
    seed = 0
    [data]      use = "album"                  a name or a path, and the options of `data.load`
    [model]     use = "fc2"                    a name or `module:factory`, and its options
    [training]  steps = 200                    `federation.Training`: how the model got where it is
    [client]    use = "fedsgd"                 and its options; clients = 3: only the mean of so many is seen
    [batch]     size = 8, count = 1            `Batches`: the private batches that are attacked
    [rounds]    design = "random", count = 60  `vertical.Rounds`: one data set, batches of known indices (vertical FL)
    [knowledge] told = ["labels"]              `Told`: what the attacker is told beyond the protocol
    [[defense]] use = "sparsify", keep = 0.1   none or more, applied left to right
    [[attack]]  use = "dlg", steps = 20        one or more
    [score]     recovered_ssim = 0.6           `Scoring`: thresholds
    [grid]      "model.use" = ["fc2", "convnet"]   one audit cell per combination
    [[case]]    name = "vertical", ...         one more cell: the tables above, changed by these

All mistakes are reported at once.
"""

import hashlib
import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli_w

from seepage.attacks import Attack
from seepage.clients import make_client
from seepage.data import DATA
from seepage.defenses import DEFENSES, Compose
from seepage.errors import Problems, SeepageError, unknown
from seepage.federation import Training
from seepage.named import problems_with, short
from seepage.parts import Part, find_part, make_attack, problems_of, seed_problems
from seepage.settings import choose, copy_tables
from seepage.storage import SCHEMA
from seepage.types import Architecture, ClientUpdate, Defense
from seepage.vertical import Rounds

BUILT_IN = Path(__file__).with_name("recipes")
"""Recipes that ship with the package; `seepage audit` without arguments runs `default.toml` from here."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The private batches that are attacked.

    Args:
        size: Examples per batch.
        count: Batches, each attacked by itself; more of them make the interval honest. With `[rounds]`: of how many
            rounds the attacks that read one round are given each by itself.
    """

    size: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or self.count < 1:
            raise SeepageError(f"batch.size and batch.count must be at least 1, got {self.size} and {self.count}")


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the attacker is told beyond model, client rule, shapes, batch size and updates.

    Args:
        told: Any of `labels` and `indices` (with `[rounds]`: which examples each round holds).
    """

    told: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", tuple(self.told))  # a list, where it comes from TOML
        for item in self.told:
            if item not in ("labels", "indices"):
                raise unknown("thing to tell in knowledge.told", item, ["labels", "indices"])


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Thresholds of the summary.

    Args:
        recovered_ssim: SSIM from which an example can count as recovered.
        recovered_gain_db: Decibels over its own mean-color image that it needs besides.
        exact_db: PSNR over which an example counts as exact.
        lpips: Also compute LPIPS, where its weights are on this machine.
    """

    recovered_ssim: float = 0.6
    recovered_gain_db: float = 3.0
    exact_db: float = 40.0
    lpips: bool = False


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One cell of an audit, fully resolved: no grid is left in it."""

    name: str = "audit"
    seed: int = 0
    device: str = "cpu"
    data: Part = Part("album")  # noqa: RUF009
    model: Part = Part("fc2")  # noqa: RUF009
    training: Training = Training()  # noqa: RUF009
    client: Part = Part("fedsgd")  # noqa: RUF009
    batch: Batches = Batches()
    rounds: Rounds | None = None
    knowledge: Told = Told()
    defense: tuple[Part, ...] = ()
    attack: tuple[Part, ...] = ()
    score: Scoring = Scoring()
    cell: str = "cell"

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.model.use, dict(self.model.options))

    def make_client(self) -> ClientUpdate:
        return make_client(self.client.use, self.client.options)

    def make_defense(self) -> Defense | None:
        parts = tuple(find_part("defense", part.use, DEFENSES)(**part.options) for part in self.defense)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else Compose(parts)

    def make_attack(self, part: Part) -> Attack:
        return make_attack(part.use, part.options)


# --- reading -----------------------------------------------------------------------------------------------------

_TABLES: dict[str, type] = {
    "training": Training,
    "batch": Batches,
    "rounds": Rounds,
    "knowledge": Told,
    "score": Scoring,
}
_PLAIN: dict[str, type] = {"name": str, "seed": int, "device": str}
MOST_CELLS = 10_000
"""Combinations of a grid; more are taken for a mistake."""
_KEYS = [*_PLAIN, "data", "model", "client", *_TABLES, "defense", "attack", "grid", "case", "expect"]


def read_recipe(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        SeepageError: Where the file is missing or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SeepageError(f"cannot read the recipe {path}: {error.strerror or error}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SeepageError(f"the recipe {path} is not valid TOML: {error}; correct that line") from error


def find_recipe(name: str) -> Path:
    """The file of a recipe: a path, or the name of a built-in one.

    Raises:
        SeepageError: For an unknown name, and for data in place of a recipe.
    """
    path = Path(name)
    if path.is_dir() or path.suffix.lower() in (".zip", ".npz"):
        recorded = f", or attack recorded updates with: seepage attack {path} --use NAME" if path.is_dir() else ""
        raise SeepageError(
            f"{path} is no recipe but looks like data; audit your own images with --data {path}{recorded}"
        )
    if path.suffix == ".toml" or path.exists():
        return path
    built_in = _built_in()
    if name in built_in:
        return built_in[name]
    if name in DATA:
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


# --- checking ----------------------------------------------------------------------------------------------------


def cells(tables: Mapping[str, Any]) -> list[Recipe]:
    """The audit cells of a recipe: one per combination of its grid, in order.

    Raises:
        Problems: With every mistake in the recipe.
    """
    problems = _unknown_keys(tables)
    recipes: list[Recipe] = []
    for choice in _combinations(tables.get("grid", {}), problems):
        cell = _base(tables)
        try:
            for key, value in choice.items():
                choose(cell, key, value)
        except SeepageError as error:
            problems.append(str(error))
            continue
        recipe = _resolve(cell, _cell_name(choice), problems)
        if recipe is not None:
            recipes.append(_numbered(recipe, recipes))
    for case in _list(tables.get("case", []), "case", problems):
        recipe = _case(case, _base(tables), problems)
        if recipe is not None:
            recipes.append(_numbered(recipe, recipes))
    if problems:
        raise Problems("the recipe has mistakes:", dict.fromkeys(problems))
    return recipes


def _base(tables: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's tables before anything is chosen."""
    return {key: copy_tables(value) for key, value in tables.items() if key not in ("grid", "case", "expect")}


def _case(case: Any, cell: dict[str, Any], problems: list[str]) -> Recipe | None:
    """A cell beyond the grid: every table of the case is laid over the recipe's."""
    if not isinstance(case, Mapping) or not isinstance(case.get("name"), str):
        problems.append('each [[case]] needs a name, such as name = "vertical"')
        return None
    unknowns = [key for key in case if key not in _KEYS or key in ("grid", "case", "expect", "score")]
    if unknowns:
        problems.append(f"the case {case['name']!r} cannot set {', '.join(unknowns)}")
        return None
    for key, value in case.items():
        own = cell.get(key)
        if isinstance(own, dict) and isinstance(value, dict) and value.get("use", own.get("use")) == own.get("use"):
            cell[key] = own | value
        else:  # options of one model, or data set, are none of another's
            cell[key] = copy_tables(value)
    cell["name"] = case["name"]
    return _resolve(cell, _cell_name({"case.use": case["name"]}), problems)


def _unknown_keys(tables: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in tables:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            problems.append(f"unknown key {key!r}; {hint}a recipe has: {', '.join(_KEYS)}")
    return problems


def _combinations(grid: Any, problems: list[str]) -> list[dict[str, Any]]:
    if not isinstance(grid, Mapping):
        problems.append('[grid] must be a table such as "batch.size" = [1, 8]')
        return [{}]
    for key, values in grid.items():
        head = key.partition(".")[0]
        if not isinstance(values, list) or not values:
            problems.append(f"grid {key!r} must be a list with at least one value, got {values!r}")
            return [{}]
        if head not in _KEYS or head in ("grid", "case", "expect", "name", "score"):
            problems.append(f"grid {key!r} is no key of a recipe")
            return [{}]
    count = math.prod(len(values) for values in grid.values())
    if count > MOST_CELLS:
        problems.append(f"the grid has {count} combinations and {MOST_CELLS} are the most; make its lists shorter")
        return [{}]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _cell_name(choice: Mapping[str, Any]) -> str:
    """A folder name for a combination: `fc2_size-8_steps-0`."""
    words = []
    for key, value in choice.items():
        head, _, rest = key.partition(".")
        pairs = value.items() if isinstance(value, dict) else [(rest or head, value)]
        # How many batches are drawn makes no other case.
        named = [(k, v) for k, v in pairs if (head, k) != ("batch", "count")]
        words += [str(v) if k == "use" else f"{k}-{_word(v)}" for k, v in named]
    name = "_".join(words) or "cell"
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:80].strip(".") or "cell"


def _numbered(recipe: Recipe, others: Sequence[Recipe]) -> Recipe:
    """The recipe with a number behind its cell name where another has the same: each cell has a folder of its own."""
    names = {other.cell for other in others}
    name, number = recipe.cell, 2
    while name in names:
        name, number = f"{recipe.cell}-{number}", number + 1
    return replace(recipe, cell=name)


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(_word(item) for item in value.values())
    if isinstance(value, list):
        return "+".join(_word(item) for item in value) or "none"
    return str(value)


def _resolve(tables: Mapping[str, Any], name: str, problems: list[str]) -> Recipe | None:
    """One cell's tables as a `Recipe`; mistakes are added to `problems`."""
    before = len(problems)
    given: dict[str, Any] = {"cell": name}
    for key, kind in _PLAIN.items():
        if key in tables:
            if not isinstance(tables[key], kind) or isinstance(tables[key], bool):
                words = "a whole number" if kind is int else "a text"
                problems.append(f"{key} must be {words}, got {short(tables[key])}")
            elif kind is int:
                problems += seed_problems(tables[key], key)
            given[key] = tables[key]
    for key, make in _TABLES.items():
        if key in tables:
            given[key] = _table(make, tables[key], key, problems)
    for key, default in (("data", "album"), ("model", "fc2"), ("client", "fedsgd")):
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
    return recipe


def _list(value: Any, key: str, problems: list[str]) -> list[Any]:
    if isinstance(value, list):
        return value
    problems.append(f"{key} must be a list of tables, written [[{key}]]")
    return []


def _table(make: type, table: Any, key: str, problems: list[str]) -> Any:
    if not isinstance(table, Mapping):
        problems.append(f"[{key}] must be a table, got {table!r}")
        return None
    found = problems_with(make, table, f"[{key}]")
    problems += found
    try:
        return None if found else make(**table)
    except SeepageError as error:
        problems.append(str(error))
        return None


def _part(table: Any, key: str, problems: list[str], default: str | None = None) -> Part:
    if not isinstance(table, Mapping) or not isinstance(table.get("use", default), str):
        problems.append(f'{key} must be a table with use = "NAME", got {table!r}')
        return Part("")
    options = dict(table)
    part = Part(str(options.pop("use", default)), options)
    try:
        problems += problems_of(part, key)
    except SeepageError as error:
        problems.append(str(error))
    return part


# --- writing -----------------------------------------------------------------------------------------------------


def resolved(tables: Mapping[str, Any], recipes: Sequence[Recipe]) -> str:
    """The recipe as TOML with every default written out, so that the file alone repeats the run."""
    first = recipes[0]
    out: dict[str, Any] = {
        "name": first.name,
        "seed": first.seed,
        "device": first.device,
        "data": first.data.table(),
        "model": first.model.table(),
        "client": first.client.table(),
        "training": asdict(first.training),
        "batch": asdict(first.batch),
        "knowledge": {"told": list(first.knowledge.told)},
        "score": asdict(first.score),
        "defense": [part.table() for part in first.defense],
        "attack": [part.table() for part in first.attack],
    }
    if first.rounds is not None:
        out["rounds"] = asdict(first.rounds)
    for head, option in _swept(tables.get("grid", {})):
        # A choice of the grid that leaves this option out takes the recipe's own value, or else the default.
        own = tables.get(head, {})
        out[head].pop(option, None)
        if option in own:
            out[head][option] = own[option]
    out = {key: value for key, value in out.items() if value != [] and value != {}}
    for key in ("grid", "case"):
        if tables.get(key):
            out[key] = tables[key]
    return tomli_w.dumps(out)


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
