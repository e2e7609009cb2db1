"""TOML from others, bounded before it is parsed: a small file must not take a machine down.

`tomllib` walks all parts of a dotted key again for each of them, so that `a.a.a. ... = 1` of 40 KB takes seconds and
a gigabyte. Nothing that this package reads has keys of more than a few parts, or tables in tables in tables.
"""

import re
import tomllib
from typing import Any

LARGEST = 2**20
"""Bytes of one TOML file; more is refused before it is read."""

MOST_PARTS = 16
"""Parts of one dotted key."""

DEEPEST = 32
"""Tables and lists within one another."""

MOST_BITS = 1023
"""Bits of a whole number: with more no float can hold it, and comparing it with one fails."""

# One token of TOML at a time: strings of several lines, strings of one, comments, words, and any other character. Each
# alternative ends at what ends it or at the end of the text, so none fails late and goes back: the time is linear.
# (Possessive quantifiers would say so; those of Python 3.11.2 match too little.)
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\(?:.|\Z)|"(?!""))*(?:"{3,5}|\Z)'
    r"|'''(?:[^']|'(?!''))*(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\[^\n])*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*"
    r"|[A-Za-z0-9_-]+|[ \t]+|.",
    re.DOTALL,
)


def load_toml(text: str) -> dict[str, Any]:
    r"""The tables of a TOML text.

    Args:
        text: The text.

    Raises:
        tomllib.TOMLDecodeError: For what is no TOML, a key of more than `MOST_PARTS` parts, tables and lists more than
            `DEEPEST` deep, and whole numbers of more than `MOST_BITS` bits.

    >>> load_toml("[batch]\nsize = 8")
    {'batch': {'size': 8}}
    """
    _check_keys(text)
    try:
        found = tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(f"its tables or lists are more than {DEEPEST} deep") from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # of Python's own: a number of thousands of digits
        raise tomllib.TOMLDecodeError(str(error)[:120]) from error
    _check_values(found)
    return found


def _check_keys(text: str) -> None:
    """Count the dots of each key, outside of strings and comments."""
    dots = 0
    for found in _TOKEN.finditer(text):
        first = found[0][0]
        if first == ".":
            dots += 1
            if dots >= MOST_PARTS:
                line = text.count("\n", 0, found.start()) + 1
                raise tomllib.TOMLDecodeError(f"line {line} has a key of more than {MOST_PARTS} parts")
        elif not (first.isalnum() or first in "_-\"' \t"):
            dots = 0  # a key ends, or a value does


def _check_values(tables: dict[str, Any]) -> None:
    level: list[Any] = [tables]
    for _ in range(DEEPEST):
        if not level:
            return
        if any(isinstance(value, int) and value.bit_length() > MOST_BITS for value in level):
            raise tomllib.TOMLDecodeError(f"a whole number has more than {MOST_BITS} bits")
        tables_inside = [value.values() for value in level if isinstance(value, dict)]
        lists_inside = [value for value in level if isinstance(value, list)]
        level = [value for values in (*tables_inside, *lists_inside) for value in values]
    if level:
        raise tomllib.TOMLDecodeError(f"its tables or lists are more than {DEEPEST} deep")
