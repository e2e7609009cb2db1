"""The examples under a verb's help are commands that exist, with options that exist; old names lead to new ones."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import typer

from seepage.cli.commands import GONE, GONE_OPTIONS, GROUPS, PANELS, app

VERBS: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
EXAMPLES = [
    example for verbs in (*PANELS.values(), *(group[2] for group in GROUPS.values())) for shown in verbs.values()
    for example in shown
]  # fmt: skip


def check_example(example: str) -> str:
    """The verb of an example, whose options exist."""
    program, verb, *words = shlex.split(example)
    assert program == "seepage"
    command, name = VERBS[verb], verb
    if hasattr(command, "commands"):
        name = f"{verb} {words[0]}"
        command = command.commands[words[0]]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, example
    return name


def test_every_verb_has_examples_that_exist() -> None:
    shown = {check_example(example) for example in EXAMPLES}
    inner = {f"{name} {one}" for name in GROUPS for one in VERBS[name].commands}
    assert shown == {name for name in VERBS if name not in GROUPS} | inner


@pytest.mark.parametrize("verb", GONE)
def test_a_verb_that_is_gone_names_the_new_one(verb: str, refused: Callable[..., str]) -> None:
    assert GONE[verb] in refused(verb, "RUN")
    for new in GONE[verb].split(", or "):
        check_example(new)


@pytest.mark.parametrize(("verb", "option"), [(verb, name) for verb, names in GONE_OPTIONS.items() for name in names])
def test_an_option_that_is_gone_names_the_new_one(verb: str, option: str, refused: Callable[..., str]) -> None:
    new = GONE_OPTIONS[verb][option]
    assert new in refused(verb, f"{option}=x")
    known = {name for parameter in VERBS[verb].params for name in parameter.opts}
    assert {word for word in shlex.split(new) if word.startswith("--")} <= known


def test_an_evidence_pack_is_asked_for_by_name(refused: Callable[..., str]) -> None:
    assert "type seepage evidence pack run" in refused("evidence", "run")
