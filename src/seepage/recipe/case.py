"""Recipes: flat TOML whose tables are the constructor arguments of one object each.

    name = "mine"
    seed = 0
    [data]      use = "album"                  a name or a path, and the options of `data.load`
    [model]     use = "fc2"                    a name or `module:factory`, and its options
    [training]  steps = 200                    `plans.Training`: how the model got where it is
    [federation] rounds = 200, clients = 100   `plans.Federation`: rounds of clients before the audited one
    [partition] use = "dirichlet", alpha = 0.5 who of them holds what
    [client]    use = "fedsgd"                 and its options; clients = 3: only the mean of so many is seen
    [batch]     size = 8, count = 1            `Batches`: the private batches that are attacked
    [rounds]    design = "random", count = 60  `plans.Rounds`: one data set, batches of known indices (vertical FL)
    [knowledge] told = ["labels", "defense"]   `Told`: what the attacker is told beyond the protocol
    [auxiliary] use = "photos", count = 500   `auxiliary.Auxiliary`: images of the attacker's own, none of them private
    [[defense]] use = "sparsify", keep = 0.1   none or more, applied left to right
    [[attack]]  use = "dlg", steps = 20        one or more
    [score]     recovered_ssim = 0.6           `Scoring`: thresholds
    [grid]      "model.use" = ["fc2", "convnet"]   one audit cell per combination
    [[case]]    name = "vertical", ...         one more cell: the tables above, changed by these

All mistakes are reported at once.
"""

import itertools
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seepage.attacks import Attack
from seepage.clients import make_client
from seepage.core.storage import check_regular
from seepage.data import DATA
from seepage.defenses import DEFENSES, joined
from seepage.errors import SeepageError, unknown
from seepage.recipe.auxiliary import Auxiliary
from seepage.recipe.parts import Part, find_part, make_attack
from seepage.recipe.plans import Batches, Federation, Rounds, Training
from seepage.simulate.partition import PARTITIONS, Partition
from seepage.types import Architecture, ClientUpdate, Defense

BUILT_IN = Path(__file__).parents[1] / "recipes"
"""Recipes that ship with the package; `seepage audit` without arguments runs `default.toml` from here."""
LARGEST = 2**24
"""Bytes of one recipe; more is refused before it is read."""


_TELLABLE = ("labels", "indices", "defense")


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the attacker is told beyond model, client rule, shapes, batch size and updates.

    Args:
        told: Any of `labels`, `indices` (with `[rounds]`: which examples each round holds) and `defense` (what the
            client does to its update, with its options).
    """

    told: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", tuple(self.told))  # a list, where it comes from TOML
        for item in self.told:
            if item not in _TELLABLE:
                raise unknown("thing to tell in knowledge.told", item, _TELLABLE)


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
    federation: Federation | None = None
    partition: Part = Part("iid")  # noqa: RUF009
    client: Part = Part("fedsgd")  # noqa: RUF009
    batch: Batches = Batches()  # noqa: RUF009
    rounds: Rounds | None = None
    knowledge: Told = Told()
    auxiliary: Auxiliary | None = None
    defense: tuple[Part, ...] = ()
    attack: tuple[Part, ...] = ()
    score: Scoring = Scoring()
    cell: str = "cell"

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.model.use, dict(self.model.options))

    def make_client(self) -> ClientUpdate:
        return make_client(self.client.use, self.client.options)

    def make_partition(self) -> Partition:
        partition: Partition = find_part("partition", self.partition.use, PARTITIONS)(**self.partition.options)
        return partition

    def make_defense(self) -> Defense | None:
        parts = tuple(find_part("defense", part.use, DEFENSES)(**part.options) for part in self.defense)
        return joined(parts)

    def make_attack(self, part: Part) -> Attack:
        return make_attack(part.use, part.options)


def read_recipe(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        SeepageError: Where the file is missing or no TOML.
    """
    check_regular(path, LARGEST)
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
