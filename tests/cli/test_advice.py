"""Advice can be followed: every option that a message names is one of the command that it names."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import seepage
from seepage.cli.commands import app

ROOT = Path(seepage.__file__).parent
COMMAND = re.compile(r"seepage((?: [a-z][a-z-]*)+)((?: (?:--[a-z][a-z-]*|[A-Z]+|…|\.\.\.|[a-z.]+=\S+|[a-z_:.]+))*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
OTHER_PROGRAMS = ("recorder/ray.py", "report/evidence/annex.py")
"""Where options of other programs are written."""


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in group.commands.items():
        yield (*before, name), one
        if hasattr(one, "commands"):
            yield from commands(one, (*before, name))


KNOWN: Mapping[tuple[str, ...], Any] = dict(commands(typer.main.get_command(app)))


def options_of(command: Any) -> set[str]:
    return {word for one in command.params for word in (*one.opts, *one.secondary_opts)} | {"--help", "--version"}


@cache
def messages() -> list[tuple[str, str]]:
    """Every text in the source that is no docstring, with its place; of formatted ones what stands still."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if str(path.relative_to(ROOT)) in OTHER_PROGRAMS:
            continue
        tree = ast.parse(path.read_text())
        words = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        for node in ast.walk(tree):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                found.append(
                    (place, "".join(one.value if isinstance(one, ast.Constant) else "X" for one in node.values))
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words | inner:
                found.append((place, node.value))
    return [one for one in found if "--" in one[1]]


@pytest.mark.slow
def test_every_option_that_a_message_names_is_one() -> None:
    every = {word for command in KNOWN.values() for word in options_of(command)}
    wrong = [f"{place}: {word}" for place, text in messages() for word in OPTION.findall(text) if word not in every]
    assert not wrong


def test_every_command_that_a_message_names_takes_the_options_beside_it() -> None:
    wrong, seen = [], 0
    for place, text in messages():
        for names, rest in COMMAND.findall(text):
            words = tuple(names.split())
            command = next((KNOWN[words[:n]] for n in (2, 1) if words[:n] in KNOWN), None)
            if command is None:
                continue
            seen += 1
            wrong += [
                f"{place}: {' '.join(words)} {one}" for one in OPTION.findall(rest) if one not in options_of(command)
            ]
    assert seen > 20
    assert not wrong


@pytest.mark.parametrize("command", ["attack", "check"])
def test_what_is_advised_about_captured_files_can_be_typed(command: str) -> None:
    """Attacks and losses do not know which command they run in, so their advice must hold in all of these."""
    places = ("attacks/", "federation/clients/losses.py", "audit/observe.py", "audit/captured")
    wrong = [
        f"{place}: {word}"
        for place, text in messages()
        if place.startswith(places) and "audit" not in text
        for word in OPTION.findall(text)
        if word not in options_of(KNOWN[command,]) and word not in ELSEWHERE
    ]
    assert not wrong


ELSEWHERE = {"--candidates", "--public", "--out", "--attack", "--minutes", "--on", "--truth"}
"""Of `attack` alone, which `check` names in the command that it prints, or of `report`."""
