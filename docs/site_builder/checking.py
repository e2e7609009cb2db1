"""What must hold of the built site: no link leads nowhere, nothing is loaded from elsewhere, no text acts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src"}
ELSEWHERE = re.compile(r"(https?:)?//")
ACTING = {"script", "iframe", "object", "embed", "form", "base", "meta"}
"""Tags that run, load or send something."""
SCHEME = re.compile(r"\s*(javascript|vbscript|data:text)", re.IGNORECASE)
STYLES_LOAD = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')]+)""")


@dataclass
class Page(HTMLParser):
    """The anchors, links and loaded files of a page, and what acts in its text, which no text of ours does."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    depth: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.depth += tag == "article"
        if self.depth:  # outside of it stand the theme's own scripts
            self._look(tag, found)
        if tag in LOADED and LOADED[tag] in found and found.get("rel") not in {"canonical", "next", "prev"}:
            self.loaded.append(found[LOADED[tag]])

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "article"

    def _look(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in ACTING:
            self.acts.append(f"a <{tag}>")
        self.acts += [f"{name} of a <{tag}>" for name in attributes if name.startswith("on")]
        links = [value for value in attributes.values() if SCHEME.match(value)]
        self.acts += [f"the link {value[:40]}" for value in links]


def problems(site: Path) -> list[str]:
    """One line for each dead link, missing file and thing that a page would load from another server."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = [problem for path, page in pages.items() for problem in _of_page(path, page, pages, site)]
    for path in sorted(site.rglob("*.css")):
        loads = STYLES_LOAD.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)} loads {target} from another server" for target in loads]
    return found


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _of_page(path: Path, page: Page, pages: dict[Path, Page], site: Path) -> Iterator[str]:
    name = path.relative_to(site)
    yield from (f"{name} loads {url} from another server" for url in page.loaded if ELSEWHERE.match(url))
    yield from (f"{name} has {what} in its text; texts of ours have none" for what in page.acts)
    for url in [*page.links, *page.loaded]:
        parts = urlsplit(url)
        if parts.scheme or ELSEWHERE.match(url):
            continue
        aim = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if aim.is_dir():
            aim /= "index.html"
        if not aim.exists() or not aim.is_relative_to(site):
            yield f"{name} leads to {url}, which is not there"
        elif parts.fragment and aim in pages and unquote(parts.fragment) not in pages[aim].anchors:
            yield f"{name} leads to {url}, but that page has no such heading"
