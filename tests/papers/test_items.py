"""What recipes say of the papers' tables and figures, and what is made of it."""

import re
import tomllib
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from each import check_each

from seepage.audit.attack import attack_names
from seepage.audit.recipe.files import find_recipe, list_recipes, read_recipe
from seepage.audit.recipe.overrides import overlay
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.row import Case, Row
from seepage.errors import Problems, SeepageError
from seepage.papers import PAPERS, SIZES, Item, Size, find_item, find_items, list_items, plan
from seepage.papers.book import _anchor
from seepage.papers.items import ItemNeeds, item_of
from seepage.papers.records import read_file
from seepage.papers.run import _value, data_name

ROOT = Path(__file__).parents[2]

RECIPE = """
name = "t"
[data]
use = "mnist"
size = 8
[model]
use = "fc2"
hidden = 16
[batch]
size = 32
[[attack]]
use = "linear"
[[attack]]
use = "dlg"
steps = 5
[[case]]
name = "two"
batch = { size = 2 }
[expect]
paper = "cpa"
item = "Table 7"
title = "Two batch sizes"
setting = "as nowhere"
columns = ["32", "2"]
needs = { hours = 3, gpu = true }
[[expect.rows]]
name = "closed form"
data = "mnist"
attack = "linear"
case = ["case", "two"]
metric = "psnr_nearest"
paper = [10.0, nan]
[small]
needs = { minutes = 1 }
stand_in = { mnist = "digits" }
columns = ["4", "2"]
batch = { size = 4 }
"""


def of(text: str = RECIPE) -> Item:
    return item_of("cpa/table-7", tomllib.loads(text))


def test_the_small_size_is_laid_over_the_recipe() -> None:
    item = of()
    small, paper = item.at("small", "digits", 5), item.at("paper", "there.npz", 0)
    assert small["batch"]["size"] == 4
    assert paper["batch"]["size"] == 32
    assert small["data"] == {"use": "digits", "size": 8}
    assert paper["data"]["use"] == "there.npz"
    assert small["seed"] == 5
    assert not {"small", "expect"} & {*small, *paper}
    assert [case.batch.size for case in resolve_cases(small)] == [4, 2]


def test_a_data_set_of_the_paper_may_have_settings_of_its_own() -> None:
    on = RECIPE.replace("[[expect.rows]]", "[expect.on.mnist]\n'attack.steps' = 9\n[[expect.rows]]")
    item = of(on + "[small.on.mnist]\n'attack.steps' = 2\n")
    steps = {
        (size, data): [attack["steps"] for attack in item.at(size, "digits", 0, data)["attack"] if "steps" in attack]
        for size in SIZES
        for data in ("mnist", "")
    }
    assert steps == {("paper", "mnist"): [9], ("small", "mnist"): [2], ("paper", ""): [5], ("small", ""): [5]}
    (job,) = plan([item], "small", {}, [0])[0]
    assert [attack.get("steps") for attack in job.tables["attack"]] == [None, 2]
    with pytest.raises(Problems, match=r"expect\.on\.cifar10"):
        of(on.replace("on.mnist", "on.cifar10"))


def test_packaged_data_stand_in_only_where_none_of_an_items_data_are_given(tmp_path: Path) -> None:
    two = RECIPE.replace("[small]", '[[expect.rows]]\nname = "again"\ndata = "cifar10"\nattack = "linear"\n[small]')
    item = of(two.replace('{ mnist = "digits" }', '{ mnist = "digits", cifar10 = "album" }'))
    assert [job.data for job in plan([item], "small", {}, [0])[0]] == ["digits", "album"]
    file = tmp_path / "mnist.npz"
    np.savez(file, x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4))
    jobs, out = plan([item], "small", {"mnist": file}, [0])
    assert [job.data for job in jobs] == [str(file)]
    assert out == ["cpa/table-7: cifar10"]


