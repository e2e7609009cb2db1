"""Records of reproductions that somebody else wrote: the book shows their words as words, or says what is wrong."""

import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from seepage.errors import SeepageError
from seepage.papers import Item, book, find_item
from seepage.papers.book import write_book
from seepage.papers.markdown import as_code, as_words

HOSTILE = (
    "<script>pwned()</script>",
    '"><img src=x onerror="pwned()">',
    "[x](javascript:pwned())",
    "`<svg onload=pwned()>`",
    "x{: onclick=pwned() }",
    "a" + chr(10) * 2 + "<img src=x onerror=pwned()>" + chr(10) * 2 + "| a | b |",
)
ITEM = "cafe/table-2"


@pytest.fixture
def one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {ITEM: the_item()}
    monkeypatch.setattr(book, "list_items", lambda: found)


@cache
def the_item() -> Item:
    return find_item(ITEM)


def record(**more: Any) -> dict[str, Any]:
    line = the_item().lines[0]
    facts = {"psnr": 20.0, "recovered": 0.5, "examples": 4, "mean_color_psnr": 12.0, "reason": "none"}
    plain = {"schema": 2, "item": ITEM, "row": line.name, "metric": line.metric, "value": 21.0, "size": "small"}
    return {**plain, "data": "album", "paper_data": line.data, "command": "seepage", "facts": facts, **more}


def written(folder: Path, *records: dict[str, Any]) -> str:
    (folder / "cafe-table-2.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return "\n".join(page.read_text("utf-8") for page in write_book(folder, folder / "book")[1:])


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.usefixtures("one_item")
@pytest.mark.parametrize("evil", HOSTILE)
def test_a_strangers_words_are_words_in_the_book(tmp_path: Path, evil: str) -> None:
    facts = {**record()["facts"], "reason": evil}
    made = {"torch": evil, "device": evil, "started": evil}
    text = written(
        tmp_path,
        record(data=evil, command=evil, made=made, seeds={evil: 1.0, "1": 2.0}),
        record(value=None, facts=facts),
    )
    assert "pwned" in text, "the words are there"
    assert not re.search(r"<[a-z/]|\]\(java|\{:|^\| a \|", text, re.MULTILINE)
    if find_spec("markdown") is None:  # the extra `docs`
        return
    import markdown

    tags = Tags()
    tags.feed(markdown.markdown(text, extensions=["tables", "attr_list", "md_in_html"]))
    assert not {"script", "img", "svg"} & {tag for tag, _ in tags.found}
    named = [name for _, attributes in tags.found for name in attributes.items()]
    assert not any(name.startswith("on") or "pwned" in (value or "") for name, value in named)


def test_words_survive_as_they_are() -> None:
    for text in (*HOSTILE[:5], "faces_yale_32.npz", "a & b"):
        assert unescape(as_words(text)) == text
    assert as_code("seepage reproduce cafe/table-2 --seeds 3") == "`seepage reproduce cafe/table-2 --seeds 3`"


@pytest.mark.usefixtures("one_item")
@pytest.mark.parametrize(
    "spoiled",
    [
        {"facts": {"psnr": "20"}},
        {"facts": {"recovered": [1], "examples": 4}},
        {"facts": {"recovered": 0.5, "examples": 10**400}},
        {"facts": {"by_seed": 3}},
        {"facts": {"intervals": {"ssim": [1.0]}}},
        {"seeds": {"0": 1e308, "1": -1e308}},
    ],
)
def test_a_broken_record_is_one_sentence(tmp_path: Path, spoiled: dict[str, Any]) -> None:
    with pytest.raises(SeepageError, match=r"cannot be read|is not valid JSON"):
        written(tmp_path, record(**spoiled))


@pytest.mark.usefixtures("one_item")
def test_a_data_set_cannot_name_a_picture_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (results / "cafe-table-2-small-x").mkdir()
    item = replace(the_item(), expect=replace(the_item().expect, kind="pictures"))
    monkeypatch.setattr(book, "list_items", lambda: {ITEM: item})
    written(results, record(data="x/../../secret"))
    assert not list((results / "book").rglob("*.png"))
