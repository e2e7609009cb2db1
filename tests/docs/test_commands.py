"""Every command on every page, with its options and values, is read by the parser of the command that it shows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from each import check_each

from seepage.cli.commands import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INLINE = re.compile(r"`(seepage [^`]+)`")
OPTION = re.compile(r"`(--[a-z][a-z-]*)")
SHOWN = re.compile(r"\s*(?:- run: |\$ )?(?:timeout \w+ )?(seepage [a-z].*)")
VERB = re.compile(r"seepage [a-z]+\b")
COMMANDS: Any = typer.main.get_command(app)
NAMES = {f"seepage {name}" for name in COMMANDS.commands} | {
    f"seepage {name} {verb}" for name, one in COMMANDS.commands.items() for verb in getattr(one, "commands", {})
}
"""A command named alone, which is spoken of and not typed."""
OF_OTHERS = {"--help", "--version", "--hypothesis-profile"}
"""Options of every command, and of other programs."""
LEFT_OUT = {"…", "..."}
NOT_READ: tuple[type[Exception], ...] = (KeyError, ValueError, typer.BadParameter.__mro__[2])
"""Verbs that are none, quotes that do not end, and what the parser says of a mistake, whatever click typer brings."""
pytestmark = [pytest.mark.docs, pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the pages are not here")]


def test_every_command_of_a_page_is_one() -> None:
    check_each(((page.relative_to(ROOT).as_posix(), page) for page in PAGES), page_has_commands_that_parse)


def test_every_option_that_a_page_names_is_one() -> None:
    known = {
        word for command in _verbs(COMMANDS) for one in command.params for word in (*one.opts, *one.secondary_opts)
    }
    named = {
        (page.relative_to(ROOT).as_posix(), option)
        for page in PAGES
        for option in OPTION.findall(page.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert {one for one in named if one[1] not in known | OF_OTHERS} == set()


def test_a_command_that_is_none_is_found() -> None:
    parse(["seepage", "attack", "before.pt", "after.pt", "--lr", "0.1", "--steps", "5"])
    for wrong in ("seepage attack a b --learning-rate 0.1", "seepage audit --batch-size x", "seepage look a"):
        with pytest.raises(NOT_READ):
            parse(wrong.split())
    assert commands("```\nseepage audit \\\n  --seed 1  # a seed\n```\n`seepage check run` and `seepage list`") == [
        "seepage audit --seed 1", "seepage check run",
    ]  # fmt: skip


def _verbs(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        yield from _verbs(command) if hasattr(command, "commands") else [command]


def page_has_commands_that_parse(page: Path) -> None:
    for command in commands(page.read_text(encoding="utf-8")):
        try:
            parse(shlex.split(command))
        except NOT_READ as error:
            pytest.fail(f"{command}: {error!r}")


def commands(text: str) -> list[str]:
    """The commands of blocks, indented lines and code in a line, as they are typed."""
    prose = re.sub(r"^```.*?^```", " ", text, flags=re.DOTALL | re.MULTILINE)
    inline = (_typed(" ".join(one.split())) for one in INLINE.findall(prose))
    return list(dict.fromkeys([*_of_lines(text), *(one for one in inline if VERB.match(one) and one not in NAMES)]))


def _of_lines(text: str) -> Iterator[str]:
    fenced = False
    for line in text.replace("\\\n", " ").splitlines():
        fenced ^= line.startswith("```")
        found = SHOWN.match(line)
        if found and (fenced or line.startswith("    ")):
            yield _typed(found[1])


def _typed(text: str) -> str:
    """A command without what a shell takes for itself."""
    return " ".join(re.split(r"\s+(?:#|[|>&])(?:\s|$)", text)[0].split())


def parse(words: list[str]) -> None:
    """Read a command as the program does; it is not run, and its files need not be there.

    Raises:
        KeyError: A verb that is none.
        Exception: Of click or typer: an option that is none, or a value of another kind.
    """
    name, *rest = (word for word in words[1:] if word not in LEFT_OUT)
    command = COMMANDS.commands[name]
    if hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest)
