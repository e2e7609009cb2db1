"""Files written whole or not at all, and files from others read with suspicion."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from seepage.errors import SeepageError
from seepage.types import Tensors

SCHEMA = 1
"""Version of everything written into a run folder; a reader refuses other versions."""

LARGEST_JSON = 2**28
"""Bytes of one JSON file; more is refused before it is read."""

PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".joblib"}


def write_whole(path: Path, content: bytes | str, *, mode: int = 0o644) -> None:
    """Write a file under a temporary name, then rename it, so that nobody ever sees half of it.

    Args:
        path: The file.
        content: Text is written as UTF-8.
        mode: Who may read it; 0o600: only its owner.

    Raises:
        SeepageError: Where the folder cannot be written or the disk is full; nothing is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".writing-", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        raise SeepageError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another folder with --out"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what a killed writer left under temporary names. Not while another process writes to the folder."""
    for left in folder.rglob(".writing-*"):
        left.unlink(missing_ok=True)


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can open, as what goes into it is private data; one that is there stays."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SeepageError(
            f"cannot make the folder {folder}: {error.strerror or error}; choose another with --out"
        ) from error


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
    except OSError as error:
        raise SeepageError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another folder with --out"
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write JSON without NaN (JSON has none)."""
    write_whole(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines, whole."""
    write_whole(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def read_json(path: Path) -> Any:
    """Read a JSON file; `SeepageError` where it is missing, no JSON, or has numbers that JSON has no word for."""
    check_regular(path, LARGEST_JSON)
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
    except OSError as error:
        raise SeepageError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise SeepageError(f"{path} is not valid JSON ({error}); record it again") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def check_regular(path: Path, largest: int | None = None) -> None:
    """Raise for what can block or never end when read: pipes, devices, files of absurd size."""
    if path.exists() and not path.is_file():
        raise SeepageError(f"cannot read {path}: it is no file; check the path")
    if largest is not None and path.exists() and path.stat().st_size > largest:
        raise SeepageError(f"{path} is larger than {largest >> 20} MiB, which no such file is; record it again")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a missing file reads as none, a last line cut short by a kill is dropped."""
    if not path.exists():
        return []
    records = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise SeepageError(f"{path} line {number} is not valid JSON ({error}); delete the run folder") from error
    return records


def check_schema(record: Any, path: Path) -> None:
    """Raise unless a record says that it was written in this schema version."""
    found = record.get("schema") if isinstance(record, Mapping) else None
    if found != SCHEMA:
        raise SeepageError(
            f"{path} has schema version {repr(found)[:40]} and this seepage reads version {SCHEMA}; "
            "record it again, or use the seepage version that wrote it"
        )


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors, whole. Tensors that share memory are written apart."""
    apart = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, save(apart, dict(metadata) if metadata else None))


def refuse_pickle(path: Path) -> None:
    """Raise for a file that is a pickle by its name."""
    if path.suffix.lower() in PICKLES:
        raise SeepageError(
            f"{path} is a pickle file, and loading one can run any code it contains; "
            "save it with safetensors.torch.save_file and pass that file"
        )


def read_tensors(path: Path, names: Collection[str] | None = None) -> Tensors:
    """Read a safetensors file, or only the named tensors of it.

    Raises:
        SeepageError: For a missing or truncated file, and for pickles, which can run code when loaded.
    """
    refuse_pickle(path)
    check_regular(path)
    try:
        # Copies: views into the file are not aligned in memory, and kernels then round differently.
        if names is None:
            return {name: tensor.clone() for name, tensor in load_file(path).items()}
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in names if name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise SeepageError(f"{path} does not exist; check the path") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise SeepageError(f"{path} is not a whole safetensors file ({error}); copy or record it again") from error


def check_space(folder: Path, needed: int) -> None:
    """Raise before starting when the disk has less than `needed` bytes free."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise SeepageError(
            f"the disk of {folder} has {free / 2**20:.0f} MiB free and this run needs about "
            f"{needed / 2**20:.0f} MiB; free some space or choose another folder with --out"
        )
