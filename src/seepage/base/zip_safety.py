"""Zip archives from anyone: what may be read from them, and what goes wrong with them.

Data sets, arrays and weights come as zip archives, and one guard stands before all of them.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterable
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


def refuse_expansion(members: Iterable[zipfile.ZipInfo], path: Path, *, ratio: float, allowance: int = 0) -> int:
    """Refuse an archive that unpacks to more than its size accounts for; returns the bytes that it unpacks to.

    Args:
        members: What is to be read from it, by the sizes that it states.
        path: The archive.
        ratio: Times its own size that it may unpack to; 1 for one that is packed without compression.
        allowance: Bytes that it may unpack to whatever its size.
    """
    total, packed = sum(member.file_size for member in members), path.stat().st_size
    if total > max(allowance, ratio * packed):
        raise SeepageError(
            f"{path} unpacks to {total / packed:,.1f} times its size, which no such file does; pack or save it anew"
        )
    return total
