"""Arrays of an `.npz` file from anyone: read only after every header was found to tell the truth."""

import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from seepage.base.storage import MOST_TENSORS, pickle_refused
from seepage.base.zip_safety import check_member
from seepage.errors import SeepageError

PICKLE_REMEDY = "save plain arrays with numpy.savez"
LARGEST_HEADER = 2**16
"""Bytes of the header of one array: a dtype and a shape are tens."""
Array = NDArray[Any]


def read_arrays(
    path: Path, *, most: int, choose: Callable[[Collection[str]], Collection[str]] = lambda found: found
) -> dict[str, Array]:
    """The arrays of a file, in its order.

    Args:
        path: The file.
        most: Bytes that they may have together.
        choose: Given the names, the names of those to read.

    Raises:
        SeepageError: For a file that is cut short, needs pickle, or holds less or more than its headers say.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):  # else the one that is checked is not the one that is read
                raise SeepageError(f"{path} holds two arrays of one name; save it again with numpy.savez")
            if len(members) > MOST_TENSORS:
                raise SeepageError(f"{path} has more than {MOST_TENSORS:,} arrays; save the model's alone")
            wanted = choose(list(members))
            _check_headers(archive, {name: members[name] for name in wanted}, path, most)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in wanted}
    except SeepageError:
        raise
    except Exception as error:  # numpy's parser of headers raises almost anything on forged ones.
        raise SeepageError(
            f"cannot read {path} ({error}); it is damaged or no .npz file: copy it again or save it with numpy.savez"
        ) from error


def _check_headers(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], path: Path, most: int) -> None:
    """Refuse pickles, encryption, headers that promise more than the file holds, and too much data in all."""
    total = 0
    for name, info in members.items():
        check_member(info, path)
        with archive.open(info) as file:
            dtype, size = _header(file)
        if dtype.hasobject:
            raise pickle_refused(f"the array {name} of {path}", PICKLE_REMEDY)
        if info.file_size != size or dtype.itemsize == 0:
            raise SeepageError(
                f"the array {name} of {path} promises {size} bytes and has {info.file_size}; copy it again"
            )
        total += info.file_size
    if total > most:
        raise SeepageError(
            f"{path} unpacks to {total / 2**30:.0f} GiB and seepage loads at most {most / 2**30:.0f}; "
            "keep fewer images, or pass a folder of image files, which is read on demand"
        )


def _header(file: IO[bytes]) -> tuple[np.dtype[Any], int]:
    """The type of an array, and the bytes of header and values.

    Raises:
        ValueError: For a header that is longer than any is, before it is read.
    """
    version = npy.read_magic(file)
    width, read = (2, npy.read_array_header_1_0) if version == (1, 0) else (4, npy.read_array_header_2_0)
    length = int.from_bytes(file.read(width), "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"a header of {length} bytes, and none has more than {LARGEST_HEADER}")
    file.seek(-width, 1)
    shape, _, dtype = read(file)
    count = 1
    for side in shape:
        count *= side
    return dtype, file.tell() + count * dtype.itemsize
