"""The examples under a verb's help are commands that exist, with options that exist."""

import shlex

import typer

from seepage.cli.commands import PANELS, app


def test_every_example_names_a_verb_and_its_options() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = [example for panel in PANELS.values() for examples in panel.values() for example in examples]
    assert len({shlex.split(example)[1] for example in shown}) == len(verbs)
    for example in shown:
        program, verb, *words = shlex.split(example)
        known = {name for parameter in verbs[verb].params for name in parameter.opts}
        assert program == "seepage"
        assert {word for word in words if word.startswith("--")} <= known, example
