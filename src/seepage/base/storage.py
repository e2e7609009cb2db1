"""Files written whole or not at all, and files from others read with suspicion."""

import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from seepage.errors import SeepageError, short

Tensors = dict[str, Tensor]
"""Tensors by the names of parameters, as in `state_dict()`."""

SCHEMA = 1
"""Version of everything written into a run folder; a reader refuses other versions."""

LARGEST_JSON = 2**26
"""Bytes of one JSON file; more is refused before it is read, as it takes some 20 times its size in memory."""

LARGEST_LINES = 2**29
"""Bytes of a file of JSON lines, which are read one by one."""

LONGEST_LINE = 2**24
"""Bytes of one of these lines."""

LARGEST_TENSORS = 2**36
"""Bytes of one file of tensors, where no closer limit is known."""

MOST_TENSORS = 20_000
"""Tensors of one file: each takes time, however small it is."""

LARGEST_HEAD = 2**24
"""Bytes of the table at the head of a file of tensors."""

DEEPEST_JSON = 64
"""Tables and lists within one another in one JSON file; nothing that is written has more than a few."""

MOST_TABLES = 2**21
"""Tables and lists of one JSON file."""

MOST_DIGITS = 19
"""Digits of a whole number in a JSON file: more no count has, and some no float can hold."""

DEEPEST_FOLDER = 64
"""Folders within one another; nothing that is written has more than a few."""

MOST_ENTRIES = 500_000
"""Files and folders below one folder."""

DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls the kinds of numbers that are written."""

TEMPORARY = ".writing-"
"""What the name of a file begins with that is not written to its end."""

Kind = tuple[torch.dtype, tuple[int, ...]]
"""What a tensor holds, and its shape."""

PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".joblib"})
"""Names of files that are pickles, or may be."""

LARGEST_TEXT = 2**28
"""Bytes of a user's file of texts or rows; more is refused before it is read."""

FEWER_ROWS = "the most that is read; keep fewer of its rows"
FEWER_FILES = "the most that is looked through; name a folder with fewer"
NO_SUCH_FILE = "which no such file is; check the path, or make it again"
"""Ends of the message on a file that is too large."""


