"""The builder of the site: what it stages, and that its check finds what is wrong. CI builds the whole site."""

import doctest
import importlib
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from seepage import ATTACKS, DEFENSES

BUILDER = Path(__file__).parents[2] / "docs/site_builder"
pytestmark = [pytest.mark.docs, pytest.mark.skipif(not BUILDER.is_dir(), reason="the builder is not here")]
HEAD = "<html><head><link rel='stylesheet' href='style.css'></head><body>"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BUILDER)
    return importlib.import_module("staging")


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BUILDER)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", ["staging", "navigation", "doctests"])
def test_its_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "doctests":
        pytest.importorskip("griffe", reason="the extra seepage[docs] is not installed")
    found = doctest.testmod(module(name, monkeypatch))
    assert found.attempted > 0
    assert found.failed == 0


def test_links_out_of_the_docs_become_pages(builder: ModuleType) -> None:
    staged = builder.Staged()
    text = (
        "[a](../src/seepage/errors.py) [b](../README.md#develop) [c](cafe.md) [d](https://x.org)\n```\n[e](../x)\n```\n"
    )
    assert builder.with_links(text, "docs/page.md", "page.md", staged) == (
        "[a](source/src/seepage/errors.py.md) [b](index.md#develop) [c](cafe.md) [d](https://x.org)\n```\n[e](../x)\n```\n"
    )
    assert "class SeepageError" in staged.pages["source/src/seepage/errors.py.md"]


def test_links_of_written_pages_lead_somewhere_in_the_repository_too(builder: ModuleType) -> None:
    links = [
        (page, match[2])
        for page in (*builder.DOCS.rglob("*.md"), builder.ROOT / "README.md")
        for code, part in builder._parts(page.read_text(encoding="utf-8"))
        for match in builder.LINK.finditer(part)
        if not code and ":" not in match[2]
    ]
    assert len(links) > 100
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_a_link_to_a_folder_becomes_a_list_of_its_files(builder: ModuleType) -> None:
    staged = builder.Staged()
    assert builder.with_links("[a](../examples)", "docs/page.md", "page.md", staged) == "[a](source/examples/index.md)"
    assert "- [audit_my_model.py](audit_my_model.py.md)" in staged.pages["source/examples/index.md"]


def test_every_attack_defense_and_recipe_has_its_page(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = builder.stage_written()
    module("generated", monkeypatch).add_generated(staged)
    wanted = {f"attacks/{name}.md" for name in ATTACKS} | {f"defenses/{name}.md" for name in DEFENSES}
    assert wanted <= set(staged.pages)
    assert "::: seepage.attacks.linear.linear.LinearLeak" in staged.pages["attacks/linear.md"]
    index = staged.pages["attacks/index.md"]
    assert [name for name in ATTACKS if f"| [`{name}`]({name}.md) |" not in index] == []
    assert "Phong et al. 2017" in index
    assert "(cafe.md#cafeexact)" in staged.pages["recipes/index.md"]
    assert "## cafe/exact" in staged.pages["recipes/cafe.md"]


def test_an_attack_has_one_page_with_what_was_measured_of_it(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = builder.stage_written()
    module("generated", monkeypatch).add_generated(staged)
    written = staged.pages["attacks/spear.md"]
    parts = (
        "# spear",
        "seepage audit closed/spear",
        "| Needs |",
        "## How it works",
        "closed-forms.md#",
        "::: seepage.",
    )
    places = [written.index(part) for part in parts]
    assert places == sorted(places)
    assert builder.FOLD in staged.pages["attacks/matching.md"]
    of_its_family = staged.pages["attacks/sapag.md"]
    assert "[All of them on what they can do](matching.md#all-of-them-on-what-they-can-do):" in of_its_family
    assert "| `sapag` | 2/4, 16.9 |" in of_its_family
    assert "| `bayes` |" not in of_its_family


def test_how_numbers_were_made_is_gathered_at_the_end_of_a_page(builder: ModuleType) -> None:
    fold = "<details><summary>How these numbers were made</summary>\n\n    {}\n\n</details>\n\n"
    text = (
        "# A\n\n## B\n\n"
        + fold.format("one")
        + fold.format("two")
        + "then\n\n## C\n\n"
        + fold.format("three")
        + "end\n"
    )
    assert builder.gathered(text) == (
        f"# A\n\n## B\n\nthen\n\n## C\n\nend\n\n{builder.FOLD}\n\n"
        "    **B**\n\n        one\n\n        two\n\n    **C**\n\n        three\n"
    )
    assert builder.gathered("# A\n") == "# A\n"


def test_the_navigation_names_or_opens_every_page(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = builder.stage_written()
    module("generated", monkeypatch).add_generated(staged)
    wanted = tomllib.loads((builder.ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    resolve = module("navigation", monkeypatch).resolve
    resolve(wanted, list(staged.pages))
    with pytest.raises(SystemExit, match=r"in no navigation of zensical\.toml: forgotten\.md"):
        resolve(wanted, [*staged.pages, "forgotten.md"])


def test_recipes_that_use_a_part_are_found_wherever_they_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = module("generated", monkeypatch)._uses
    tables = {
        "attack": [{"use": "dlg"}],
        "grid": {"attack": [[{"use": "idlg"}]]},
        "case": [{"attack": [{"use": "bayes"}]}],
    }
    assert uses(tables, "attack") == {"dlg", "idlg", "bayes"}
    assert uses({"model": {"use": "dlg"}}, "attack") == set()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<a href='b.html#there'>", None),
        ("<a href='b.html#nowhere'>", "a.html leads to b.html#nowhere, but that page has no such heading"),
        ("<a href='#nowhere'>", "a.html leads to #nowhere, but that page has no such heading"),
        ("<a href='c.html'>", "a.html leads to c.html, which is not there"),
        ("<a href='../beside.html'>", "a.html leads to ../beside.html, which is not there"),
        ("<img src='gone.png'>", "a.html leads to gone.png, which is not there"),
        ("<a href='https://elsewhere.org'>", None),
        (
            "<script src='https://elsewhere.org/x.js'></script>",
            "a.html loads https://elsewhere.org/x.js from another server",
        ),
        ("<img src='//elsewhere.org/x.png'>", "a.html loads //elsewhere.org/x.png from another server"),
        ("<script>theme()</script><article><p>text</p></article>", None),
        (
            "<article><script>pwned()</script></article>",
            "a.html has a <script> in its text; texts of ours have none",
        ),
        (
            "<article><b onclick='pwned()'>x</b></article>",
            "a.html has onclick of a <b> in its text; texts of ours have none",
        ),
        (
            "<article><a href=' JavaScript:pwned()'>x</a></article>",
            "a.html has the link  JavaScript:pwned() in its text; texts of ours have none",
        ),
    ],
)
def test_faults_are_found(body: str, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.html").write_text("of no page of the site")
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.html").write_text(f"{HEAD}{body}</body></html>")
    (site / "b.html").write_text(f"{HEAD}<h2 id='there'>x</h2></body></html>")
    (site / "style.css").write_text("body { background: url(x.png) }")
    assert module("checking", monkeypatch).problems(site) == ([problem] if problem else [])


def test_styles_that_load_from_elsewhere_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "style.css").write_text("@import 'https://fonts.org/x.css'; p { background: url(\"//y.org/z.png\") }")
    assert module("checking", monkeypatch).problems(tmp_path) == [
        "style.css loads https://fonts.org/x.css from another server",
        "style.css loads //y.org/z.png from another server",
    ]
