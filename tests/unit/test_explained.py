"""What `seepage list KIND` says of options."""

import inspect

import pytest

from seepage.attacks import ATTACKS
from seepage.cli.explained import SHARED, explained, options_of

KINDS = ("attacks", "clients", "defenses", "models", "partitions")


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_meaning(kind: str) -> None:
    lacking = [
        (name, option.name) for name, options in explained(kind).items() for option in options if len(option.about) < 2
    ]
    assert not lacking, "describe them under Args:, or in seepage.cli.explained.SHARED"


def test_every_option_is_there_with_its_default() -> None:
    for name, entry in ATTACKS.items():
        parameters = inspect.signature(entry.make).parameters
        options = explained("attacks")[name]
        assert [option.name for option in options] == list(parameters)
        for option, parameter in zip(options, parameters.values(), strict=True):
            assert option.default == ("" if parameter.default is parameter.empty else repr(parameter.default))


def test_meanings_are_read_from_the_docstring() -> None:
    def make(*, steps: int, lr: float = 0.5, other: int = 1) -> None:
        """Do something.

        Args:
            steps: Of `this`,
                on two lines.
            lr: Rate: per step.

        Returns:
            other: nothing.
        """

    found = options_of(make)
    assert [(option.name, option.default, option.about) for option in found] == [
        ("steps", "", "Of this, on two lines."),
        ("lr", "0.5", "Rate: per step."),
        ("other", "1", ""),
    ]


def test_shared_meanings_are_used() -> None:
    used = {option.name for kind in KINDS for options in explained(kind).values() for option in options}
    assert set(SHARED) <= used


def test_kinds_without_options_have_none() -> None:
    assert explained("data") == {}
