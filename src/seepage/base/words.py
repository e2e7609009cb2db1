r"""Untrusted text made safe for whatever shows it: a terminal, Markdown, SARIF, XML, and pages.

Names of cases, reasons, titles and facts come from files that others made. What would move a cursor, ring or turn the
writing around is spelled out everywhere (`\x1b`); what a format would take for a tag, a link or a mention is broken.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_MARKDOWN = re.compile(r"([\\`*_\[\]|~$#])")
_REACHES = re.compile(r"(://|www\.|@|#(?=\d))", re.IGNORECASE)
"""What platforms make links, mentions and references of, without any mark."""

_BRACKETS = re.compile(r"(\\*)([\[\]])")
_NOT_XML = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""All but the characters of XML 1.0, production 2."""


def spelled(text: str, keep: str = "") -> str:
    r"""Text in which characters that act are spelled out.

    Args:
        text: Any text.
        keep: Characters that stay, such as line breaks.

    >>> spelled("a\x1b[2Jb\u202ec\n"), spelled("a\n", keep="\n")
    ('a\\x1b[2Jb\\u202ec\\n', 'a\n')
    """
    return "".join(
        c if c.isprintable() or c in keep or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )


def all_spelled(value: Any) -> Any:
    """JSON with every text spelled out, keys too."""
    if isinstance(value, str):
        return spelled(value)
    if isinstance(value, dict):
        return {all_spelled(key): all_spelled(item) for key, item in value.items()}
    return [all_spelled(item) for item in value] if isinstance(value, list | tuple) else value


def for_page(value: Any) -> Any:
    """What a template puts into a page, which escapes it afterwards; line breaks and tabs stay."""
    if not isinstance(value, str) or (text := spelled(value, keep="\n\r\t")) == value:
        return value
    return type(value)(text)


def for_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line, without a link, a mention or a reference.

    >>> for_markdown("<img src=x>|[a](b)")
    '&lt;img src=x&gt;\\|\\[a\\](b)'
    >>> for_markdown("see https://evil.example and www.evil.example, @octocat")
    'see https:// evil.example and www. evil.example, @ octocat'
    """
    text = _REACHES.sub(r"\1 ", spelled(" ".join(text.split())))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)


def for_sarif(text: str) -> str:
    r"""Text for `message.text`, in which `[words](target)` is no link: brackets have a backslash in front.

    >>> for_sarif("[click](https://evil.example)"), for_sarif("\\[a]")
    ('\\[click\\](https://evil.example)', '\\\\\\[a\\]')
    """
    return _BRACKETS.sub(r"\1\1\\\2", spelled(text))


def for_xml(text: str) -> str:
    r"""Text without characters that XML 1.0 has no place for, or that act where it is shown.

    >>> for_xml("a\x00b\ud800")
    'a\\x00b\\ud800'
    """
    return _NOT_XML.sub("", spelled(text))


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
