"""Readers of recipes, and of what is typed on the command line."""

import tomllib
from random import Random
from typing import Any

import tomli_w
from base import Reader
from mutations import MARKER, NUMBERS, WORDS, damaged, spoiled
from watch import ran

from seepage.audit.recipe.files import BUILT_IN, read_recipe
from seepage.audit.recipe.resolve import resolve_cases, resolved
from seepage.audit.recipe.trust import refuse_code


def built_in() -> list[tuple[str, dict[str, Any]]]:
    """The recipes that ship with seepage, but those that name code or take long to read."""
    found = []
    for path in sorted(BUILT_IN.rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        if len(text) < 6000 and "seepage.papers" not in text:
            found.append((text, tomllib.loads(text)))
    return found


class Recipe(Reader):
    name, about = "recipe", "tables of recipes: read, resolved, read back"

    def prepare(self) -> None:
        self.all = built_in()
        self.put("x.toml", (BUILT_IN / "default.toml").read_bytes())

    def spoil(self, rng: Random) -> None:
        tables = dict(rng.choice(self.all)[1])
        if rng.random() < 0.2:
            tables["grid"] = {
                rng.choice(("batch.size", "model.use", "defense", "", "a.b", "seed")): rng.choice(
                    ([1, 2], [], 3, ["fc2", 1])
                )
            }
        if rng.random() < 0.1:
            tables["case"] = [{"batch": {"size": 2}}, {}]
        found = spoiled(rng, tables, keep=("expect",))
        try:
            text = tomli_w.dumps(found)
        except (TypeError, ValueError, AttributeError, UnicodeError, RecursionError):
            text = damaged(rng, tomli_w.dumps(tables).encode())  # what TOML cannot say
        self.put("x.toml", text)

    def read(self) -> object:
        path = self.home / "x.toml"
        tables = read_recipe(path)
        refuse_code(tables, str(path), models=False)
        found = resolve_cases(tables)
        again = tomllib.loads(resolved(tables, found))
        assert [one.case for one in resolve_cases(again)] == [one.case for one in found]
        return found


class TomlBytes(Reader):
    name, about = "toml", "bytes of recipes: seepage audit --dry-run"

    def prepare(self) -> None:
        self.texts = [text.encode() for text, _ in built_in()]
        self.put("x.toml", (BUILT_IN / "default.toml").read_bytes())

    def spoil(self, rng: Random) -> None:
        kind = rng.random()
        if kind < 0.8:
            self.put("x.toml", damaged(rng, rng.choice(self.texts)))
        elif kind < 0.9:
            self.put("x.toml", rng.choice(("a.", '"".', "[a.", "[[a.")) * rng.choice((3, 70, 900, 2000)) + "a = 1")
        else:
            self.put("x.toml", f"seed = {rng.choice(('[', '{a='))}" * rng.choice((1, 500)) + rng.choice(WORDS))

    def outcome(self) -> str:
        return ran("audit", str(self.home / "x.toml"), "--dry-run")

    def read(self) -> object:
        return self.outcome()


KEYS = (
    "batch.size",
    "batch.count",
    "seed",
    "attack.steps",
    "attack.use",
    "defense.sigma",
    "model.hidden",
    "model.use",
    "batch.",
    ".size",
    "data.size",
    "data.use",
    "grid.seed",
    "grid",
    "case",
    "batch",
    "score.exact_db",
    "score.metrics",
    "training.weights",
    "client.lr",
    "a.b.c",
    "knowledge.known",
    "expect.x",
    "name",
    "case",
    "tune.options",
    "membership.level",
    "",
)


def value(rng: Random) -> str:
    """A value as typed: a word, a number, or TOML."""
    kind = rng.randrange(5)
    if kind == 0:
        return str(rng.choice(NUMBERS))[:400]
    if kind == 1:
        return rng.choice(WORDS)
    if kind == 2:
        return rng.choice(
            (
                "[1, 2]",
                "{use = 'fc2'}",
                "[[1]]",
                "'x'",
                '"',
                "1979-05-27",
                "07:32:00",
                "[",
                "{",
                "inf",
                "nan",
                "[[[[[[1]]]]]]",
                "a." * 300,
                "[" * 500,
                "true",
                "1_000",
                "[{use='linear'}]",
                f"{MARKER}:hit",
            )
        )
    if kind == 3:
        return damaged(rng, b"[1, 2.5, 'a', {use = 'b'}]").decode(errors="surrogateescape")
    return str(rng.randrange(-3, 9))


def argument(text: str) -> str:
    """As a shell could pass it: without NUL, and other bytes than UTF-8 as Python has them."""
    return text.replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


class Settings(Reader):
    name, about = "set", "--set KEY=VALUE: seepage audit --dry-run"

    def prepare(self) -> None:
        self.put("x.toml", (BUILT_IN / "default.toml").read_bytes())
        self.given: list[str] = []

    def restore(self) -> None:
        super().restore()
        self.given = []

    def spoil(self, rng: Random) -> None:
        for _ in range(rng.choice((1, 1, 2, 4))):
            key = rng.choice((*KEYS, rng.choice(WORDS)))
            self.given += ["--set", argument(f"{key}{rng.choice(('=', '=', '=', '', '==', ' = '))}{value(rng)}")]

    def outcome(self) -> str:
        return ran("audit", str(self.home / "x.toml"), "--dry-run", *self.given)

    def read(self) -> object:
        return self.outcome()


class Words(Reader):
    """Options with a grammar of their own, and paths, of commands that end before anything is computed."""

    name, about = "words", "--fail-if, --shape, --shapes, --tune, --data, --weights, paths"

    def prepare(self) -> None:
        self.put("x.toml", "[batch]\nsize = 1\n[[attack]]\nuse = 'linear'\n")
        self.given = ["report", "nothing-here"]

    def restore(self) -> None:
        super().restore()
        self.given = ["audit", str(self.home / "x.toml"), "--dry-run"]

    def spoil(self, rng: Random) -> None:
        word = argument(
            rng.choice(
                (value(rng), f"{value(rng)}{rng.choice(('>', '<', '>=', '=', ','))}{value(rng)}", rng.choice(WORDS))
            )
        )
        word = word.replace("-", "_") if word.startswith("-") else word
        # An attack that is not there ends an audit before its data is read.
        audit = ["audit", "--out", "o", "--attack", "none_such", "--jobs", "1"]
        self.given = rng.choice(
            (
                [*audit, "--fail-if", f"psnr>{word}"],
                [*audit, "--fail-if", word],
                [*audit, "--tune", word],
                [*audit, "--tune", f"attack.tv={word}"],
                [*audit, "--data", word],
                [*audit, "--weights", word],
                [*audit, "--model", word],
                [*audit, "--client", word],
                [*audit, "--defense", word],
                [*audit, "--known", word],
                [*audit, "--device", word],
                ["report", word],
                ["check", word],
                ["audit", word, "--dry-run"],
                ["attack", word, word],
                ["record", word, word, "--shape", word],
                ["list", word],
                ["reproduce", word],
                ["record", str(self.home / "x.toml"), word, "--shape", word],
                ["prove", "--of", f"ledger:{word}"],
                ["prove", "--fail-if", word, "--of", "defense:none_such"],
                ["prove", "--shapes", word, "--of", "defense:none_such"],
                ["prove", "--of", word, "--calls", "0"],
                ["report", str(self.home), "--sheet", word],
                ["evidence", "judge", str(self.home), "--out", word],
                ["evidence", "count", str(self.home), word],
                ["attack", str(self.home), "--candidates", word, "--public", word],
                ["evidence", word],
                ["frontier", word],
                [*audit, "--batch-size", word],
                [*audit, "--seed", word],
                ["reproduce", "cafe/table-3", "--data", word],
            )
        )

    def outcome(self) -> str:
        return ran(*self.given)

    def read(self) -> object:
        return self.outcome()
