"""The console that commands print to."""

import os
import sys

from rich.console import Console


def open_console() -> Console:
    """A file has room for whole lines; rich gives it 80 columns."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=120 if wide else None)
