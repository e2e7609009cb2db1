"""The pages of the site: their commands run, in the order of the page, and print what the page says.

A comment before a block says what is special about it: `file: NAME` (it is that file), `exits 1`, or `not run: WHY`.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from each import check_each

from seepage.cli import main
from seepage.errors import SeepageError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / "tutorial.md", *sorted(DOCS.glob("howto/*.md")), *sorted(DOCS.glob("concepts/*.md")), DOCS / "prove.md"]
WITH_THE_CODE = {"tutorial.md", "howto/add-an-attack.md", "howto/add-a-defense.md"}
"""Pages that run with the tests of the code; the others run with those of the docs."""
CHANGED = os.environ.get("SEEPAGE_CHANGED")
"""Paths of the repository that changed, where it is told (`.ci/run` does): the commands of other pages are not run."""
BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n\n?)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = {"bash", "python"}
SHOWN = {"text", "toml", "yaml", ""}
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the pages are not here")


@dataclass(frozen=True)
class Block:
    """A code block of a page, with the mark before it."""

    kind: str
    text: str
    mark: str


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(kind=match[2], text=match[3], mark=match[1] or "") for match in found]


def case(page: Path) -> Any:
    name = page.relative_to(DOCS).as_posix()
    if name in WITH_THE_CODE:
        return pytest.param(page, id=name)
    unchanged = CHANGED is not None and f"docs/{name}" not in CHANGED.split()
    return pytest.param(
        page, id=name, marks=(pytest.mark.docs, pytest.mark.skipif(unchanged, reason="the page has not changed"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", [case(page) for page in PAGES])
def test_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.syspath_prepend(tmp_path)
    printed = ""
    for block in blocks(page):
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
        elif block.mark.startswith("not run: "):
            printed = ""
        elif block.kind in RUN:
            printed = _run(block, monkeypatch)
        elif block.kind == "text" and printed:
            _assert_printed(block.text, printed)
            printed = ""


@pytest.mark.docs
def test_blocks_are_known() -> None:
    check_each(((page.relative_to(DOCS).as_posix(), page) for page in PAGES), is_run_or_shown)


def is_run_or_shown(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in RUN | SHOWN, f"{page.name}: a block of {block.kind!r} is neither run nor shown"
        assert not block.mark or re.match(r"(file: \S+|exits \d|not run: .+)$", block.mark), block.mark


def _run(block: Block, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a block prints on stdout, colors and bars aside."""
    out, wanted = io.StringIO(), int(block.mark.removeprefix("exits ") if block.mark else 0)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        if block.kind == "python":
            with torch.random.fork_rng():
                exec(compile(block.text, "<page>", "exec"), {"__name__": "__main__"})
            return out.getvalue()
        codes = [_command(words, monkeypatch) for words in _commands(block.text)]
    assert codes == [0] * (len(codes) - 1) + [wanted], f"{block.text}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue()


def _commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def _command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """A command of seepage, in this process; a `python FILE` likewise."""
    assert words[0] in {"seepage", "python"}, f"only seepage and python are run here, not {words[0]!r}"
    if words[1] in {"audit", "attack"} and "--jobs" not in words:
        words = [*words, "--jobs", "1"]  # in this process: others would spend most of their time on importing torch
    monkeypatch.setattr(sys, "argv", words if words[0] == "seepage" else words[1:])
    try:
        if words[0] == "python":
            exec(compile(Path(words[1]).read_text(), words[1], "exec"), {"__name__": "__main__"})
        else:
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def _assert_printed(shown: str, printed: str) -> None:
    """What a page shows is what was printed, but for numbers, white space and what it left out with `…`."""
    parts = [re.escape(_plain(part)) for part in shown.split("…")]
    assert re.search(".*".join(parts), _plain(printed)), f"the page shows\n{shown}\nand this was printed\n{printed}"


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", text).split())


def test_what_pages_import_of_the_package_is_there() -> None:
    """Of pages that no test runs as well; where an extra is not installed nothing is said."""
    imports = re.compile(r"^from (seepage[.\w]*) import (\([^)]*\)|[^\n]+)$", re.MULTILINE)
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for module, names in imports.findall(page.read_text(encoding="utf-8")):
            try:
                found = importlib.import_module(module)
            except SeepageError as error:
                if "is not installed" in str(error):
                    continue
                raise
            for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names)):
                path = f"{module}.{name}"
                assert hasattr(found, name) or importlib.util.find_spec(path), f"{page}: there is no {path}"


def test_what_a_page_shows_can_be_wrong() -> None:
    """The comparison itself can fail."""
    _assert_printed("recovered 2 of 3 …\n  in 7.5 s", "recovered 1 of 3 examples in 9 s")
    with pytest.raises(AssertionError, match="the page shows"):
        _assert_printed("recovered 2 of 3", "found 2 of 3")


@pytest.mark.docs
def test_every_diagnostic_is_explained() -> None:
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        named |= set(re.findall(r"\b(?:note|warning|say)\(\s*\"([a-z-]+)\",", path.read_text(encoding="utf-8")))
    page = (DOCS / "concepts/diagnostics.md").read_text(encoding="utf-8")
    assert len(named) > 10
    assert {name for name in named if f"| `{name}` |" not in page} == set()
