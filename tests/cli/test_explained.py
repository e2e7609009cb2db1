"""What `seepage list KIND` says of options."""

import inspect
import textwrap
from pathlib import Path

import pytest

from seepage.attacks import ATTACKS
from seepage.base.signatures import read_source
from seepage.cli.catalog import explained

KINDS = ("attacks", "clients", "defenses", "models", "partitions")


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_meaning(kind: str) -> None:
    lacking = [
        (name, option.name) for name, options in explained(kind).items() for option in options if len(option.about) < 2
    ]
    assert not lacking, "describe them under Args:"


def test_every_option_is_there_with_its_default() -> None:
    for name, entry in ATTACKS.items():
        parameters = inspect.signature(entry.make).parameters
        options = explained("attacks")[name]
        assert [option.name for option in options] == list(parameters)
        for option, parameter in zip(options, parameters.values(), strict=True):
            assert option.default == ("" if parameter.default is parameter.empty else repr(parameter.default))


def test_meanings_are_read_from_the_docstring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = '''
        from dataclasses import dataclass
        from typing import Literal

        STEPS = 3

        @dataclass
        class Part:
            """A part.

            Args:
                rate: Of the part.
            """

            rate: float = 0.5

        def make(given, *, steps: int, lr: float = 0.5, word: Literal["a", "b"] = "a", other: int = STEPS) -> None:
            """Do something.

            Args:
                steps: Of `this`,
                    on two lines.
                word: Which.

            Returns:
                other: nothing.
            """
            return Part(rate=lr)
    '''
    (tmp_path / "explained_module.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    found = read_source("explained_module", "make")
    assert [(option.name, option.default, option.about) for option in found.options(given=1)] == [
        ("steps", "", "Of this, on two lines."),
        ("lr", "0.5", "Of the part."),
        ("word", "'a'", "Which (one of a, b)"),
        ("other", "3", ""),
    ]


def test_kinds_without_options_have_none() -> None:
    assert explained("recipes") == {}
