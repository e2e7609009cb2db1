"""The tables and figures of the papers, as described by `[expect]` and `[small]` of their recipes.

[expect]           paper, item, title, setting, columns, kind, needs, note, by, no_claim
[[expect.rows]]    name, data, attack, case, metric, paper, better (`lines.py`)
[[expect.claims]]  what the item is in the paper for (`claims.py`)
[expect.on.DATA]   settings that one data set of the rows has at the paper's size: "attack.constants" = "mnist"
[small]            laid over the recipe with `--size small`; needs, stand_in and columns are its own
[small.on.DATA]    settings that one data set has at the small size
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seepage.audit.recipe.files import find_recipe, list_recipes, read_recipe
from seepage.audit.recipe.overrides import copy_tables, overlay, put
from seepage.base.signatures import fits, problems_with
from seepage.errors import Problems, SeepageError, unknown
from seepage.papers.claims import Claim, read_claims
from seepage.papers.lines import Line

PAPERS: dict[str, str] = {
    "cafe": "Jin et al. 2021, CAFE: Catastrophic Data Leakage in Vertical Federated Learning (NeurIPS)",
    "cpa": "Kariyappa et al. 2023, Cocktail Party Attack (ICML)",
    "fedleak": "Fan et al. 2025, FedLeak",
}
"""The three papers, by the name of their folder of recipes."""

Size = Literal["small", "paper"]
SIZES: tuple[Size, ...] = ("small", "paper")

_OWN = ("needs", "stand_in", "columns", "on")
"""What `[small]` says of itself; all else is laid over the recipe."""


@dataclass(frozen=True, kw_only=True)
class ItemNeeds:
    """The requirements of an item: time, memory and GPU.

    Args:
        minutes: Minutes of one core, or of the GPU.
        hours: The same, added to the minutes.
        gib: Memory in GiB.
        gpu: Whether it needs a GPU to finish in that time.
        measured: Whether the time is that of a run of one seed on all its data; else it is an estimate.
        timed: Whether the estimate is of one core, by a few timed steps of each search
            (`benchmarks/paper_prices.py`).
    """

    minutes: float = 0.0
    hours: float = 0.0
    gib: float = 2.0
    gpu: bool = False
    measured: bool = False
    timed: bool = False

    @property
    def total(self) -> float:
        """Minutes."""
        return self.minutes + 60 * self.hours

    def __str__(self) -> str:
        where = " of one core (estimated from a few timed steps)" * self.timed
        return f"{self.time()}{where}, {self.gib:g} GiB{', a GPU' if self.gpu and not self.timed else ''}"

    def time(self, runs: int = 1) -> str:
        """The time of so many runs in words.

        >>> ItemNeeds(minutes=50).time(), ItemNeeds(minutes=50, measured=True).time(2)
        ('about 50 min', 'measured 100 min')
        """
        total = max(1.0, runs * self.total)
        words = f"{total:.0f} min" if total < 120 else f"{total / 60:.0f} h"
        return f"{'measured' if self.measured else 'about'} {words}"


@dataclass(frozen=True, kw_only=True)
class Expect:
    """The table `[expect]`.

    Args:
        paper: `cafe`, `cpa` or `fedleak`.
        item: As the paper numbers it: `Table 3`, `Figure 8`.
        title: What it is about.
        setting: What the paper did, and how it scores.
        columns: Heads of the columns.
        kind: How the book shows it: a table, lines over `x`, bars, or the run's pictures; `constants` is a table of
            what the code has, for which nothing is run.
        x: Where the columns lie on the axis of a figure; empty: evenly spaced.
        x_label: Of the axis.
        y_label: Of the other one.
        needs: What the paper's size takes.
        note: What differs from the paper, and what was tried.
        by: A function of its own in place of an audit: `module:function`.
        on: Settings that one data set of the rows has, at the paper's size: `[expect.on.mnist]` with
            `"attack.constants" = "mnist"`.
        rows: `Line`s.
        claims: What it is in the paper for: `claims.py`.
        no_claim: Why it makes no claim that can be measured; given where `claims` is empty.
    """

    paper: Literal["cafe", "cpa", "fedleak"]
    item: str
    title: str
    setting: str
    columns: Sequence[str]
    kind: Literal["table", "constants", "lines", "bars", "pictures"] = "table"
    x: Sequence[float] = ()
    x_label: str = ""
    y_label: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    by: str = ""
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    no_claim: str = ""


@dataclass(frozen=True)
class Item:
    """One table or figure of a paper.

    Attributes:
        recipe: The recipe's name.
        tables: Its tables, whole.
        expect: What the paper has.
        lines: Its rows.
        claims: What it is in the paper for.
        needs: What each size takes.
        stand_in: Packaged data in place of the paper's, at the small size.
        small_columns: Heads of the columns at the small size.
    """

    recipe: str
    tables: Mapping[str, Any]
    expect: Expect
    lines: tuple[Line, ...]
    claims: tuple[Claim, ...]
    needs: Mapping[Size, ItemNeeds]
    stand_in: Mapping[str, str]
    small_columns: tuple[str, ...]

    @property
    def id(self) -> str:
        """`cafe/table-3`."""
        return f"{self.expect.paper}/{self.expect.item.lower().replace(' ', '-')}"

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets of its rows."""
        return tuple(dict.fromkeys(line.data for line in self.lines))

    def columns(self, size: Size) -> tuple[str, ...]:
        return self.small_columns if size == "small" else tuple(self.expect.columns)

    def at(self, size: Size, data: str, seed: int, paper_data: str = "") -> dict[str, Any]:
        """The recipe's tables at a size, on given data (a name or a file; empty: the recipe's own).

        `paper_data` is the data set of the paper that they stand for: its own settings are laid over the recipe.

        >>> item = find_item("cafe/table-3")
        >>> "expect" in item.at("small", "digits", 0), item.at("small", "digits", 0)["data"]["use"]
        (False, 'digits')
        """
        tables = {key: copy_tables(value) for key, value in self.tables.items() if key not in ("expect", "small")}
        if size == "small":
            small = self.tables.get("small", {})
            tables = overlay(tables, {key: value for key, value in small.items() if key not in _OWN})
        if data:
            tables["data"] = {**tables.get("data", {}), "use": data}
        on = self.expect.on if size == "paper" else self.tables.get("small", {}).get("on", {})
        for key, value in on.get(paper_data, {}).items():
            put(tables, key, value)
        return {**tables, "seed": seed, "all_attacks": True}  # a row for each attack is what a table is for


