"""All that a package can say, by module, in one file each that people read in a diff; and the names of refusals in one.

`SEEPAGE_SENTENCES=write python -m pytest tests/words` writes the files anew.
"""

import ast
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from sentences import assert_as_read

SOURCE = Path(__file__).parents[2] / "src" / "seepage"
HERE = Path(__file__).parent
FEWEST_WORDS = 4
SNAKE = re.compile("[a-z]+(_[a-z]+)*")
WORD = re.compile(r"(?<![\w.{])[A-Za-z][a-z']+(?=[\s,.;:)]|$)")


class Sentences(ast.NodeVisitor):
    """Strings of some words, values in braces, in the order of the source; docstrings are none."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, text: str) -> None:
        if len(WORD.findall(re.sub(r"{[^}]*}", " ", text))) >= FEWEST_WORDS:
            self.found.append(" ".join(text.split()))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.add(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # Which quotes stand within quotes depends on Python's version.
        own = [part if isinstance(part, ast.Constant) else ast.unparse(part.value) for part in node.values]
        parts = ["{" + one.replace('"', "'") + "}" if isinstance(one, str) else str(one.value) for one in own]
        self.add("".join(parts))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)


def of_package(package: Path) -> str:
    lines = []
    for path in sorted(package.rglob("*.py")) if package.is_dir() else [package]:
        looked = Sentences()
        looked.visit(ast.parse(path.read_text(encoding="utf-8")))
        if looked.found:
            lines += [f"# {path.relative_to(SOURCE).as_posix()}", *looked.found, ""]
    return "\n".join(lines)


PACKAGES = [path for path in sorted(SOURCE.iterdir()) if path.suffix in ("", ".py") and path.name != "__pycache__"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.stem)
def test_what_a_package_says_is_as_people_have_read_it(package: Path) -> None:
    said, file = of_package(package), HERE / f"{package.stem}.txt"
    if os.environ.get("SEEPAGE_SENTENCES") == "write" and said:
        file.write_text(said, encoding="utf-8")
    assert said == (file.read_text(encoding="utf-8") if file.is_file() else "")


def names_of(node: ast.expr) -> list[str]:
    """The literals that an expression chooses among; anything else has no name to read."""
    if isinstance(node, ast.IfExp):
        return names_of(node.body) + names_of(node.orelse)
    assert isinstance(node, ast.Constant), f"a refusal without a literal name: {ast.unparse(node)}"
    assert isinstance(node.value, str)
    assert SNAKE.fullmatch(node.value), f"no word in snake case: {node.value!r}"
    return [node.value]


def refusals(tree: ast.AST) -> list[str]:
    """The name of every refusal made in a module; one that is made anew of another passes the name on."""
    found = []
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            passed_on = call.args and isinstance(call.args[0], ast.Attribute) and call.args[0].attr == "name"
            if call.func.id == "refuse" or (call.func.id == "Inapplicable" and not passed_on):
                found += names_of(call.args[0])
    return found


def test_the_names_of_refusals_are_as_people_have_read_them() -> None:
    found = Counter(
        name for path in SOURCE.rglob("*.py") for name in refusals(ast.parse(path.read_text(encoding="utf-8")))
    )
    assert_as_read([f"{name} {found[name]}" for name in sorted(found)] + [""], HERE / "refusals.txt")


@pytest.mark.parametrize("argument", ["why", "f'no_{what}'", "'no bias'", "'NoBias'", "known[0]", "'a' if b else c"])
@pytest.mark.parametrize("made", ["refuse({})(a, b)", "Inapplicable({}, a, b)"])
def test_a_refusal_without_a_literal_name_is_found(made: str, argument: str) -> None:
    with pytest.raises(AssertionError, match=r"a refusal without|no word"):
        refusals(ast.parse(made.format(argument)))


def test_a_name_that_is_chosen_or_passed_on_is_read() -> None:
    assert refusals(ast.parse("refuse('not_sent' if every else 'no_adapter')(a, b)")) == ["not_sent", "no_adapter"]
    assert refusals(ast.parse("Inapplicable('no_bias', a, b)")) == ["no_bias"]
    assert refusals(ast.parse("Inapplicable(refused.name, refused.reason, a)")) == []