def write_whole(path: Path, content: bytes | str, *, mode: int = 0o666) -> None:
    """Write a file under a temporary name, then rename it, so that nobody ever sees half of it.

    Args:
        path: The file.
        content: Text is written as UTF-8.
        mode: Permissions of the file, less those that the umask takes away; 0o600: only its owner reads and writes.

    Raises:
        SeepageError: Where the folder cannot be written or the disk is full; nothing is left behind.
    """
    with _opened(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def _opened(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A temporary file beside `path`, which replaces it at the end of the block, and is removed after an error."""
    # Not by `tempfile`: its files are their owner's alone, and a later chmod knows nothing of the umask.
    temporary = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SeepageError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another folder with --out"
        ) from error
    finally:
        with suppress(OSError):  # such as of a missing folder, reported above
            temporary.unlink(missing_ok=True)


def sweep(folder: Path, *, older: float = 0.0) -> None:
    """Remove what a killed writer left under temporary names. Not while another process writes to the folder.

    Args:
        folder: The folder.
        older: Age in seconds since the last change from which a file is removed; younger ones may still be written.
    """
    for left in walk(folder):
        with suppress(OSError):  # whoever writes it may just have renamed it
            if left.name.startswith(TEMPORARY) and (not older or time.time() - left.stat().st_mtime > older):
                Path(left.path).unlink(missing_ok=True)


OWNER_ONLY = 0o600
"""Mode of a file with private pictures or data that may lie outside of a run folder."""


def make_private(folder: Path, *, tighten: bool = False) -> None:
    """Make a folder that only its owner can open, as what goes into it is private data.

    Args:
        folder: The folder; one that is there stays.
        tighten: Whether others lose their rights to one that is there, such as an empty `--out`.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if tighten and folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise SeepageError(
            f"cannot make the folder {folder}: {error.strerror or error}; choose another with --out"
        ) from error


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line. A link in place of the file is not followed: it may lead anywhere."""
    line = json.dumps(record, allow_nan=False) + "\n"
    try:
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with open(number, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise SeepageError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another folder with --out"
        ) from error


def json_text(content: Any) -> str:
    """The text of a JSON file, without NaN (JSON has none)."""
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def write_json(path: Path, content: Any) -> None:
    """Write `json_text`."""
    write_whole(path, json_text(content))


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines, whole."""
    write_whole(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def read_json(path: Path, largest: int = LARGEST_JSON) -> Any:
    """Read a JSON file; `SeepageError` where it is missing, or is no JSON as `parse_json` has it."""
    check_regular(path, largest)
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SeepageError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise SeepageError(f"{path} is not valid JSON ({str(error)[:120]}); record it again") from error


def parse_json(text: str) -> Any:
    r"""The value of an untrusted JSON text.

    Raises:
        ValueError: Where it is no JSON; for numbers that JSON has no word for, whole ones of more than `MOST_DIGITS`
            digits, half characters (which no file can hold as UTF-8), and more than `DEEPEST_JSON` levels.
        RecursionError: For thousands of levels.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('"\\ud800"')
    Traceback (most recent call last):
    ValueError: a text has half a character
    """
    if text.count("[") + text.count("{") > MOST_TABLES:  # each takes a hundred bytes, and time
        raise ValueError(f"it has more than {MOST_TABLES:,} tables and lists")
    found = json.loads(text, parse_constant=_finite, parse_float=_finite)
    digits = _LONG.search(text) is not None  # of a whole number or of a fraction; checking each number takes seconds
    level: list[Any] = [[found]]
    for _ in range(DEEPEST_JSON + 1):
        parts = [values.values() if isinstance(values, dict) else values for values in level]
        if digits and any(type(value) is int and abs(value) >= 10**MOST_DIGITS for part in parts for value in part):
            raise ValueError(f"a whole number has more than {MOST_DIGITS} digits")
        level = [value for part in parts for value in part if type(value) in (dict, list)]
        if not level:
            break
    if level:
        raise ValueError(f"it has more than {DEEPEST_JSON} levels")
    if _HALF.search(text) and _HALF_ALONE.search(json.dumps(found, ensure_ascii=False)):
        raise ValueError("a text has half a character")
    return found


_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_HALF_ALONE = re.compile("[\ud800-\udfff]")
_LONG = re.compile(rf"\d{{{MOST_DIGITS + 1}}}", re.ASCII)
"""Half a character as JSON spells it, one without its other half, and more digits than a whole number may have."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def read_text(path: Path) -> str:
    """The whole of a text file of the user's own, in UTF-8 with or without a byte order mark.

    Raises:
        SeepageError: For what is no such text, or larger than `LARGEST_TEXT`.
    """
    check_regular(path, LARGEST_TEXT, too_large=FEWER_ROWS)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SeepageError(f"{path} is no text in UTF-8 (byte {error.start}); save it as UTF-8") from error


def check_regular(path: Path, largest: int | None = None, *, too_large: str = NO_SUCH_FILE) -> None:
    """Raise for what can block or never end when read: pipes, devices, files of absurd size."""
    if path.exists() and not path.is_file():
        raise SeepageError(f"cannot read {path}: it is no file; check the path")
    if largest is not None and path.exists() and path.stat().st_size > largest:
        raise SeepageError(f"{path} is larger than {largest >> 20} MiB, {too_large}")


def refuse_links(folder: Path) -> None:
    """Raise where a link below a folder leads out of it: an untrusted folder must not make us read or write there.

    The folder itself may be reached through one.
    """
    root = folder.resolve()
    for entry in walk(folder):
        if entry.is_symlink() and not _leads_below(Path(entry.path), root):
            raise SeepageError(
                f"{folder} holds a link that leads out of it ({short(os.path.relpath(entry.path, folder))}), which is "
                "not followed; put the file itself there, if it is yours"
            )


def walk(folder: Path, *, hidden: bool = True, most: int | None = MOST_ENTRIES) -> "Iterator[os.DirEntry[str]]":
    """Everything below a folder that may be untrusted, in the order of the names; links are not followed.

    Args:
        folder: The folder; one that is not there, or that cannot be opened, has nothing in it.
        hidden: Whether names that begin with a dot count, and what is below them.
        most: Files and folders that there may be; None: any number, as for the user's own pictures.

    Raises:
        SeepageError: Where there are more, or folders more than `DEEPEST_FOLDER` deep.
    """
    left, count = [(os.fspath(folder), 0)], 0
    while left:  # a stack of our own: `os.walk` and `Path.rglob` call themselves, once for each folder
        place, depth = left.pop()
        if depth > DEEPEST_FOLDER:
            raise SeepageError(
                f"{folder} has folders more than {DEEPEST_FOLDER} deep, which nothing is read of; move what is yours up"
            )
        found = []
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                count += 1
                if most is not None and count > most:
                    raise SeepageError(f"{folder} holds more than {most:,} files and folders, {FEWER_FILES}")
                if hidden or not entry.name.startswith("."):
                    found.append(entry)
        found.sort(key=lambda entry: entry.name)
        yield from found
        left += [(entry.path, depth + 1) for entry in reversed(found) if entry.is_dir(follow_symlinks=False)]


def _leads_below(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a link that leads round in a circle
        return False


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a missing file reads as none, a last line cut short by a kill is dropped."""
    return list(each_line(path))


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """Read JSON lines one by one, as `read_lines` does, with one of them in memory at a time.

    Raises:
        SeepageError: Where a line but the last is no JSON, is no table, or has more than `LONGEST_LINE` bytes.
    """
    if not path.exists():
        return
    check_regular(path, LARGEST_LINES)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            try:
                if len(line) > LONGEST_LINE:
                    raise ValueError(f"it is longer than {LONGEST_LINE >> 20} MiB")
                found = parse_json(line.decode("utf-8", "replace"))
                if not isinstance(found, dict):
                    raise ValueError(f"it holds a {type(found).__name__} and no table")
            except (ValueError, RecursionError) as error:
                if len(line) <= LONGEST_LINE and not line.endswith(b"\n"):  # cut short by a kill
                    return
                reason = str(error)[:120]
                raise SeepageError(
                    f"{path} line {number} is not valid JSON ({reason}); delete it, or make it again"
                ) from error
            yield found


def check_schema(record: Any, path: Path) -> None:
    """Raise unless a record says that it was written in this schema version."""
    found = record.get("schema") if isinstance(record, Mapping) else None
    if found != SCHEMA:
        raise SeepageError(
            f"{path} has schema version {repr(found)[:40]} and this seepage reads version {SCHEMA}; "
            "record it again, or use the seepage version that wrote it"
        )


@dataclass(frozen=True)
class LazyTensors(Mapping[str, Tensor]):
    """Named tensors, each made anew when it is asked for and kept by nobody.

    Args:
        keys_by_name: What `make` is called with, by name.
        make: Makes one tensor.

    Example:
        >>> found = LazyTensors({"w": "0"}, lambda key: torch.full((2,), float(key)))
        >>> found["w"], list(found)
        (tensor([0., 0.]), ['w'])
    """

    keys_by_name: Mapping[str, str]
    make: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.make(self.keys_by_name[name])

    def __contains__(self, name: object) -> bool:
        return name in self.keys_by_name  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_by_name)

    def __len__(self) -> int:
        return len(self.keys_by_name)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, whole. Tensors that share memory are written apart.

    They go into the file one by one, so a mapping that makes each when it is asked for never has two in memory. It is
    asked twice, for sizes and for values. That is why `safetensors.torch.save_file` is not used: it wants all tensors
    at once, which a recorder beside a training has no memory for.

    Args:
        path: The file.
        tensors: By name.

    Raises:
        SeepageError: Where the file cannot be written, and for a dtype that the format has no name for.
    """
    shapes = {name: _kind_of(tensors[name]) for name in tensors}
    # Larger numbers first, as the safetensors library writes them: then each starts at a multiple of its size.
    order = sorted(shapes, key=lambda name: (-shapes[name][0].itemsize, name))
    with _opened(path) as file:
        file.write(_head({name: shapes[name] for name in order}))
        for name in order:
            file.write(_bytes_of(tensors[name]))


def _kind_of(tensor: Tensor) -> Kind:
    return tensor.dtype, tuple(tensor.shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.stride() != (1,):  # a single number that was expanded keeps a stride of 0, which no view as bytes takes
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data


def _head(shapes: Mapping[str, Kind]) -> bytes:
    """The head of a safetensors file: the length of the JSON after it, 8 bytes little-endian, and that JSON."""
    table, start = dict[str, Any](), 0
    for name, (dtype, shape) in shapes.items():
        if dtype not in DTYPES:
            raise SeepageError(f"tensor {name!r:.60} has dtype {dtype}, which safetensors has no name for; convert it")
        end = start + math.prod(shape) * dtype.itemsize
        table[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def refuse_pickle(path: Path, remedy: str = "save it with safetensors.torch.save_file and pass that file") -> None:
    """Raise for a file that is a pickle by its name, and no safetensors file by its first bytes."""
    if path.suffix.lower() not in PICKLE_SUFFIXES:
        return
    head = b""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(9)
    if head[8:] != b"{":  # behind the length of its table
        raise pickle_refused(str(path), remedy)


def pickle_refused(what: str, remedy: str) -> SeepageError:
    """The error for something that turned out to be a pickle."""
    return SeepageError(f"{what} is a pickle file, and loading one can run any code it contains; {remedy}")


def read_tensors(path: Path, names: Collection[str] | None = None, *, most: int = LARGEST_TENSORS) -> Tensors:
    """Read a safetensors file, or only the named tensors of it.

    Args:
        path: The file.
        names: These tensors alone; names that are not there are passed over.
        most: Bytes that the file may have. Its tensors take as many again in memory.

    Raises:
        SeepageError: For a missing, truncated or too large file, and for pickles, which can run code when loaded.
    """
    check_regular(path, most)
    there = set(tensor_names(path))
    try:
        # Copies: views into the file are not aligned in memory, and kernels then round differently.
        if names is None:
            found = {name: tensor.clone() for name, tensor in load_file(path).items()}
        else:
            with safe_open(path, framework="pt") as file:
                found = {name: file.get_tensor(name).clone() for name in names if name in there}
    except (SafetensorError, OSError, ValueError) as error:
        raise _not_whole(path, error) from error
    check_kinds(found, path)
    return found


def tensor_names(path: Path) -> list[str]:
    """The names in a safetensors file, by its head alone, which says how long the file is.

    Raises:
        SeepageError: For a file that is missing, not whole, or of absurd size or number of tensors.
    """
    refuse_pickle(path)
    check_regular(path, LARGEST_TENSORS)
    try:
        _head_of(path)
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
        if len(names) > MOST_TENSORS:
            raise ValueError(f"it has more than {MOST_TENSORS:,} tensors")
    except (SafetensorError, OSError, ValueError) as error:
        raise _not_whole(path, error) from error
    return names


def check_kinds(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise for kinds of numbers that PyTorch stores and hardly computes with, such as those of 8 bits with a point."""
    odd = next((name for name, tensor in tensors.items() if tensor.dtype not in DTYPES), None)
    if odd is not None:
        raise SeepageError(
            f"{path} holds {short(odd)} as {tensors[odd].dtype}, which nothing is computed with; convert it to float32"
        )


def _not_whole(path: Path, error: Exception) -> SeepageError:
    if isinstance(error, FileNotFoundError):
        return SeepageError(f"{path} does not exist; check the path")
    return SeepageError(f"{path} is not a whole safetensors file ({str(error)[:120]}); copy or record it again")


def count_tensors(path: Path) -> int:
    """Number of tensors that the head of a safetensors file names, without a check of the file's size.

    Raises:
        SeepageError: For a file whose head cannot be read, and for what is none.
    """
    check_regular(path)
    try:
        return len(set(json.loads(_head_of(path))) - {"__metadata__"})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _not_whole(path, error) from error


def _head_of(path: Path) -> bytes:
    """The table of a safetensors file; raises `ValueError` where it is of absurd size."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEAD:
            raise ValueError(f"its head of {size} bytes is larger than {LARGEST_HEAD >> 20} MiB")
        return file.read(size)


def check_space(folder: Path, needed: int) -> None:
    """Raise before starting when the disk has less than `needed` bytes free."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise SeepageError(
            f"the disk of {folder} has {free / 2**20:.0f} MiB free and this run needs about "
            f"{needed / 2**20:.0f} MiB; free some space or choose another folder with --out"
        )
