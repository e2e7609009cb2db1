"""All that a package can say, by module, in one file each that people read in a diff.

`SEEPAGE_SENTENCES=write python -m pytest tests/words` writes the files anew.
"""

import ast
import os
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "seepage"
HERE = Path(__file__).parent
FEWEST_WORDS = 4
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
