"""Data sets from a zip archive of images with a table of labels. Nothing is unpacked to disk.

No library reads untrusted archives within bounds; what is refused here, fuzzing has found.
"""

import csv
import io
import itertools
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
from torch import Tensor

from seepage.base.registry import datasets
from seepage.base.zip_safety import DAMAGED, check_member, refuse_expansion
from seepage.errors import Problems, SeepageError
from seepage.federation.data.dataset import Options, check_labels, divide, number_words
from seepage.federation.data.files import NAMED, FileDataset, shape_of

MAX_MEMBER = 64 * 2**20
"""Largest size in bytes (64 MiB) of one unpacked file; a compressed photograph has a few MiB."""
MAX_TOTAL = 64 * 2**30
"""Largest size in bytes (64 GiB) of all unpacked files together."""
MAX_RATIO, MAX_UNPACKED = 100, 2**30
"""An archive may unpack to so many times its size, or to so many bytes; images are packed already."""
MAX_TABLE, MAX_LINES = 32 * 2**20, 1000
"""Bytes of a table, and lines that it may have however few the files are: then each that is missing is named."""
MAX_MEMBERS = 1_000_000
"""Largest number of files in an archive; their list is read at once."""
TABLE = "labels.csv"
FILE_COLUMNS = ("file", "name", "image", "filename")
CLASS_COLUMNS = ("class", "class_name", "name")


@datasets.register("zip", about="an archive of images with labels.csv", suffix=(".zip",), origin="named by its path")
def load_zip(options: Options, *, path: Path) -> FileDataset:
    """Load an archive that holds images and `labels.csv`.

    The table has a column with file names (`file`, `name`, `image`, `filename`, or the first one) and a column
    `label`. Names count from the table's own folder or from `images/` beside it. Labels are integers, or words,
    which are then numbered in sorted order. A further column with one name per class names the classes.

    Args:
        options: Size, channels and split.
        path: Where it lies.

    Raises:
        SeepageError: For archives that are damaged, encrypted or absurdly large, tables that lack columns or name
            files that are not there, unreadable images, and mixed sizes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive, path)
            table = _table(members, path)
            if archive.getinfo(table).file_size > MAX_TABLE:
                raise SeepageError(f"{path}: {TABLE} has more than {MAX_TABLE >> 20} MiB; keep fewer rows or columns")
            rows = _rows(archive.read(table), path, len(members))
    except DAMAGED as error:
        raise SeepageError(f"cannot read {path} ({error}); it is damaged or no zip archive: copy it again") from error
    files = _files(rows, PurePosixPath(table).parent, members, path)
    labels, classes = _labels(rows, path)
    shape = shape_of(path, files, options, options.progress)
    train, private = divide(len(files), options, path.stem)
    source = f"{len(files)} images of the archive {path.name}"
    return FileDataset(path.stem, source, path, tuple(files), labels, classes, shape, train, private, options.size)


class _Rows(NamedTuple):
    """The table, column by column, and which column names the files."""

    columns: Mapping[str, Sequence[str]]
    file: str


def _members(archive: zipfile.ZipFile, path: Path) -> frozenset[str]:
    """Names of the files in the archive, each checked against what it claims to unpack to."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    for info in infos:
        check_member(info, path)
        if info.file_size > MAX_MEMBER:
            raise SeepageError(
                f"{path}: {info.filename!r} unpacks to {info.file_size / 2**20:.0f} MiB, and seepage reads at most "
                f"{MAX_MEMBER / 2**20:.0f}; take it out"
            )
    total = refuse_expansion(infos, path, ratio=MAX_RATIO, allowance=MAX_UNPACKED)
    if total > MAX_TOTAL or len(infos) > MAX_MEMBERS:
        raise SeepageError(
            f"{path} unpacks to {total / 2**30:.0f} GiB in {len(infos)} files, and seepage reads at most "
            f"{MAX_TOTAL / 2**30:.0f} GiB in {MAX_MEMBERS}; keep fewer images"
        )
    return frozenset(info.filename for info in infos)


