"""`manifest.json`: a digest of every file of a finished run, so that a later change to any of them is seen.

Recipe, environment, result, models and updates have a plain SHA-256, which anybody can compare with what they hold.
Everything else may be made of private examples (`private/`, `attacks/`, the report, ...) and is sealed: its digest is
HMAC-SHA-256 with a key that stays in the run folder. A plain digest of a label or of a short text would tell whoever is
shown the manifest whether a guess at it is right.

A manifest alone shows accidents and careless edits: who can edit the folder can write a manifest that fits. Against
others it must be signed, or its digest kept elsewhere.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from seepage.core.lock import LOCK
from seepage.core.schema import JsonRecord, parse
from seepage.core.storage import (
    OWNER_ONLY,
    SCHEMA,
    check_regular,
    check_schema,
    read_json,
    refuse_links,
    write_json,
    write_whole,
)
from seepage.errors import SeepageError, short

FILE = "manifest.json"
KEY_FILE = "manifest.key"
KEY_BYTES = 32

UNSEALED_FOLDERS = frozenset({"observed"})
"""Folders of a run whose files have plain digests: what the server saw."""

UNSEALED_FILES = frozenset({"recipe.toml", "attack.json", "captured.json", "env.json", "result.json"})
"""Files beside the folders that have plain digests."""

RECORDED_FILES = {"model.safetensors": "weights that were sent out", "rounds/000000.safetensors": "update of round 0"}
"""Files of an `observed/` folder that a paper about it names, and what they are."""


class Digest(JsonRecord):
    """The digest of one file.

    Attributes:
        sha256: In hexadecimal: of the content, or its HMAC where the file is sealed.
        size: Its length in bytes.
        sealed: Whether it is an HMAC.
    """

    sha256: str
    size: int
    sealed: bool = False


class Manifest(JsonRecord):
    """The content of `manifest.json`.

    Attributes:
        schema_version: 1.
        files: Path within the folder, with `/`, to its digest.
    """

    schema_version: Literal[1] = 1
    files: dict[str, Digest]


class JudgedFile(JsonRecord):
    """A file that a run attacked, so that a paper can be held against the files themselves.

    Attributes:
        cell: Name of the cell that it belongs to.
        what: What it is, such as `weights that were sent out`.
        name: Its path in the recording or in the run folder; of a captured file the command's word for it, as what
            somebody calls a file may name a person.
        sha256: Of its content, in hexadecimal: what `sha256sum` prints.
    """

    cell: str
    what: str
    name: str
    sha256: str


class Difference(JsonRecord):
    """A file that is not as the manifest says.

    Attributes:
        path: Its path within the folder.
        what: `changed`, `missing`, or `added` since.
    """

    path: str
    what: Literal["changed", "missing", "added"]

    def __str__(self) -> str:
        return f"{self.what}: {self.path}"


def write_manifest(folder: Path, coming: Mapping[str, str] | None = None) -> None:
    """Write the digests of all files of a folder.

    Args:
        folder: The run folder.
        coming: Content of files that are about to be written, by path within the folder: so that the file by which a
            run counts as finished can be written last.
    """
    key = _key(folder, make=True)
    about = {path: text.encode() for path, text in (coming or {}).items()}
    files = {path: _digest_of_file(folder, path, key) for path in _paths(folder) if path not in about}
    files |= {path: _digest_of_bytes(path, content, key) for path, content in about.items()}
    _write(folder, files)


def renew(folder: Path, paths: Iterable[str]) -> None:
    """Take the digests of some files anew, after seepage itself wrote or removed them. A folder without a manifest
    stays without one.

    Raises:
        SeepageError: Where the manifest is damaged.
    """
    if not (folder / FILE).exists():
        return
    files, key = dict(read_manifest(folder).files), _key(folder, make=True)
    for path in paths:
        files.pop(path, None)
        if (folder / path).is_file():
            files[path] = _digest_of_file(folder, path, key)
    _write(folder, files)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        SeepageError: Where there is none, or it is damaged.
    """
    path = folder / FILE
    if not path.exists():
        raise SeepageError(f"{folder} has no {FILE}, so nothing is known of what its files were; audit again")
    found = read_json(path)
    check_schema(found, path)
    return parse(Manifest, {"schema_version": SCHEMA, "files": found.get("files")}, str(path))


