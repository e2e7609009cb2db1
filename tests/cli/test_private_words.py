"""Words of the field, and no private ones, in all that people read: pages, help, terminal, report, annex, frontier.

A private word is one that its author understands and a reader has to learn. `PRIVATE` has those that were used here,
each with the word that the field has for it. Names of keys and options are not read; they stand in code style.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import Cli

from seepage.audit.row import NUMBER_NAMES
from seepage.cli.commands import app

ROOT = Path(__file__).parents[2]

WHO = r"(members?|others|candidates?|tokens?|labels?|examples?|nobody|who) (is |are |was |were )?(not )?"
PRIVATE = {
    r"\b(un)?told\b": "known or not known to the attacker; stated or not stated of the client",
    r"\b(come|comes|came|coming) back\b": "reconstructed; returned, of weights",
    r"\bg[ia]v(e|es|en|ing) (\w+ ){0,3}away\b": "reveals",
    r"\b(read|bring|brings|gives?) back\b": "reconstruct",
    r"\b[Rr]ebuil(d|ds|t|ding)\b": "reconstructed",
    rf"\b{WHO}named\b|\bnamed (members|others|right|correctly|by mistake)\b": "identified",
    r"\bnames (members|who|most|\d+ of)\b": "identifies",
    r"\bsides\b": "parts, or aspects",
    r"\btraces?\b": "partial; something in the update",
    r"\bdoubts?\b": "a reason not to trust it; undecided",
    r"\b(cannot|can not|none can|nobody can) exceed\b": "upper bound",
    r"\btaken for\b": "assumed to be, or read as",
    r"\b(steps of|leaves|than) signs\b": "the sign of each entry",
}
"""Private words, and what to write in place of each."""

PAGES = [ROOT / "README.md", *(
    page for page in sorted((ROOT / "docs").rglob("*.md"))
    if "results" not in page.parts
)]  # fmt: skip

KEYS = {"cell", "told", "doubts", "taken_for", "given_away", "signs", "named", "meant", "sides", "traces"}
"""Private words that were keys, options or scores; none is one today."""

SHELL = "bash|sh|console|python|toml|json|yaml"


def found(text: str) -> list[str]:
    """The private words of a text, each with what stands around it."""
    text = re.sub(r"\s+", " ", text)
    return [
        f"{text[max(0, match.start() - 40) : match.end() + 40]!r}: write {better}"
        for word, better in PRIVATE.items()
        for match in re.finditer(word, text, re.IGNORECASE)
    ]


def prose(text: str) -> str:
    """The words of a page of Markdown: no tables of recorded numbers, commands, comments, names of code and targets."""
    for left_out in (
        r"<!-- part .*?<!-- end of .*?-->",
        rf"^```(?:{SHELL})\n.*?^```",
        r"<!--.*?-->",
        r"^```\w*$",
        r"`[^`]+`",
        r"\]\([^)]*\)",
    ):
        text = re.sub(left_out, " ", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    \S.*$", " ", text, flags=re.MULTILINE)  # commands, in Markdown's other notation


def shown(page: str) -> str:
    """The words of a page of HTML, without style, code and the recipe."""
    text = re.sub(r"<(style|code|pre)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def test_a_private_word_is_found_and_the_fields_word_is_not() -> None:
    assert found("Labels were\nnot told.")
    assert found("All images came back, and 3 members were named.")
    assert found("what none can exceed")
    assert not found("Labels are not known; all images are reconstructed, and 3 members are identified.")
    assert not found(prose("A dict of named tensors; `known = []` is a key."))


@pytest.mark.docs
@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the pages are not here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_private_word_on_a_page(page: Path) -> None:
    assert found(prose(page.read_text(encoding="utf-8"))) == []


def commands(group: Any, name: str = "seepage") -> Iterator[tuple[str, Any]]:
    """Every verb with its name, groups included."""
    yield name, group
    for verb, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {verb}")


VERBS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", VERBS)
def test_no_private_word_in_help(name: str) -> None:
    command = VERBS[name]
    help_of = [command.help, command.epilog, *(getattr(one, "help", None) for one in command.params)]
    assert found(prose(" ".join(filter(None, help_of)))) == []


LEAST = ("--set", "batch.count=1", "--set", "training.steps=0", "--jobs", 1, "--out", "run")
RUNS = {
    "pictures": ("--data", "digits", "--model", "fc2", "--batch-size", 2,
                 "--attack", "linear", "--attack", "dlg:steps=2"),
    "a table, known labels": ("--data", "wine", "--model", "fc2:hidden=16", "--attack", "linear", "--known", "labels"),
    "noise": ("--data", "wine", "--model", "fc2:hidden=16", "--attack", "linear",
              "--defense", "gaussian_noise:clip=1,sigma=0.3"),
}  # fmt: skip


@pytest.mark.parametrize("what", RUNS)
def test_no_private_word_is_said_of_a_run(what: str, cli: Cli) -> None:
    done = cli("audit", *RUNS[what], *LEAST)
    assert done.out, done
    cli("evidence", "pack", "run", "--out", "pack")
    result = json.loads(Path("run/result.json").read_text())
    flags = json.loads(Path("run/flags.json").read_text())
    said = {
        "the terminal": done.out + done.err,
        "the verdict": result["verdict"] + " ".join(part["words"] for part in result["summary"]),
        "diagnostics": " ".join(one["message"] for one in flags["flags"]),
        "the report": shown(Path("run/report.html").read_text()),
        "the annex": shown(Path("pack/annex.html").read_text()),
        "the summary": prose(Path("pack/summary.md").read_text()),
    }
    # What an attack or a bound says of itself is written where it is.
    own = [text for row in result["rows"] for text in (*row["notes"], row["reason"]) if text]
    own += [text for row in result["bounds"] for text in (row["words"], row["assumption"]) if text]
    assert {where: words for where, text in said.items() if (words := found(without(text, own)))} == {}


def without(text: str, parts: list[str]) -> str:
    """A text without some sentences in it."""
    text = re.sub(r"\s+", " ", text)
    for part in parts:
        text = text.replace(re.sub(r"\s+", " ", part), " ")
    return text


TEMPLATES = sorted((ROOT / "src/seepage/report").rglob("*.j2"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_private_word_in_a_template(template: Path) -> None:
    """Also what a page says of cases that no run here has: of texts, of bounds, of a frontier."""
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", " ", template.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found(shown(text)) == []


def keys_of(schema: object) -> Iterator[str]:
    """All keys that a JSON Schema describes, at any depth."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from keys_of(part)


def test_no_key_option_or_score_is_a_private_word() -> None:
    schemas = [json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "docs").glob("*.schema.json"))]
    keys = {key for schema in schemas for key in keys_of(schema)}
    options = {
        word.removeprefix("--") for verb in typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
        for option in verb.params for word in option.opts
    }  # fmt: skip
    assert {"known", "side_information", "caveats"} <= keys
    assert {"known", "fail-if"} <= options
    words = {part for name in (*keys, *options, *NUMBER_NAMES) for part in (name, *re.split("[-_]", name))}
    assert not KEYS & words
