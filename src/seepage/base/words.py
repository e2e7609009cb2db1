r"""Untrusted text made safe for whatever shows it: a terminal, Markdown, SARIF, XML, and pages.

Names of cases, reasons, titles and facts come from files that others made. What would move a cursor, ring or turn the
writing around is spelled out everywhere (`\x1b`); what a format would take for a tag, a link or a mention is broken.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from seepage.errors import printable

_MARKDOWN = re.compile(r"([\\`*_\[\]|~$#])")
_REACHES = re.compile(r"(://|www\.|@|#(?=\d))", re.IGNORECASE)
"""What platforms make links, mentions and references of, without any mark."""

_BRACKETS = re.compile(r"(\\*)([\[\]])")
_NOT_XML = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""All but the characters of XML 1.0, production 2."""


def each_text(value: Any, change: Callable[[str], str] = printable) -> Any:
    """JSON with every text changed, keys too: spelled out, unless something else is asked for.

    >>> each_text({"title": ["a" + chr(27) + "[2J"]})["title"][0] == "a" + chr(92) + "x1b[2J"
    True
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): each_text(item, change) for key, item in value.items()}
    return [each_text(item, change) for item in value] if isinstance(value, list | tuple) else value


def for_page(value: Any) -> Any:
    """What a template puts into a page, which escapes it afterwards; line breaks and tabs stay."""
    if not isinstance(value, str) or (text := printable(value, keep="\n\r\t")) == value:
        return value
    return type(value)(text)


def for_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line, without a link, a mention or a reference.

    >>> for_markdown("<img src=x>|[a](b)")
    '&lt;img src=x&gt;\\|\\[a\\](b)'
    >>> for_markdown("see https://evil.example and www.evil.example, @octocat")
    'see https:// evil.example and www. evil.example, @ octocat'
    """
    text = _REACHES.sub(r"\1 ", printable(" ".join(text.split())))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)


def for_sarif(text: str) -> str:
    r"""Text for `message.text`, in which `[words](target)` is no link: brackets have a backslash in front.

    >>> for_sarif("[click](https://evil.example)"), for_sarif("\\[a]")
    ('\\[click\\](https://evil.example)', '\\\\\\[a\\]')
    """
    return _BRACKETS.sub(r"\1\1\\\2", printable(text))


def for_xml(text: str) -> str:
    r"""Text without characters that XML 1.0 has no place for, or that act where it is shown.

    >>> for_xml("a\x00b\ud800")
    'a\\x00b\\ud800'
    """
    return _NOT_XML.sub("", printable(text))


def plural(count: int, word: str) -> str:
    """A count with its word.

    >>> plural(1, "note"), plural(1200, "batch")
    ('1 note', '1,200 batches')
    """
    ending = "es" if word.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {word if count == 1 else word + ending}"


def places_of(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Each sentence once, with the places that it is about, both in the order of their first appearance.

    Args:
        said: Pairs of place and sentence.

    >>> places_of([("a", "known"), ("b", "not known"), ("c", "known")])
    {'known': ['a', 'c'], 'not known': ['b']}
    """
    found: dict[str, list[str]] = {}
    for place, words in said:
        found.setdefault(words, []).append(place)
    return found
