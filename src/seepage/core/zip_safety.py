"""Zip archives from anyone: what may be read from them, and what goes wrong with them."""

import struct
import zipfile
import zlib
from pathlib import Path

from seepage.errors import SeepageError

DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, OSError, ValueError, EOFError, RuntimeError, LookupError)
"""What the standard library and numpy raise on archives that are cut short, forged, or changed since."""


def check_member(info: zipfile.ZipInfo, path: Path) -> None:
    """Refuse what cannot be read, or cannot be read within bounds, from a zip archive.

    Only deflate is unpacked piece by piece in the standard library; other methods can grow without limit.
    """
    if info.flag_bits & 1:
        raise SeepageError(f"{path} is encrypted ({info.filename!r}); unpack it and pack it without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise SeepageError(
            f"{path} uses a compression other than deflate ({info.filename!r}); pack it anew as an ordinary zip"
        )
