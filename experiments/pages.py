"""Write the parts of docs/*.md that are made of records: python experiments/pages.py [PART ...]

A part of a page stands between `<!-- part NAME: experiments/pages.py -->` and `<!-- end of NAME -->`. A test compares
every part with the records. The book (docs/results) is written by `seepage reproduce --book docs/results`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pages_architectures
import pages_bounds
import pages_cafe
import pages_compare
import pages_convolutions
import pages_cpa
import pages_defenses
import pages_features
import pages_federation
import pages_fedleak
import pages_fedleak_relu
import pages_landscape
import pages_matching
import pages_membership
import pages_recognition
import pages_rows
import pages_runs
import pages_safety
import pages_speed
import pages_targets
import pages_transformers
from page_parts import Part

PARTS: dict[str, Part] = {
    **pages_architectures.PARTS,
    **pages_bounds.PARTS,
    **pages_cafe.PARTS,
    **pages_compare.PARTS,
    **pages_convolutions.PARTS,
    **pages_cpa.PARTS,
    **pages_defenses.PARTS,
    **pages_features.PARTS,
    **pages_federation.PARTS,
    **pages_fedleak.PARTS,
    **pages_fedleak_relu.PARTS,
    **pages_landscape.PARTS,
    **pages_matching.PARTS,
    **pages_membership.PARTS,
    **pages_recognition.PARTS,
    **pages_rows.PARTS,
    **pages_runs.PARTS,
    **pages_safety.PARTS,
    **pages_speed.PARTS,
    **pages_targets.PARTS,
    **pages_transformers.PARTS,
}


def main(names: Sequence[str], docs: Path = Path("docs")) -> None:
    for name in names or PARTS:
        if name not in PARTS:
            raise SystemExit(f"there is no part {name!r}; the parts are: {', '.join(PARTS)}")
        page = docs / PARTS[name].page
        page.write_text(PARTS[name].in_page(name, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