def _table(members: frozenset[str], path: Path) -> str:
    """The archive's `labels.csv`, at its top or inside its one top folder."""
    found = [name for name in members if PurePosixPath(name).name == TABLE and not name.startswith("__MACOSX/")]
    if len(found) != 1:
        raise SeepageError(
            f"{path} holds {len(found)} files named {TABLE}, and seepage needs one, with a file name and a label "
            "per image; add it, or pass a folder with one sub-folder per class"
        )
    return found[0]


def _rows(content: bytes, path: Path, files: int) -> _Rows:
    """The table, which can have no more rows than the archive has files; half of its lines may be empty."""
    most = max(MAX_LINES, 2 * files)
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        lines = list(itertools.islice(reader, most + 1))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SeepageError(f"{path}: {TABLE} is no text table ({error}); save it as UTF-8 CSV") from error
    if len(lines) > most:
        raise SeepageError(f"{path}: {TABLE} has more rows than the archive has files ({files}); correct the table")
    head = [word.strip().lower() for word in lines[0]] if lines else []
    body = [line for line in lines[1:] if line]
    short = next((number for number, line in enumerate(lines, 1) if line and len(line) != len(head)), None)
    if short is not None or len(set(head)) != len(head):
        where = f"line {short}" if short else "its head"
        raise SeepageError(f"{path}: {where} of {TABLE} does not fit the columns {head[:8]}; save it as UTF-8 CSV")
    if "label" not in head or len(head) < 2 or not body:
        raise SeepageError(
            f"{path}: {TABLE} has {len(body)} rows with the columns {head[:8]}, and seepage needs a row per image "
            "with the columns file and label; add them"
        )
    others = [word for word in head if word != "label"]
    file = next((word for word in FILE_COLUMNS if word in others), others[0])
    columns = {word: [line[place].strip() for line in body] for place, word in enumerate(head)}
    return _Rows(columns, file)


def _files(rows: _Rows, folder: PurePosixPath, members: frozenset[str], path: Path) -> list[str]:
    """Each row's name in the archive; every mistake in the table is reported at once."""
    files, missing = [], []
    for name in rows.columns[rows.file]:
        places = (str(folder / name), str(folder / "images" / name))
        found = next((place for place in places if place in members), None)
        if found is None:
            missing.append(name)
        else:
            files.append(found)
    problems = []
    if missing:
        more = ", ..." if len(missing) > NAMED else ""
        named = ", ".join(map(repr, missing[:NAMED]))
        problems.append(f"{len(missing)} files in the column {rows.file!r} are not in the archive ({named}{more})")
    if len(set(files)) < len(files):
        # The same image in the public and the private part would make private images known.
        problems.append(f"{len(files) - len(set(files))} files are listed more than once")
    if problems:
        raise Problems(f"{path}: {TABLE} does not fit the archive; correct the table:", problems)
    return files


def _labels(rows: _Rows, path: Path) -> tuple[Tensor, tuple[str, ...]]:
    """`[n]` int64 class numbers and the classes' names: labels that are all integers are kept, others are numbered."""
    words = rows.columns["label"]
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        return number_words(words)
    if max(map(abs, numbers)) >= 2**63:
        raise SeepageError(f"{path}: {TABLE} has a label beyond 64 bits; number the classes from 0")
    labels = torch.tensor(numbers, dtype=torch.int64)
    classes = list(check_labels(labels, None, f"{path}: {TABLE}"))
    for number, name in _class_names(rows, numbers).items():
        classes[number] = name
    return labels, tuple(classes)


def _class_names(rows: _Rows, numbers: Sequence[int]) -> dict[int, str]:
    """Names from the first column that has exactly one value per label and one label per value, if any."""
    ordered = sorted(rows.columns, key=lambda word: word not in CLASS_COLUMNS)
    for column in ordered:
        if column in (rows.file, "label"):
            continue
        pairs = set(zip(numbers, rows.columns[column], strict=True))
        if len(pairs) == len(set(numbers)) == len({name for _, name in pairs}):
            return dict(pairs)
    return {}
