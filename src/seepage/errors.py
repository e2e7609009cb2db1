"""The errors a user can cause. Each message is one sentence or two: what, why, the remedy."""

import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any, Self


class SeepageError(Exception):
    """Something the user can put right. The command line prints it and exits with code 2."""


class Inapplicable(SeepageError):
    """An attack does not apply to this transcript. A result row, never a crash.

    Args:
        name: What is in the way, in a word such as `no_bias`: the same for every attack that it is in the way of.
        reason: The same in a sentence, with its numbers.
        remedy: What would make the attack apply, or what to use instead.
    """

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.name = name
        self.reason = reason
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str]]:
        return type(self), (self.name, self.reason, self.remedy)  # so that it survives the way back from a worker


def refuse(name: str) -> Callable[[str, str], Inapplicable]:
    """The refusal of this name, which so stands on the line of the call; its reason and its remedy follow."""
    return partial(Inapplicable, name)


class NotFinite(SeepageError):
    """An update that holds NaN or infinite values."""


class Diverged(SeepageError):
    """Training whose weights are no numbers anymore: nothing more can be made of it."""


class Problems(SeepageError):
    """Mistakes found in one go, one line each.

    >>> print(Problems("the recipe has mistakes:", ["seed must be a whole number"]))
    the recipe has mistakes: seed must be a whole number
    """

    def __init__(self, title: str, problems: Iterable[str]) -> None:
        self.title = title
        self.problems = tuple(problems)
        several = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(title + (f" {self.problems[0]}" if len(self.problems) == 1 else several))

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[str, ...]]]:
        return type(self), (self.title, self.problems)


def unknown(kind: str, name: str, known: Iterable[str]) -> SeepageError:
    """The error for a name that is not in a list, with the nearest names that are.

    >>> str(unknown("attack", "dgl", ["dlg", "linear"]))
    "unknown attack 'dgl'; did you mean 'dlg'? Known: dlg, linear"
    """
    known = sorted(known)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    rest = f"Known: {', '.join(known) or '(none)'}" if len(known) <= 40 else f"{len(known)} names are known."
    return SeepageError(f"unknown {kind} {short(name)}{hint} {rest}")


def not_installed(package: str, extra: str) -> SeepageError:
    """The error for a package that an extra of seepage brings.

    >>> str(not_installed("Flower", "flower"))
    "Flower is not installed; run: pip install 'seepage[flower]'"
    """
    return SeepageError(f"{package} is not installed; run: pip install 'seepage[{extra}]'")


def short(value: Any, spell: Callable[[Any], str] = repr) -> str:
    """A value's `repr`, or what else it is spelled by, cut to a length that fits a message.

    >>> short("a" * 100).endswith("aaa..."), len(short("a" * 100))
    (True, 80)
    """
    text = spell(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


LONGEST_LINE, MOST_LINES = 800, 40
"""Letters of one line of a message in the terminal, and its lines."""


def brief(text: str) -> str:
    """A message for a terminal: the middle of a long line, and lines beyond `MOST_LINES`, are left out.

    Its end stays, where the remedy is.

    >>> text = brief("no file " + "x" * 5000 + "; check the path")
    >>> len(text) <= LONGEST_LINE, text[:9], text[-16:]
    (True, 'no file x', '; check the path')
    """
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"  and {len(lines) - MOST_LINES + 1} lines more"]
    half = (LONGEST_LINE - 5) // 2
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:half]} ... {line[-half:]}" for line in lines)


def printable(text: str, keep: str = "") -> str:
    r"""A stranger's words, in which what would move the cursor, ring or turn the writing around is spelled out.

    Args:
        text: Any text.
        keep: Characters that stay, such as line breaks.

    >>> printable("a\x1b[2Jb\u202ec\n"), printable("a\n", keep="\n")
    ('a\\x1b[2Jb\\u202ec\\n', 'a\n')
    """
    return "".join(
        c if c.isprintable() or c in keep or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )


def say(words: str) -> None:
    """Print a remark to stderr: its lines whole in a file, wrapped at blanks in a terminal, never within an option."""
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        lines = words.split("\n")
        wrapped = (textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False) for line in lines)
        words = "\n".join("\n".join(parts) for parts in wrapped)
    print(words, file=sys.stderr)
