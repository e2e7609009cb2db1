"""Recipes, and what is typed on the command line."""

import tomllib

import pytest
from hypothesis import strategies as st
from strategies import (
    MARKER,
    Draw,
    chance,
    choose,
    damaged,
    numbers,
    spoiled_toml,
    words,
)
from watcher import Sandbox, answered, ran

from seepage.audit.recipe.files import BUILT_IN, read_recipe
from seepage.audit.recipe.resolve import resolve_cases, resolved
from seepage.audit.recipe.trust import refuse_code

DEFAULT = (BUILT_IN / "default.toml").read_bytes()
TEXTS = [text for path in sorted(BUILT_IN.rglob("*.toml")) if len(text := path.read_text(encoding="utf-8")) < 6000]
TEXTS = [text for text in TEXTS if "seepage.papers" not in text]
"""The recipes that ship with seepage, but those that name code or take long to read."""
GRIDS = ("batch.size", "model.use", "defense", "", "a.b", "seed")


@st.composite
def recipes(draw: Draw) -> dict[str, bytes]:
    tables = tomllib.loads(choose(draw, *TEXTS))
    if chance(draw, 20):
        tables["grid"] = {choose(draw, *GRIDS): [[1, 2], [], 3, ["fc2", 1]][draw(st.integers(0, 3))]}
    if chance(draw, 10):
        tables["case"] = [{"batch": {"size": 2}}, {}]
    return {"x.toml": draw(spoiled_toml(tables, ("expect",)))}


def test_recipe(sandbox: Sandbox) -> None:
    """tables of recipes: read, resolved, read back"""
    path = sandbox.home / "x.toml"

    def read() -> None:
        tables = read_recipe(path)
        refuse_code(tables, str(path), models=False)
        found = resolve_cases(tables)
        again = resolve_cases(tomllib.loads(resolved(tables, found)))
        assert [one.case for one in again] == [one.case for one in found]

    sandbox.keep({"x.toml": DEFAULT})
    sandbox.fuzz(recipes(), lambda: answered(read), writes=True)  # a library that it names makes its cache


@st.composite
def recipe_bytes(draw: Draw) -> dict[str, bytes | str]:
    kind = draw(st.integers(0, 9))
    if kind < 7:
        return {"x.toml": draw(damaged(choose(draw, *TEXTS).encode()))}
    if kind == 7:
        return {"x.toml": draw(st.text(max_size=40) | st.binary(max_size=40))}
    if kind == 8:
        return {"x.toml": choose(draw, "a.", '"".', "[a.", "[[a.") * choose(draw, 3, 70, 900, 2000, 9999) + "a = 1"}
    deep = f"seed = {choose(draw, '[', '{a=')}"
    return {"x.toml": deep * choose(draw, 1, 500) + draw(words)}


def test_toml(sandbox: Sandbox) -> None:
    """bytes of recipes: seepage audit --dry-run"""
    sandbox.keep({"x.toml": DEFAULT})
    sandbox.fuzz(recipe_bytes(), lambda: ran("audit", str(sandbox.home / "x.toml"), "--dry-run"), writes=True)


# --- what is typed -----------------------------------------------------------------------------------------------

KEYS = (
    "batch.size", "batch.count", "seed", "attack.steps", "attack.use", "defense.sigma", "model.hidden", "model.use",
    "batch.", ".size", "data.size", "data.use", "grid.seed", "grid", "case", "batch", "score.exact_db",
    "score.metrics", "training.weights", "client.lr", "a.b.c", "knowledge.known", "expect.x", "name",
    "membership.level", "",
)  # fmt: skip
VALUES = (
    "[1, 2]", "{use = 'fc2'}", "[[1]]", "'x'", '"', "1979-05-27", "07:32:00", "[", "{", "inf", "nan", "[[[[[[1]]]]]]",
    "a." * 300, "[" * 500, "true", "1_000", "[{use='linear'}]", f"{MARKER}:hit",
)  # fmt: skip
values = st.one_of(
    st.integers(-3, 8).map(str), numbers.map(lambda number: str(number)[:400]), words, st.sampled_from(VALUES),
    damaged(b"[1, 2.5, 'a', {use = 'b'}]").map(lambda text: text.decode(errors="surrogateescape")),
)  # fmt: skip
"""A value as typed: a number, a word, or TOML."""


def argument(text: str) -> str:
    """As a shell could pass it: without NUL, and other bytes than UTF-8 as Python has them."""
    return text.replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


@st.composite
def settings_typed(draw: Draw) -> tuple[dict[str, bytes], list[str]]:
    typed: list[str] = []
    for _ in range(choose(draw, 1, 1, 2, 4)):
        key = draw(st.sampled_from(KEYS) | words)
        typed += ["--set", argument(f"{key}{choose(draw, '=', '=', '=', '', '==', ' = ')}{draw(values)}")]
    return {}, typed


def test_set(sandbox: Sandbox) -> None:
    """--set KEY=VALUE: seepage audit --dry-run"""
    sandbox.keep({"x.toml": DEFAULT})
    sandbox.fuzz(
        settings_typed(), lambda typed=(): ran("audit", str(sandbox.home / "x.toml"), "--dry-run", *typed), writes=True
    )


AUDIT = "audit --out o --attack none_such --jobs 1"
"""An attack that is not there ends an audit before its data is read."""
COMMANDS = (
    f"{AUDIT} --fail-if psnr>WORD", f"{AUDIT} --fail-if WORD",
    f"{AUDIT} --data WORD", f"{AUDIT} --weights WORD", f"{AUDIT} --model WORD", f"{AUDIT} --client WORD",
    f"{AUDIT} --defense WORD", f"{AUDIT} --known WORD", f"{AUDIT} --device WORD", f"{AUDIT} --batch-size WORD",
    f"{AUDIT} --seed WORD", "report WORD", "check WORD", "audit WORD --dry-run",
    "attack WORD WORD", "attack HOME --candidates WORD --public WORD", "record WORD WORD --shape WORD",
    "record HOME/x.toml WORD --shape WORD", "list WORD", "reproduce WORD", "reproduce cafe/table-3 --data WORD",
    "prove --of ledger:WORD", "prove --fail-if WORD --of defense:none_such",
    "prove --shapes WORD --of defense:none_such", "prove --of WORD --calls 0", "evidence WORD",
    "frontier WORD",
)  # fmt: skip


@st.composite
def typed_words(draw: Draw) -> tuple[dict[str, bytes], str, str]:
    pair = f"{draw(values)}{choose(draw, '>', '<', '>=', '=', ',')}{draw(values)}"
    word = argument(choose(draw, draw(values), pair, draw(words)))
    return {}, choose(draw, *COMMANDS), word.replace("-", "_") if word.startswith("-") else word


@pytest.mark.full
def test_words(sandbox: Sandbox) -> None:
    """--fail-if, --shape, --shapes, --data, --weights, paths"""
    sandbox.keep({"x.toml": "[batch]\nsize = 1\n[[attack]]\nuse = 'linear'\n"})

    def answer(template: str = "audit HOME/x.toml --dry-run", word: str = "") -> str:
        parts = (part.replace("HOME", str(sandbox.home)) for part in template.split())
        return ran(*(part.replace("WORD", word) for part in parts))

    sandbox.fuzz(typed_words(), answer, most=60, writes=True)