def list_items() -> dict[str, Item]:
    """All items of the built-in recipes, by id, paper by paper in the order of their numbers."""
    found: dict[str, Item] = {}
    for name in list_recipes():
        tables = read_recipe(find_recipe(name))
        if "item" in tables.get("expect", {}):
            item = item_of(name, tables)
            if item.id in found:
                raise SeepageError(f"two recipes say that they are {item.id}: {found[item.id].recipe} and {name}")
            found[item.id] = item
    return dict(sorted(found.items(), key=lambda pair: _order(pair[1])))


def _order(item: Item) -> tuple[str, str, int]:
    kind, _, number = item.expect.item.partition(" ")
    return item.expect.paper, (kind != "Table" and "figure") or "", int(number) if number.isdigit() else 0


def find_item(name: str) -> Item:
    """An item by its id (`cafe/table-3`) or by its recipe's name.

    Raises:
        SeepageError: For an unknown name.
    """
    items = list_items()
    by_recipe = {item.recipe: item for item in items.values()}
    if name in items or name in by_recipe:
        return items.get(name) or by_recipe[name]
    raise unknown("table or figure", name, list(items))


def find_items(names: Sequence[str]) -> list[Item]:
    """Items by name; a paper's name stands for all of its items, `all` for those of all papers."""
    items = list_items()
    chosen: dict[str, Item] = {}
    for name in names:
        whole = [item for item in items.values() if name in ("all", item.expect.paper)]
        chosen |= {item.id: item for item in whole or [find_item(name)]}
    return list(chosen.values())


def item_of(recipe: str, tables: Mapping[str, Any]) -> Item:
    """The item that a recipe describes.

    Raises:
        Problems: With every mistake in `[expect]` and `[small]`.
    """
    what, table, small = f"the recipe {recipe}", tables["expect"], tables.get("small", {})
    problems = problems_with(Expect, table, f"{what}: [expect]")
    problems += problems_with(ItemNeeds, table.get("needs", {}), f"{what}: needs")
    problems += problems_with(ItemNeeds, small.get("needs", {}), f"{what}: [small] needs")
    for row in table.get("rows", []):
        problems += problems_with(Line, row, f"{what}: [[expect.rows]]")
    if problems:
        raise Problems(f"{what} has mistakes:", problems)
    expect = Expect(**table)
    lines = tuple(Line(**row) for row in expect.rows)
    listed = {line.data for line in lines}
    columns = small.get("columns", expect.columns)
    problems = [problem for line in lines for problem in _lengths(line, len(expect.columns))]
    if not fits(columns, Sequence[str]) or len(columns) != len(expect.columns):
        problems.append("[small] columns needs as many heads as [expect]")
    problems += [
        f"[{where}.on.{name}] is for a data set that no row has"
        for where, on in (("expect", expect.on), ("small", small.get("on", {})))
        for name in on
        if name not in listed
    ]
    if expect.x and len(expect.x) != len(expect.columns):
        problems.append("x needs as many places as there are columns")
    claims, mistakes = read_claims(expect.claims, what)
    problems += mistakes
    problems += [problem for claim in claims for problem in claim.problems(lines, len(expect.columns))]
    if expect.claims and expect.no_claim:
        problems.append("no_claim says why there are no claims, and there are some; leave one of the two out")
    if problems:
        raise Problems(f"{what} has mistakes:", problems)
    needs: dict[Size, ItemNeeds] = {"small": ItemNeeds(**small.get("needs", {})), "paper": ItemNeeds(**expect.needs)}
    return Item(recipe, tables, expect, lines, tuple(claims), needs, small.get("stand_in", {}), tuple(columns))


def _lengths(line: Line, columns: int) -> list[str]:
    listed = {
        key: value
        for key, value in (("paper", line.paper), ("attack", line.attack), ("case", line.case))
        if not isinstance(value, str) and value
    }
    return [
        f"the row {line.name!r} has {len(value)} values of {key} for {columns} columns"
        for key, value in listed.items()
        if len(value) != columns
    ]