def test_the_loops_of_cafe_have_the_constants_of_their_data() -> None:
    """Table 9 has a row for each data set; at the paper's size every item of the loops takes it."""
    for item in list_items().values():
        for line in item.lines if item.expect.paper == "cafe" and not item.expect.no_claim else ():
            for attack in item.at("paper", "", 0, line.data)["attack"]:
                if attack["use"] == "cafe_published":
                    assert attack["constants"] == line.data, (item.id, line.data)
                    assert attack.get("alpha", 1e-2) in (0.0, 1e-2)


def test_lists_and_grids_are_replaced_whole_and_empty_ones_taken_away() -> None:
    tables = {
        "attack": [{"use": "dlg"}, {"use": "linear"}],
        "grid": {"batch.size": [1, 2]},
        "model": {"use": "fc2", "hidden": 9},
    }
    changed = overlay(tables, {"attack": [{"use": "sapag"}], "grid": {}, "model": {"use": "convnet"}})
    assert changed == {"attack": [{"use": "sapag"}], "model": {"use": "convnet"}}
    assert tables["model"] == {"use": "fc2", "hidden": 9}, "the recipe itself is left as it was"


def test_what_it_takes_is_said_in_words() -> None:
    item = of()
    assert str(item.needs["small"]) == "about 1 min, 2 GiB"
    assert str(item.needs["paper"]) == "about 3 h, 2 GiB, a GPU"
    assert (
        str(ItemNeeds(hours=30, gib=4, timed=True))
        == "about 30 h of one core (estimated from a few timed steps), 4 GiB"
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("paper = [10.0, nan]", "paper = [10.0]", "1 values of paper for 2 columns"),
        ('case = ["case", "two"]', 'case = ["case"]', "1 values of case for 2 columns"),
        ('item = "Table 7"', 'item = "Table 7"\nitems = 3', "no option 'items'"),
        ('paper = "cpa"', 'paper = "dlg"', "one of 'cafe', 'cpa', 'fedleak'"),
        ('columns = ["4", "2"]', 'columns = ["4"]', "as many heads"),
        ("hours = 3", "days = 3", "no option 'days'"),
    ],
)
def test_mistakes_are_named(old: str, new: str, words: str) -> None:
    assert old in RECIPE
    with pytest.raises(Problems, match=words):
        of(RECIPE.replace(old, new))


def test_a_number_of_the_paper_must_be_one() -> None:
    with pytest.raises(SeepageError, match="paper must"):
        of(RECIPE.replace("paper = [10.0, nan]", 'paper = ["OOM", 1.0]'))


def test_data_that_are_not_there_are_left_out_and_said(tmp_path: Path) -> None:
    text = RECIPE + '[[expect.rows]]\nname = "x"\ndata = "nowhere"\nattack = "linear"\n'
    item = of(text.replace("[small]", "").split("needs = { minutes")[0] + text[text.rindex("[[expect.rows]]") :])
    np.savez(tmp_path / "m.npz", x=np.zeros((40, 8, 8, 1), np.uint8), y=np.arange(40) % 10)
    jobs, missing = plan([item], "small", {"mnist": tmp_path / "m.npz"}, [0, 1], None)
    assert [(job.paper_data, job.seed) for job in jobs] == [("mnist", 0), ("mnist", 1)]
    assert missing == ["cpa/table-7: nowhere"]
    expect = {**item.tables["expect"], "rows": [{"name": "x", "data": "nowhere"}]}
    with pytest.raises(SeepageError, match="nowhere"):
        plan([item_of("x", {**item.tables, "expect": expect})], "paper", {}, [0])


def test_a_function_that_is_given_no_data_uses_the_recipes_own() -> None:
    """Table 11 trains on the digits that its recipe names; constants and a parabola need none."""
    used = {name: plan([find_item(name)], "small", {}, [0], None)[0][0] for name in ITEMS_BY_FUNCTION}
    assert {name: data_name(job) for name, job in used.items()} == ITEMS_BY_FUNCTION


ITEMS_BY_FUNCTION = {"cafe/table-11": "digits", "cafe/table-9": "no data", "fedleak/figure-10": "no data"}


