"""What `seepage list KIND` says of options."""

from dataclasses import dataclass
from typing import Literal

import pytest

from seepage.base.signatures import options_of
from seepage.cli.catalog import explained

KINDS = ("attacks", "clients", "defenses", "models", "partitions")


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_meaning(kind: str) -> None:
    lacking = [
        (name, option.name) for name, options in explained(kind).items() for option in options if len(option.about) < 2
    ]
    assert not lacking, "describe them under Args:"


@dataclass
class Part:
    """A part.

    Args:
        rate: Of the part.
    """

    rate: float = 0.5


def make(given: int, *, steps: int, rate: float = 0.5, word: Literal["a", "b"] = "a", other: int = 3) -> Part:
    """Do something.

    Args:
        steps: Of `this`,
            on two lines.
        word: Which.

    Returns:
        other: nothing.
    """
    return Part(rate)


def test_meanings_are_read_from_the_docstring() -> None:
    assert [(option.name, option.default, option.about) for option in options_of(make, given=1)] == [
        ("steps", "", "Of this, on two lines."),
        ("rate", "0.5", "Of the part."),
        ("word", "'a'", "Which (one of a, b)"),
        ("other", "3", ""),
    ]


def test_kinds_without_options_have_none() -> None:
    assert explained("recipes") == {}
