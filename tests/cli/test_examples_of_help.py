"""The examples under a verb's help are commands that exist, with options that exist."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import typer

from seepage.cli.commands import GROUPS, PANELS, app

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


def test_an_evidence_pack_is_asked_for_by_name(refused: Callable[..., str]) -> None:
    assert "type seepage evidence pack run" in refused("evidence", "run")
