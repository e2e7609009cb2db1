"""Write the parts of docs/*.md that are made of records: python experiments/pages.py [PART ...]

A part of a page stands between `<!-- part NAME: experiments/pages.py -->` and `<!-- end of NAME -->`. A test compares
every part with the records. Most are tables that `tables.toml` describes. The book (docs/results) is written by
`seepage reproduce --book docs/results`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import compare
import pages_architectures
import pages_by_hand
import tables
from page_parts import Part

PARTS: dict[str, Part] = {
    name: part for made in (tables, compare, pages_architectures, pages_by_hand) for name, part in made.PARTS.items()
}


def main(names: Sequence[str], docs: Path = Path("docs")) -> None:
    for name in names or PARTS:
        if name not in PARTS:
            raise SystemExit(f"there is no part {name!r}; the parts are: {', '.join(PARTS)}")
        page = docs / PARTS[name].page
        page.write_text(PARTS[name].in_page(name, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
