"""TOML from others: bounded in time and memory, and right wherever Python's own reader is."""

import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage.audit.recipe.files import BUILT_IN, read_recipe
from seepage.audit.recipe.overrides import parsed
from seepage.base.toml import DEEPEST, MOST_PARTS, load_toml
from seepage.errors import SeepageError

PIECES = [*".,=[]{}#\\\n 'ab1-", '"', '"""', "'''", "a.b", "[a.b]\n", "[[a]]\n", 'a = "', "1.5", "\\u0041", "\r\n", "é"]


def test_the_built_in_recipes_are_read_as_pythons_own_reader_reads_them() -> None:
    for file in BUILT_IN.rglob("*.toml"):
        assert repr(read_recipe(file)) == repr(tomllib.loads(file.read_text(encoding="utf-8")))  # NaN is not NaN


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_small_text_is_read_as_pythons_own_reader_reads_it(text: str) -> None:
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(tomllib.TOMLDecodeError):
            load_toml(text)
        return
    if text.count(".") < MOST_PARTS:
        assert load_toml(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a." * 100_000 + "a = 1",
        "[" + "a . " * 100_000 + "a]",
        "[[" + "a." * 100_000 + "a]]",
        '"x".' * 100_000 + "a = 1",
        r'"\"".' * 100_000 + "a = 1",
        "'.'." * 100_000 + "a = 1",
        "a = {" + "a." * 100_000 + "a = 1}",
        "x = '''\n'''\n" * 10 + "1." * 100_000 + "1 = 1",
        'x = """' + r'\"""' * 200_000,
        'x = "' + r"\"" * 400_000,
        '"' * 800_001,
        "'" * 800_001,
        "[" * 100_000,
        "a = " + "{a=" * 100_000,
        ".".join("a" * MOST_PARTS) + " = {" + ".".join("b" * MOST_PARTS) + " = {c = 1}}",
        "a = " + "[" * DEEPEST + "]" * DEEPEST,
        "a = " + "9" * 5000,
        "a = " + str(2**1023),
        "a = 0x" + "f" * 100_000,
    ],
)
def test_a_text_that_costs_more_than_its_size_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    with pytest.raises(tomllib.TOMLDecodeError):
        load_toml(text)
    assert time.process_time() - started < 2, "the first of them took tomllib minutes"


def test_dots_in_strings_comments_and_numbers_are_none_of_a_key() -> None:
    dots = "a." * 100
    text = f'x = "{dots}" # {dots}\ny = """\n{dots}\n"""\nz = [{"0.5, " * 100}]\nw = \'{dots}\''
    assert load_toml(text) == tomllib.loads(text)
    assert load_toml("a = -9223372036854775809\n" + ".".join("b" * MOST_PARTS) + " = 1")["a"] == -(2**63) - 1


def test_a_recipe_and_a_setting_of_that_kind_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "k.toml").write_text("a." * 20_000 + "a = 1")
    with pytest.raises(SeepageError, match="16 parts"):
        read_recipe(tmp_path / "k.toml")
    with (tmp_path / "big.toml").open("wb") as file:
        file.truncate(2**21)
    with pytest.raises(SeepageError, match="1 MiB"):
        read_recipe(tmp_path / "big.toml")
    assert parsed("9" * 5000) == "9" * 5000
