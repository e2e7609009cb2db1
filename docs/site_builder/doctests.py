"""For mkdocstrings: doctests of docstrings become code blocks; Markdown takes `>>>` for a quotation."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    r"""A docstring's text with each doctest, up to its blank line, in a fence.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n\nMore.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    return DOCTEST.sub(lambda block: f"{block[1]}```pycon\n{block[0]}\n{block[1]}```", text)


class Doctests(griffe.Extension):
    """Fences the doctests of everything that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that griffe reads; keyword arguments beside it are not needed here."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