# --- the recipes that ship ---------------------------------------------------------------------------------------


def test_every_table_and_figure_of_the_papers_is_there() -> None:
    wanted = {
        "cafe": [*(f"table-{n}" for n in range(2, 12)), *(f"figure-{n}" for n in (1, 5, 6, 7, 8))],
        "cpa": [*(f"table-{n}" for n in range(1, 6)), *(f"figure-{n}" for n in range(5, 13))],
        "fedleak": [
            *(f"table-{n}" for n in (*range(3, 12), *range(14, 20))),
            *(f"figure-{n}" for n in (1, *range(4, 11))),
        ],
    }
    missing = {f"{paper}/{name}" for paper, names in wanted.items() for name in names} - set(list_items())
    assert not missing


def test_every_shipped_item_resolves_and_its_rows_name_what_is_there() -> None:
    sizes = ((f"{item.id}, {size}", (item, size)) for item in list_items().values() for size in SIZES)
    check_each(sizes, rows_name_what_is_there)


def test_times_by_timed_steps_are_those_of_their_rows() -> None:
    rows = read_file(ROOT / "results/papers/prices.jsonl")
    timed = {item.id: item.needs["paper"].total / 60 for item in list_items().values() if item.needs["paper"].timed}
    hours = {name: sum(row.value or 0.0 for row in rows if row.row == name) for name in timed}
    assert hours == pytest.approx(timed, rel=0.1)


def rows_name_what_is_there(case: tuple[Item, Size]) -> None:
    item, size = case
    assert item.lines or item.expect.kind == "pictures"
    assert 0 < item.needs["small"].total <= 30, "minutes of [small]"
    for data in item.data:
        recipes = resolve_cases(item.at(size, data and "digits", 0))
        there = {(r.case, name) for r in recipes for name in attack_names(r.attack)}
        names = {r.case for r in recipes}
        for line in item.lines if not item.expect.by else ():
            for column in range(len(item.expect.columns)):
                case, attack = line.case_at(column), line.attack_at(column)
                if case in ("", "-"):
                    continue
                assert case in names, line.name
                assert line.metric.startswith("case.") or (case, attack) in there, (line.name, attack)


def test_names_of_papers_stand_for_all_of_their_items() -> None:
    items = list_items()
    assert {item.id for item in find_items(["cafe"])} == {name for name in items if name.startswith("cafe/")}
    assert {item.id for item in find_items(["all"])} == set(items)
    first = next(iter(items))
    assert [item.id for item in find_items([first, first])] == [first]
    assert find_item(items[first].recipe).id == first
    with pytest.raises(SeepageError, match="did you mean"):
        find_item(first + "x")


def test_papers_are_in_order_tables_before_figures() -> None:
    names = list(list_items())
    assert names == sorted(
        names, key=lambda n: (list(PAPERS).index(n.split("/")[0]), "figure" in n, int(n.split("-")[1]))
    )


def test_github_and_python_markdown_make_the_same_anchor_of_every_heading() -> None:
    for item in list_items().values():
        heading = f"{item.expect.item}: {item.expect.title}".lower()
        github = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        markdown = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())
        assert github == markdown == _anchor(item), item.id


def test_no_recipe_keeps_the_papers_numbers_in_another_form() -> None:
    for name in list_recipes():
        expect = read_recipe(find_recipe(name)).get("expect")
        assert expect is None or re.fullmatch(r"(Table|Figure) \d+", expect.get("item", "")), name


def test_a_metric_that_could_not_be_measured_is_a_missing_number_and_an_unknown_one_a_mistake() -> None:
    line = next(line for line in find_item("cpa/table-4").lines if line.metric == "lpips")
    row = Row(case="a", attack="x", outcome="recovered", scores={"psnr": {"mean": 20.0}})
    case = Case(name="a", client="FedSGD()", batch_size=1)
    assert _value(line, 0, case, row, "x on a").ours is None
    with pytest.raises(SeepageError, match="has no 'psnrr'"):
        _value(replace(line, metric="psnrr"), 0, case, row, "x on a")
