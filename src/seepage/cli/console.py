"""The console that commands print to."""

import errno
import os
import sys

from rich.console import Console


class PlainConsole(Console):
    """rich ends with 1 where nobody reads any more, and 1 is a gate's."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    @property
    def whole_lines(self) -> bool:
        """Whether a sentence stays one line: in a file, not in a terminal, which would break it within an option."""
        return not self.is_terminal


def open_console(width: int = 120) -> PlainConsole:
    """A file has room for whole lines; rich gives it 80 columns.

    Args:
        width: Columns where the output is no terminal.
    """
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PlainConsole(width=width if wide else None)
