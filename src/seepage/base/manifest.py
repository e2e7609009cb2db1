"""`manifest.json`: a digest of every file of a finished run, so that a later change to any of them is seen.

Recipe, environment, result, models and updates have a plain SHA-256, which anybody can compare with what they hold.
Everything else may be made of private examples (`private/`, `attacks/`, the report, ...) and is sealed: its digest is
HMAC-SHA-256 with a key that stays in the run folder. A plain digest of a label or of a short text would tell whoever is
shown the manifest whether a guess at it is right.

A manifest alone shows accidents and careless edits: who can edit the folder can write a manifest that fits. Against
others it must be signed, its digest kept elsewhere, or the folder be one's own (`vouching`).
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from seepage.base.hashing import Hasher
from seepage.base.lock import LOCK
from seepage.base.schema import JsonRecord, parse
from seepage.base.storage import (
    OWNER_ONLY,
    SCHEMA,
    TEMPORARY,
    check_regular,
    check_schema,
    read_json,
    refuse_links,
    walk,
    write_json,
    write_whole,
)
from seepage.base.vouching import KEY_BYTES, OWNER, staying_own
from seepage.errors import SeepageError, short

FILE = "manifest.json"
KEY_FILE = "manifest.key"

LARGEST = 2**24
"""Bytes of a manifest: some 80,000 files."""

UNLISTED = (FILE, KEY_FILE, LOCK, OWNER)
"""Files of a run that its manifest does not list."""

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
        case: Name of the case that it belongs to.
        what: What it is, such as `weights that were sent out`.
        name: Its path in the recording or in the run folder; of a captured file the command's word for it, as what
            somebody calls a file may name a person.
        sha256: Of its content, in hexadecimal: what `sha256sum` prints.
    """

    case: str
    what: str
    name: str
    sha256: str


class FileDifference(JsonRecord):
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
    hasher = Hasher(own=True)
    files = {path: _digest_of_file(folder, path, key, hasher) for path in _paths(folder) if path not in about}
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
    files, key, hasher = dict(read_manifest(folder).files), _key(folder, make=True), Hasher(own=True)
    for path in paths:
        files.pop(path, None)
        if (folder / path).is_file():
            files[path] = _digest_of_file(folder, path, key, hasher)
    with staying_own(folder):
        _write(folder, files)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        SeepageError: Where there is none, or it is damaged.
    """
    path = folder / FILE
    if not path.exists():
        raise SeepageError(f"{folder} has no {FILE}, so nothing is known of what its files were; audit again")
    found = read_json(path, LARGEST)
    check_schema(found, path)
    return parse(Manifest, {"schema_version": SCHEMA, "files": found.get("files")}, str(path))


def differences(folder: Path) -> list[FileDifference]:
    """Files that were changed, removed or added since the manifest was written, by path.

    Raises:
        SeepageError: Where there is no manifest, or the key of its sealed digests is gone.
    """
    refuse_links(folder)
    known, key, hasher = read_manifest(folder).files, _key(folder), Hasher()
    there, strange = set(_paths(folder)), unlisted(folder, {*known, *UNLISTED})
    if key is None and any(one.sealed for one in known.values()):
        raise SeepageError(f"{folder} has no {KEY_FILE}, without which its sealed files cannot be compared; restore it")
    found = [FileDifference(path=path, what="missing") for path in known.keys() - there]
    found += [FileDifference(path=path, what="added") for path in strange]
    found += [
        FileDifference(path=path, what="changed")
        for path in sorted(known.keys() & there)
        if not _fits(folder, path, known, key, hasher)
    ]
    return sorted(found, key=lambda one: one.path)


def refuse_changed(folder: Path, path: str | None = None) -> None:
    """Raise where a file differs from the manifest, or where there is none: then nothing is known of what it was.

    Args:
        folder: The run folder.
        path: The file, by its path within the folder; None: all of them. Files that were added do not matter.

    Raises:
        SeepageError: With the file's name.
    """
    if path is None:
        wrong = next((one.path for one in differences(folder) if one.what != "added"), None)
    else:
        known = read_manifest(folder).files
        wrong = path if path not in known or not _fits(folder, path, known, _key(folder), Hasher()) else None
    if wrong is not None:
        raise SeepageError(
            f"{folder / wrong} is not what the run wrote: its digest differs from that in {FILE}; "
            "see seepage evidence verify, and audit again in a fresh folder"
        )


def unlisted(folder: Path, known: Container[str]) -> list[str]:
    """Whatever lies in a folder beside these files and the folders that lead to them, whether it is a file or not."""
    found, needed = list[str](), set[str]()
    for entry in walk(folder):
        path = Path(os.path.relpath(entry.path, folder)).as_posix()
        if path in known and entry.is_file():
            needed.update(parent.as_posix() for parent in Path(path).parents)
        else:
            found.append(path)
    return [path for path in found if path not in needed]


def digest_of(path: Path) -> str:
    """SHA-256 of one file, in hexadecimal."""
    return Hasher().digest(path)


# --- digests -----------------------------------------------------------------------------------------------------


def _paths(folder: Path) -> Iterator[str]:
    """All files that a manifest lists: not the lock, nor what is just being written."""
    for entry in walk(folder):
        inside = Path(os.path.relpath(entry.path, folder)).as_posix()
        if entry.is_file() and inside not in UNLISTED and not entry.name.startswith(TEMPORARY):
            yield inside


def _is_sealed(path: str) -> bool:
    first, _, rest = path.partition("/")
    return first not in (UNSEALED_FOLDERS if rest else UNSEALED_FILES)


def _digest_of_file(folder: Path, path: str, key: bytes | None, hasher: Hasher) -> Digest:
    file = folder / path
    seal = hmac.new(key, digestmod="sha256") if key is not None and _is_sealed(path) else None
    return Digest(sha256=hasher.digest(file, seal), size=file.stat().st_size, sealed=_is_sealed(path))


def _digest_of_bytes(path: str, content: bytes, key: bytes | None) -> Digest:
    sealed = _is_sealed(path) and key is not None
    found = hmac.digest(key or b"", content, "sha256") if sealed else hashlib.sha256(content).digest()
    return Digest(sha256=found.hex(), size=len(content), sealed=sealed)


def _fits(folder: Path, path: str, known: Mapping[str, Digest], key: bytes | None, hasher: Hasher) -> bool:
    # The size first: no reader should have to hash a file to learn that it is another.
    if not (folder / path).is_file() or (folder / path).stat().st_size != known[path].size:
        return False
    return hmac.compare_digest(_digest_of_file(folder, path, key, hasher).sha256.encode(), known[path].sha256.encode())


def _key(folder: Path, *, make: bool = False) -> bytes | None:
    """The run's own key for digests of private files; a new one where there is none and `make`, else None."""
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
