"""Sentences of a package in one file that people read in the diff; what decides is tested by names and numbers."""

import os
from collections.abc import Iterable
from pathlib import Path


def assert_as_read(lines: Iterable[str], path: Path) -> None:
    """Hold lines against a file. After a change of words: SEEPAGE_SENTENCES=write, and read the difference."""
    text = "\n".join(lines)
    if os.environ.get("SEEPAGE_SENTENCES") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "read what changed, and set SEEPAGE_SENTENCES=write"