def differences(folder: Path) -> list[Difference]:
    """Files that were changed, removed or added since the manifest was written, by path.

    Raises:
        SeepageError: Where there is no manifest, or the key of its sealed digests is gone.
    """
    refuse_links(folder)
    known, key = read_manifest(folder).files, _key(folder)
    there = set(_paths(folder))
    if key is None and any(one.sealed for one in known.values()):
        raise SeepageError(f"{folder} has no {KEY_FILE}, without which its sealed files cannot be compared; restore it")
    found = [Difference(path=path, what="missing") for path in known.keys() - there]
    found += [Difference(path=path, what="added") for path in there - known.keys()]
    found += [
        Difference(path=path, what="changed") for path in known.keys() & there if not _fits(folder, path, known, key)
    ]
    return sorted(found, key=lambda one: one.path)


def refuse_changed(folder: Path, path: str | None = None) -> None:
    """Raise where a file differs from the manifest. A folder without one passes: older versions wrote none.

    Args:
        folder: The run folder.
        path: The file, by its path within the folder; None: all of them. Files that were added do not matter.

    Raises:
        SeepageError: With the file's name.
    """
    if not (folder / FILE).exists():
        return
    if path is None:
        wrong = next((one.path for one in differences(folder) if one.what != "added"), None)
    else:
        known = read_manifest(folder).files
        wrong = path if path in known and not _fits(folder, path, known, _key(folder)) else None
    if wrong is not None:
        raise SeepageError(
            f"{folder / wrong} is not what the run wrote: its digest differs from that in {FILE}; "
            "see seepage verify, and audit again in a fresh folder"
        )


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- digests -----------------------------------------------------------------------------------------------------


def _paths(folder: Path) -> Iterator[str]:
    """All files that a manifest lists: not the lock, nor what is just being written."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside.as_posix() not in (FILE, KEY_FILE, LOCK) and not path.name.startswith(".writing-"):
            yield inside.as_posix()


def _is_sealed(path: str) -> bool:
    first, _, rest = path.partition("/")
    return first not in (UNSEALED_FOLDERS if rest else UNSEALED_FILES)


def _digest_of_file(folder: Path, path: str, key: bytes | None) -> Digest:
    file = folder / path
    check_regular(file)
    seal = hmac.new(key, digestmod="sha256") if key is not None and _is_sealed(path) else hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            seal.update(block)
    return Digest(sha256=seal.hexdigest(), size=file.stat().st_size, sealed=_is_sealed(path))


def _digest_of_bytes(path: str, content: bytes, key: bytes | None) -> Digest:
    sealed = _is_sealed(path) and key is not None
    found = hmac.digest(key or b"", content, "sha256") if sealed else hashlib.sha256(content).digest()
    return Digest(sha256=found.hex(), size=len(content), sealed=sealed)


def _fits(folder: Path, path: str, known: Mapping[str, Digest], key: bytes | None) -> bool:
    # The size first: no reader should have to hash terabytes to learn that a file is another.
    if (folder / path).stat().st_size != known[path].size:
        return False
    return hmac.compare_digest(_digest_of_file(folder, path, key).sha256, known[path].sha256)


def _key(folder: Path, *, make: bool = False) -> bytes | None:
    path = folder / KEY_FILE
    if path.exists():
        check_regular(path, 2**10)
        try:
            return bytes.fromhex(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError) as error:
            raise SeepageError(f"{path} is no key ({short(str(error))}); restore it") from error
    if not make:
        return None
    key = secrets.token_bytes(KEY_BYTES)
    write_whole(path, key.hex() + "\n", mode=OWNER_ONLY)
    return key


def _write(folder: Path, files: Mapping[str, Digest]) -> None:
    table = {path: json.loads(files[path].model_dump_json()) for path in sorted(files)}
    write_json(folder / FILE, {"schema": SCHEMA, "files": table})
