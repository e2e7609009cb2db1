"""`--set`: the input stays as it was, what was set can be read, and a grid over it is gone."""

import copy
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from seepage.audit.recipe.overrides import change, choose, choose_part, put
from seepage.audit.recipe.resolve import resolve_cases
from seepage.errors import SeepageError

HEADS = ["data", "model", "batch", "training", "score"]
words = st.text("abcdefgh_", min_size=1, max_size=6)
plain = (
    st.integers(-99, 99)
    | st.booleans()
    | st.floats(-9, 9)
    | st.text("xyz ü'\"\\", max_size=5)
    | st.lists(st.integers(0, 9))
)
grids = st.dictionaries(st.tuples(st.sampled_from(HEADS), words).map(".".join), st.lists(plain, min_size=1, max_size=3))
recipes = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "grid": grids}, optional={head: st.dictionaries(words, plain) for head in HEADS}
)


def written(value: Any) -> str:
    """A value as one writes it on the command line."""
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


@given(tables=recipes, head=st.sampled_from(HEADS), option=words, value=plain)
def test_a_setting_can_be_read_and_the_input_is_as_it_was(
    tables: dict[str, Any], head: str, option: str, value: Any
) -> None:
    before = copy.deepcopy(tables)
    after = change(tables, [f"{head}.{option}={written(value)}"])
    assert tables == before
    assert after[head][option] == value
    assert f"{head}.{option}" not in after.get("grid", {})
    for key in before.get("grid", {}):
        assert key == f"{head}.{option}" or after["grid"][key] == before["grid"][key]
    after[head].pop(option)
    before.setdefault(head, {}).pop(option, None)
    assert {key: after[key] for key in HEADS if key in after} == {key: before[key] for key in HEADS if key in before}


@given(tables=recipes, head=st.sampled_from(HEADS))
def test_a_table_that_is_set_whole_replaces_the_grid_below_it(tables: dict[str, Any], head: str) -> None:
    after = change(tables, [f'{head}={{use="x"}}'])
    assert after[head] == {"use": "x"}
    assert not [key for key in after.get("grid", {}) if key.startswith(head)]


@given(tables=recipes, first=st.integers(0, 9), second=st.integers(0, 9))
def test_the_last_of_two_settings_holds(tables: dict[str, Any], first: int, second: int) -> None:
    both = change(tables, [f"batch.size={first}", f"batch.size={second}"])
    assert both == change(tables, [f"batch.size={second}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 1e-3), ("true", True), ('"3"', "3"), ("fc2", "fc2"), ("[1, 2]", [1, 2]), ("", ""),
        ("a=b", "a=b"), ('{a = 1}', {"a": 1}), ("torchvision:resnet18", "torchvision:resnet18"), ("ü", "ü"),
    ],
)  # fmt: skip
def test_a_value_is_toml_or_a_bare_word(text: str, value: Any) -> None:
    assert change({}, [f"model.x={text}"]) == {"model": {"x": value}}


@pytest.mark.parametrize("setting", ["", "x", "=", "=3"])
def test_a_setting_needs_a_key_and_a_value(setting: str) -> None:
    with pytest.raises(SeepageError, match="KEY=VALUE"):
        change({}, [setting])


def test_an_attacks_option_goes_to_every_attack_that_takes_it() -> None:
    tables = {"attack": [{"use": "linear"}, {"use": "dlg"}, {"use": "sapag", "steps": 9}, {"use": "mine:Attack"}]}
    assert change(tables, ["attack.steps=7"])["attack"] == [
        {"use": "linear"},
        {"use": "dlg", "steps": 7},
        {"use": "sapag", "steps": 7},
        {"use": "mine:Attack", "steps": 7},  # checked when it is made
    ]
    with pytest.raises(SeepageError, match=r"'stepz' .*linear, dlg"):
        change({"attack": [{"use": "linear"}, {"use": "dlg"}]}, ["attack.stepz=7"])


def test_a_defenses_option_goes_to_every_defense_that_takes_it() -> None:
    tables = {"defense": [{"use": "sparsify", "keep": 0.5}, {"use": "gaussian_noise", "sigma": 1.0}]}
    assert change(tables, ["defense.keep=0.1"])["defense"][0] == {"use": "sparsify", "keep": 0.1}
    assert change(tables, ["defense.keep=0.1"])["defense"][1] == tables["defense"][1]
    with pytest.raises(SeepageError, match=r"no defense .* \(defenses: none\)"):
        change({}, ["defense.keep=0.1"])


def test_a_setting_of_part_of_a_swept_table_leaves_the_rest_swept() -> None:
    tables = {"grid": {"batch": [{"size": 1, "count": 2}, {"size": 8, "count": 2}, {"size": 4}]}}
    assert change(tables, ["batch.size=4"]) == {"batch": {"size": 4}, "grid": {"batch": [{"count": 2}]}}
    assert change(tables, ["batch.size=4", "batch.count=1"]) == {"batch": {"size": 4, "count": 1}}


def test_a_value_below_a_plain_one_is_refused() -> None:
    with pytest.raises(SeepageError, match="set seed itself"):
        change({"seed": 3}, ["seed.x=4"])


def test_another_model_brings_no_options_of_the_old_one() -> None:
    tables: dict[str, Any] = {"model": {"use": "fc2", "hidden": 9}, "grid": {"model.hidden": [4, 8], "seed": [0, 1]}}
    choose_part(tables, "model", "convnet")
    assert tables == {"model": {"use": "convnet"}, "grid": {"seed": [0, 1]}}
    same: dict[str, Any] = {"model": {"use": "fc2", "hidden": 9}}
    choose_part(same, "model", "fc2")
    assert same == {"model": {"use": "fc2", "hidden": 9}}
    swept: dict[str, Any] = {"model": {"use": "fc2"}, "grid": {"model.use": ["fc2", "convnet"]}}
    choose_part(swept, "model", "fc2")
    assert swept == {"model": {"use": "fc2"}}


def test_a_choice_of_a_grid_changes_a_table_or_takes_its_place() -> None:
    case: dict[str, Any] = {"batch": {"size": 1, "count": 3}, "attack": [{"use": "dlg"}]}
    choose(case, "batch", {"size": 8})
    choose(case, "attack.steps", 5)
    choose(case, "seed", 4)
    assert case == {"batch": {"size": 8, "count": 3}, "attack": [{"use": "dlg", "steps": 5}], "seed": 4}


def test_values_with_quotes_and_pictures_arrive_as_they_are() -> None:
    tables: dict[str, Any] = {}
    put(tables, "data.use", 'my "photos" \\ 😀')
    assert tables == {"data": {"use": 'my "photos" \\ 😀'}}


def test_settings_of_the_default_recipe_are_a_recipe_still() -> None:
    tables = {"attack": [{"use": "dlg"}], "grid": {"batch": [{"size": 1, "count": 2}, {"size": 8}]}}
    assert [(r.batch.size, r.batch.count) for r in resolve_cases(tables)] == [(1, 2), (8, 1)]
    assert [(r.batch.size, r.batch.count) for r in resolve_cases(change(tables, ["batch.size=3"]))] == [(3, 2)]
