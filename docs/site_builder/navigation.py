"""The navigation: what zensical.toml asks for, as far as the pages exist."""

from collections.abc import Collection
from fnmatch import fnmatch
from typing import Any

Nav = list[Any]
UNLISTED = "Topics"
NOT_LISTED = ("source/*", "results/*")


def resolve(wanted: Nav, pages: Collection[str]) -> Nav:
    """Leave out pages that are not there, open `folder/*`, and put written pages that nobody named under `Topics`.

    >>> resolve([{"Home": "index.md"}, {"A": ["a/index.md", "a/*"]}, {"Topics": ["gone.md"]}],
    ...         ["index.md", "a/index.md", "a/x.md", "new.md"])
    [{'Home': 'index.md'}, {'A': ['a/index.md', 'a/x.md']}, {'Topics': ['new.md']}]
    """
    named = set(_leaves(wanted))
    rest = [page for page in pages if not any(fnmatch(page, name) for name in [*named, *NOT_LISTED])]
    found = _existing(wanted, pages, named)
    listed = [section for section in found if UNLISTED in section]
    if rest and listed:
        listed[0][UNLISTED] += rest
    elif rest:
        found.append({UNLISTED: rest})
    return found


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
            if kept or title == UNLISTED:
                found.append({title: kept if isinstance(inside, list) else kept[0]})
        else:
            found += [page for page in pages if fnmatch(page, entry) and (page == entry or page not in named)]
    return found
