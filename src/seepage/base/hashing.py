"""Digests of files that may be untrusted: with limits of the reader's own, whatever a manifest says of them."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from seepage.base.storage import LARGEST_JSON, LARGEST_LINES, LARGEST_TENSORS, LARGEST_TEXT, check_regular
from seepage.errors import SeepageError

if TYPE_CHECKING:
    import hmac

LARGEST: dict[str, int] = {".json": LARGEST_JSON, ".jsonl": LARGEST_LINES, ".safetensors": LARGEST_TENSORS}
"""Bytes of a file by its ending; of any other, `LARGEST_TEXT`."""

MOST_OF_RUN, MOST_OF_PACK = 2**40, 2**28
"""Bytes of all files of a run, which somebody's disk held, and of an evidence pack, which is words."""

MOST_EMPTY = 2**28
"""Bytes of all files of a folder that take hardly any room on the disk: terabytes of nothing fit into an archive."""

ROOM = 8
"""A file takes hardly any room where it has so many times more bytes than its blocks."""


class Hasher:
    """SHA-256 of the files of one folder.

    Args:
        most: Bytes that all of them may have together.
        own: Whether they were just written by who asks; then no limit holds, as there is nobody to fear.

    Example:
        >>> Hasher().digest(Path(__file__)) == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        True
    """

    def __init__(self, most: int = MOST_OF_RUN, *, own: bool = False) -> None:
        self._most = self._left = most
        self._empty, self._own = MOST_EMPTY, own
        self._known: dict[tuple[int | str, ...], str] = {}

    def digest(self, path: Path, seal: "hmac.HMAC | None" = None) -> str:
        """In hexadecimal; of `seal`, where one is given, which is updated with the content.

        What lies under several names, as links do, is read once.

        Raises:
            SeepageError: Before anything is read, for what is no file, is too large by its ending or together with
                those before it, or takes hardly any room on the disk.
        """
        digest = hashlib.sha256() if seal is None else seal
        state = path.stat()
        here = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, digest.hexdigest())
        if state.st_ino and here in self._known:
            return self._known[here]
        if not self._own:
            self._check(path)
        with path.open("rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
        return self._known.setdefault(here, digest.hexdigest())

    def _check(self, path: Path) -> None:
        """Count a file against the limits of size, and against files that take hardly any room on the disk (sparse).

        Raises:
            SeepageError: Where a limit is passed.
        """
        check_regular(path, LARGEST.get(path.suffix, LARGEST_TEXT))
        state = path.stat()
        self._left -= state.st_size
        if self._left < 0:
            raise SeepageError(f"the files of {path.parent} are more than {self._most >> 20} MiB; copy them again")
        if ROOM * _room(state) < state.st_size:
            self._empty -= state.st_size
        if self._empty < 0:
            raise SeepageError(
                f"{path} has {state.st_size >> 20} MiB and takes hardly any room on the disk, as nothing that is "
                "written does; copy it again"
            )


def _room(state: os.stat_result) -> int:
    """Bytes that a file takes on the disk; where the system does not say, as many as it has."""
    return 512 * state.st_blocks if hasattr(state, "st_blocks") else state.st_size
