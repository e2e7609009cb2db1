"""The navigation: what zensical.toml asks for, as far as the pages exist."""

from collections.abc import Collection
from fnmatch import fnmatch
from typing import Any

Nav = list[Any]
NOT_LISTED = ("source/*",)


def resolve(wanted: Nav, pages: Collection[str]) -> Nav:
    """Leave out pages that are not there, and open `folder/*`; a page that no entry names or opens ends the build.

    >>> resolve([{"Home": "index.md"}, {"A": ["a/index.md", "gone.md", "a/*"]}], ["index.md", "a/index.md", "a/x.md"])
    [{'Home': 'index.md'}, {'A': ['a/index.md', 'a/x.md']}]
    >>> resolve(["index.md"], ["index.md", "new.md"])
    Traceback (most recent call last):
    SystemExit: in no navigation of zensical.toml: new.md
    """
    named = set(_leaves(wanted))
    rest = [page for page in pages if not any(fnmatch(page, name) for name in [*named, *NOT_LISTED])]
    if rest:
        raise SystemExit(f"in no navigation of zensical.toml: {', '.join(rest)}")
    return _existing(wanted, pages, named)


def _leaves(nav: Nav) -> list[str]:
    return [leaf for entry in nav for leaf in (_leaves(_inside(entry)) if isinstance(entry, dict) else [entry])]


def _inside(entry: dict[str, Any]) -> Nav:
    inside = next(iter(entry.values()))
    return inside if isinstance(inside, list) else [inside]


def _existing(nav: Nav, pages: Collection[str], named: Collection[str]) -> Nav:
    found: Nav = []
    for entry in nav:
        if isinstance(entry, dict):
            title, inside = next(iter(entry.items()))
            kept = _existing(_inside(entry), pages, named)
            if kept:
                found.append({title: kept if isinstance(inside, list) else kept[0]})
        else:
            found += [page for page in pages if fnmatch(page, entry) and (page == entry or page not in named)]
    return found
