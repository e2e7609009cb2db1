"""Recipes: every mistake is found, a grid is its product, and the resolved file repeats the run."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seepage import Compose, FedSGD, LinearLeak, Sparsify
from seepage.audit.attack import attack_names
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.files import find_recipe, list_recipes, read_recipe
from seepage.audit.recipe.resolve import resolve_cases, resolved, run_name
from seepage.audit.record import case_folder
from seepage.base.registry import Spec
from seepage.errors import Problems, SeepageError

LINEAR = {"attack": [{"use": "linear"}]}

parts = {
    "model": st.sampled_from([{"use": "fc2"}, {"use": "fc2", "hidden": 8}, {"use": "convnet", "width": 4}]),
    "data": st.sampled_from([{"use": "faces"}, {"use": "digits", "size": 8}, {"size": 16}]),
    "batch": st.fixed_dictionaries({}, optional={"size": st.integers(1, 9), "count": st.integers(1, 3)}),
    "training": st.fixed_dictionaries({}, optional={"steps": st.integers(0, 9), "lr": st.sampled_from([0.1, 1])}),
    "score": st.fixed_dictionaries({}, optional={"exact_db": st.sampled_from([30.0, 40])}),
    "knowledge": st.sampled_from([{}, {"known": []}, {"known": ["labels"]}]),
    "defense": st.lists(
        st.sampled_from([{"use": "sparsify", "keep": 0.5}, {"use": "gaussian_noise", "sigma": 1}]), max_size=2
    ),
    "seed": st.integers(0, 2**63 - 1),
    "name": st.text(min_size=1, max_size=9),
}
choices = {
    "batch": st.lists(parts["batch"], min_size=1, max_size=3),
    "training": st.lists(parts["training"], min_size=1, max_size=2),
    "batch.size": st.lists(st.integers(1, 9), min_size=1, max_size=3),
    "training.steps": st.lists(st.integers(0, 9), min_size=1, max_size=2),
    "seed": st.lists(st.integers(0, 9), min_size=1, max_size=2),
    "defense": st.lists(parts["defense"], min_size=1, max_size=2),
    "knowledge.known": st.sampled_from([[[], ["labels"]], [["labels"]]]),
    "attack.steps": st.sampled_from([[1, 2], [7]]),
    "attack": st.sampled_from([[[{"use": "linear"}], [{"use": "dlg", "steps": 2}]]]),
}
grids = st.dictionaries(st.sampled_from(sorted(choices)), st.none(), max_size=2).flatmap(
    lambda keys: st.fixed_dictionaries(
        {key: choices[key] for key in keys if not (key == "attack.steps" and "attack" in keys)}
    )
)
recipes = st.fixed_dictionaries(
    {"attack": st.just([{"use": "linear"}, {"use": "dlg", "steps": 3}])}, optional={**parts, "grid": grids}
)


@given(tables=recipes)
@example(tables={"attack": [{"use": "linear"}], "grid": {"batch": [{"size": 1, "count": 2}, {"size": 8}]}})
@example(tables={"attack": [{"use": "linear"}], "batch": {"count": 3}, "grid": {"batch": [{"count": 2}, {"size": 8}]}})
def test_the_resolved_recipe_repeats_the_run(tables: dict[str, Any]) -> None:
    found = resolve_cases(tables)
    text = resolved(tables, found)
    again = tomllib.loads(text)
    assert resolve_cases(again) == found
    assert resolved(again, resolve_cases(again)) == text, "so the folder's name is the same too"


@given(tables=recipes)
def test_a_grid_is_the_product_of_its_lists_and_each_case_has_a_folder_of_its_own(tables: dict[str, Any]) -> None:
    found = resolve_cases(tables)
    count = 1
    for values in tables.get("grid", {}).values():
        count *= len(values)
    assert len(found) == count
    places = {case_folder(Path("run"), "observed", recipe.case, len(found)) for recipe in found}
    assert len(places) == count
    for recipe in found:
        assert Path(recipe.case).name == recipe.case not in ("", ".", "..")
        assert len(recipe.case) < 100


@given(names=st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_names_of_strangers_make_safe_folders(names: list[str]) -> None:
    tables = {**LINEAR, "grid": {"data.use": ["faces", "digits"], "seed": [1, 2]}}
    assert {recipe.case for recipe in resolve_cases(tables)} == {
        "faces_seed-1", "faces_seed-2", "digits_seed-1", "digits_seed-2"
    }  # fmt: skip
    for name in names:
        folder = run_name("text", name)
        assert Path(folder).name == folder
        assert not folder.startswith((".", "-"))
        assert folder == run_name("text", name) != run_name("other", name)


def test_every_default_is_written_out() -> None:
    text = resolved(LINEAR, resolve_cases(LINEAR))
    assert tomllib.loads(text) == {
        "name": "audit",
        "seed": 0,
        "device": "cpu",
        "data": {"use": "album"},
        "model": {"use": "fc2"},
        "client": {"use": "fedsgd"},
        "training": {"steps": 0, "lr": 0.02, "batch_size": 32, "optimizer": "sgd", "init": "default"},
        "batch": {"size": 1, "count": 1, "skip": 0},
        "knowledge": {"known": []},
        "score": {
            "recovered_likeness": 0.4,
            "recovered_gain_db": 9.0,
            "exact_db": 40.0,
            "lpips": False,
            "metrics": [],
            "names": False,
        },
        "attack": [{"use": "linear"}],
    }


def test_a_recipe_makes_what_it_names() -> None:
    (recipe,) = resolve_cases(
        {
            "client": {"use": "fedsgd", "mode": "eval"},
            "defense": [{"use": "sparsify", "keep": 0.5}, {"use": "sparsify", "keep": 0.1}],
            "attack": [{"use": "linear", "same": 0.5}],
        }
    )
    assert recipe.make_client() == FedSGD(mode="eval")
    assert recipe.make_defense() == Compose((Sparsify(keep=0.5), Sparsify(keep=0.1)))
    assert recipe.make_attack(recipe.attack[0]) == LinearLeak(same=0.5)
    assert Recipe().make_defense() is None
    assert recipe.architecture.use == "fc2"


def test_the_built_in_recipes_are_right() -> None:
    assert "default" in list_recipes()
    for name in list_recipes():
        tables = read_recipe(find_recipe(name))
        assert resolve_cases(tomllib.loads(resolved(tables, resolve_cases(tables)))) == resolve_cases(tables)


def mistakes(tables: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(Problems) as error:
        resolve_cases(tables)
    return error.value.problems


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({}, "names no attack"),
        ({**LINEAR, "sede": 1}, "did you mean 'seed'"),
        ({**LINEAR, "seed": 1.5}, "seed must be a whole number"),
        ({**LINEAR, "seed": 2**63}, "seed must be from 0"),
        ({**LINEAR, "data": {"use": "faces", "seed": 1, "sizze": 3}}, "no option 'sizze'"),
        ({**LINEAR, "data": {"use": "no/such/folder"}}, "there is no file or folder"),
        ({**LINEAR, "defense": {"use": "sparsify"}}, "[[defense]]"),
        ({**LINEAR, "defense": [{"use": "sparsify"}]}, "needs the option 'keep'"),
        ({**LINEAR, "grid": []}, "[grid] must be a table"),
        ({**LINEAR, "grid": {"seed": []}}, "at least one value"),
        ({**LINEAR, "grid": {"sede": [1]}}, "no key of a recipe"),
        ({**LINEAR, "grid": {"batch.size": [1, 0]}}, "size must be a whole number >= 1"),
        ({**LINEAR, "grid": {"batch": [3]}}, "[batch] must be a table"),
        ({**LINEAR, "grid": {"attack.steps": [3]}}, "takes the option"),
        ({**LINEAR, "data": "faces", "grid": {"data.size": [8]}}, "set data itself"),
        ({"attack": [{"steps": 3}]}, "use"),
        ({"attack": [{"use": "dlg", "steps": 0}]}, "steps=0"),
    ],
)
def test_a_mistake_is_one_sentence(tables: dict[str, Any], words: str) -> None:
    found = mistakes(tables)
    assert len(found) == 1, found
    assert words in found[0]


def test_a_mistake_that_every_case_shares_is_told_once() -> None:
    assert len(mistakes({**LINEAR, "model": {"use": "fc9"}, "grid": {"seed": [1, 2, 3]}})) == 1


def test_a_recipe_is_found_by_path_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("default").name == "default.toml"
    assert find_recipe(None) == find_recipe("default")
    Path("mine").write_text("")
    assert find_recipe("mine") == Path("mine")
    assert find_recipe("not-yet.toml") == Path("not-yet.toml")
    with pytest.raises(SeepageError, match="did you mean 'default'"):
        find_recipe("defalt")
    with pytest.raises(SeepageError, match=r"not-yet\.toml"):
        read_recipe(Path("not-yet.toml"))


def test_an_attack_is_called_by_its_label() -> None:
    (recipe,) = resolve_cases({"attack": [{"use": "dlg"}, {"use": "dlg", "label": "short", "steps": 3}]})
    assert attack_names(recipe.attack) == ["dlg", "short"]
    assert recipe.attack[1] == Spec("dlg", {"steps": 3}, "short")
    assert recipe.attack[1].table() == {"use": "dlg", "label": "short", "steps": 3}
    for bad in ("../up", "", 3, "a b"):
        with pytest.raises(Problems, match="label"):
            resolve_cases({"attack": [{"use": "dlg", "label": bad}]})
    with pytest.raises(Problems, match="label"):
        resolve_cases({"attack": [{"use": "dlg"}], "model": {"use": "fc2", "label": "x"}})


def test_a_case_with_a_defense_knows_its_twin_and_is_given_one_where_the_run_asks() -> None:
    noise, plain = {"use": "gaussian_noise", "sigma": 1.0}, {"use": "linear"}
    both = {"attack": [plain], "grid": {"defense": [[], [noise]]}, "undefended": True}
    assert [(one.case, one.twin, one.control) for one in resolve_cases(both, controls=True)] == [
        ("defense-none", None, False),
        (resolve_cases(both)[1].case, "defense-none", False),
    ]
    alone = {
        "attack": [plain], "defense": [noise], "undefended": True, "membership": {"tests": ["matched_filter"]},
        "knowledge": {"known": ["defense"]},
        "grid": {"batch.size": [1, 2]},
    }  # fmt: skip
    assert [(one.case, one.twin) for one in resolve_cases(alone)] == [("size-1", None), ("size-2", None)], (
        "unless it asks"
    )
    found = resolve_cases(alone, controls=True)
    assert [(one.case, one.twin, one.control) for one in found] == [
        ("size-1", "size-1_undefended", False),
        ("size-2", "size-2_undefended", False),
        ("size-1_undefended", None, True),
        ("size-2_undefended", None, True),
    ]
    assert [(one.defense, one.membership, one.knowledge.known, one.batch.size) for one in found[2:]] == [
        ((), one.membership, (), size) for one, size in zip(found, (1, 2), strict=False)
    ], "a membership test is shown to work, too"
    assert all(one.twin is None for one in resolve_cases({**alone, "undefended": False}, controls=True))
