"""Read and validate the answers that judges saved, and join them with the key of their page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from seepage.base.schema import JsonRecord, parse, parse_all
from seepage.base.storage import check_regular, check_schema, read_json
from seepage.errors import SeepageError
from seepage.papers.judging.page import key_path
from seepage.papers.judging.pairs import EXPECTED, Answer, Subject

LARGEST_FILE = 2**20
"""Largest accepted size of a file of answers, in bytes."""
LONGEST_NAME, LONGEST_RULE = 40, 300

_PAGE = re.compile("[0-9a-f]{12}")
_AGAIN = "save it again from the page"


@dataclass(frozen=True)
class Answers:
    """One judge's answers to one page.

    Attributes:
        judge: Name or initials.
        page: The page's name, 12 hexadecimal digits.
        answers: Pair number to answer; pairs without an answer are absent.
        machine: The rule of a machine that answered (`judging.machine`); None: a person did.
    """

    judge: str
    page: str
    answers: dict[str, Answer]
    machine: str | None = None


class Group(JsonRecord):
    """The number of a case's examples for which an attack returned a guess."""

    case: str
    attack: str
    returned: int
    examples: int


@dataclass(frozen=True)
class Key:
    """The key of a page: what each of its pairs shows.

    Attributes:
        pairs: Pair number to its content.
        groups: One per attack and case on the page.
    """

    pairs: dict[str, Subject]
    groups: list[Group]


def read_answers(paths: Sequence[Path]) -> list[Answers]:
    """Read the files that judges saved. They come from third parties, so everything in them is validated.

    Raises:
        SeepageError: For a file that the page did not save, and for two files of one judge about one page.
    """
    found: list[Answers] = []
    for path in paths:
        one = _read(path)
        if any((one.judge, one.page) == (other.judge, other.page) for other in found):
            raise SeepageError(
                f"{path} is a second file by {one.judge!r} about the same page; pass one file per judge, and let two "
                "people with the same initials use longer ones"
            )
        found.append(one)
    return found


def _read(path: Path) -> Answers:
    """One file of answers, checked as untrusted input.

    Raises:
        SeepageError: For a file without a judge, a page or valid answers.
    """
    check_regular(path, LARGEST_FILE)
    record: Any = read_json(path)
    check_schema(record, path)
    judge, page, answers = (record.get(name) for name in ("judge", "page", "answers"))
    if not isinstance(judge, str) or not 0 < len(judge) <= LONGEST_NAME or not judge.isprintable() or not judge.strip():
        raise SeepageError(
            f"{path} has no usable name of a judge (1 to {LONGEST_NAME} letters, digits or signs); {_AGAIN}"
        )
    if not isinstance(page, str) or not _PAGE.fullmatch(page):
        raise SeepageError(f"{path} does not say which page it answers ({page!r:.40}); {_AGAIN}")
    if not isinstance(answers, Mapping) or not answers:
        raise SeepageError(f"{path} holds no answers; {_AGAIN}")
    wrong = next(((pair, word) for pair, word in answers.items() if word not in get_args(Answer)), None)
    if wrong is not None:
        raise SeepageError(f"{path} answers pair {wrong[0]!r:.40} with {wrong[1]!r:.40}, which is no answer; {_AGAIN}")
    machine = record.get("machine")
    if machine is not None and not (
        isinstance(machine, str) and machine.isprintable() and len(machine) <= LONGEST_RULE
    ):
        raise SeepageError(f"{path} states a machine's rule that is no line of text; write it again")
    return Answers(judge.strip(), page, dict(answers), machine)


def open_key(folder: Path, answers: Answers) -> Key:
    """The key of the page that was answered.

    Raises:
        SeepageError: If the run has no such page, or the page lacks some of the answered pairs.
    """
    path = key_path(folder, answers.page)
    if not path.exists():
        raise SeepageError(
            f"{folder} has no key for page {answers.page} that {answers.judge!r} answered; name the run that the page "
            "was made from"
        )
    record: Any = read_json(path)
    check_schema(record, path)
    named = record.get("pairs")
    if not isinstance(named, Mapping):
        raise SeepageError(f"{path} is damaged: it names no pairs; make the page again")
    pairs = {name: parse(Subject, subject, f"{path}") for name, subject in named.items()}
    if not all(subject.kind == "guess" or subject.kind in EXPECTED for subject in pairs.values()):
        raise SeepageError(f"{path} is damaged: it has pairs of an unknown kind; make the page again")
    if strange := sorted(answers.answers.keys() - pairs.keys()):
        raise SeepageError(
            f"{answers.judge!r} answers pair {strange[0]!r:.40}, which page {answers.page} lacks; {_AGAIN}"
        )
    groups = parse_all(Group, record.get("groups"), f"{path}")
    if not all(0 <= group.returned <= group.examples > 0 for group in groups):
        raise SeepageError(f"{path} is damaged: it counts more guesses than examples; make the page again")
    return Key(pairs, groups)
