"""Whether a run folder is one's own: made by seepage for this user on this machine, and not brought by a checkout.

A key lies in the user's state folder, made on first use and readable by nobody else. `owner.mac` in a run folder holds
an HMAC-SHA-256 with it: of the file that says what the run is of, from before anything else is written, and of the
manifest once the run is finished. Whoever has no access to the key can make neither, however well the rest fits.

A gate judges a folder that it did not just make only if it is one's own. What is one's own and unfinished is trusted
with what lies in it: who can write into it can change what is gone on from.
"""

import hmac
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seepage.base.lock import LOCK
from seepage.base.storage import OWNER_ONLY, TEMPORARY, check_regular, write_whole
from seepage.errors import SeepageError

OWNER = "owner.mac"
"""File in a run folder that says whose it is; no manifest lists it, as it vouches for the manifest."""

KEY = "run.key"
KEY_BYTES = 32

MANIFEST, RESULT = "manifest.json", "result.json"
NAMED_BY = ("attack.json", "captured.json", "recipe.toml")
"""Files that say what a run is of; a run of captured files has two."""

LARGEST = 2**26
"""Bytes of one of these."""


def state_folder() -> Path:
    """Where this user's programs keep what is neither data nor settings: `$XDG_STATE_HOME`, or the system's own.

    Raises:
        SeepageError: Where the user has no home.
    """
    named = os.environ.get("XDG_STATE_HOME", "")
    try:
        if os.path.isabs(named):
            return Path(named) / "seepage"
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "seepage"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / "seepage"
        return Path.home() / ".local" / "state" / "seepage"
    except RuntimeError as error:
        raise SeepageError(f"there is no home folder ({error}); set XDG_STATE_HOME to a folder of your own") from error


def begin(folder: Path, text: str) -> None:
    """Say that a folder is one's own before anything is written to it, unless somebody else's files are there.

    Without a place for the key nothing is said, and the folder counts as somebody else's later.

    Args:
        folder: The run folder; empty, or one's own.
        text: What the run is of: the content of the file that says so.
    """
    if _is_empty(folder) or is_own(folder):
        with suppress(SeepageError):
            _write(folder, _begun(_key(make=True), text.encode()))


@contextmanager
def staying_own(folder: Path, *, finished: bool = True) -> Iterator[None]:
    """While seepage itself writes another manifest or result: what was one's own before stays so, and nothing else.

    Args:
        folder: The run folder.
        finished: Whether the run is finished at the end.
    """
    own = is_own(folder)
    if own:
        named = next(path for path in map(folder.joinpath, NAMED_BY) if path.is_file())
        _write(folder, _begun(_key(), named.read_bytes()))
    yield
    if own and finished:
        with suppress(OSError):
            _write(folder, _finished(_key(), (folder / MANIFEST).read_bytes()))


def is_own(folder: Path) -> bool:
    """Whether this user's seepage made what a run folder holds."""
    return _doubt(folder) is None


def refuse_foreign(folder: Path) -> None:
    """Raise where a folder, or a file in place of one, holds anything that this user's seepage did not make.

    Raises:
        SeepageError: With what to do.
    """
    if _is_empty(folder):
        return
    doubt = _doubt(folder) if folder.is_dir() else "a file alone says nothing of who made it"
    if doubt is not None:
        raise SeepageError(
            f"{folder} holds a run that nothing shows to be yours ({doubt}), and a gate would believe "
            "whoever made it; name a fresh folder, or, if you know where it comes from, add --reuse"
        )


def _doubt(folder: Path) -> str | None:
    """Why a folder is not one's own; None where it is."""
    place = folder / OWNER
    if not place.is_file():
        return f"it has no {OWNER}"
    try:
        check_regular(place, 2**10)
        found, key = bytes.fromhex(place.read_text(encoding="ascii").strip()), _key()
        facts = [_begun(key, _content(folder / name)) for name in NAMED_BY if (folder / name).is_file()]
        # Without its result a finished run would be gone on from, by what its manifest no longer vouches for.
        if (folder / RESULT).is_file() and (folder / MANIFEST).is_file():
            facts.append(_finished(key, _content(folder / MANIFEST)))
    except (SeepageError, OSError, ValueError) as error:
        return str(error)
    if any(hmac.compare_digest(found, one) for one in facts):
        return None
    return f"its {OWNER} is of another key or of other files"


def _content(path: Path) -> bytes:
    check_regular(path, LARGEST)
    return path.read_bytes()


def _begun(key: bytes, named: bytes) -> bytes:
    return hmac.digest(key, b"seepage: a run begun of\0" + named, "sha256")


def _finished(key: bytes, manifest: bytes) -> bytes:
    return hmac.digest(key, b"seepage: a run finished with\0" + manifest, "sha256")


def _write(folder: Path, mac: bytes) -> None:
    write_whole(folder / OWNER, mac.hex() + "\n", mode=OWNER_ONLY)


def _is_empty(folder: Path) -> bool:
    try:
        return all(name in (LOCK, OWNER) or name.startswith(TEMPORARY) for name in os.listdir(folder))
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _key(*, make: bool = False) -> bytes:
    """The user's key.

    Raises:
        SeepageError: Where there is none and none can be made, or others can read or write it.
    """
    place = state_folder() / KEY
    try:
        if make and not place.exists():
            _make(place)
        check_regular(place, 2**10)
        state = place.stat()
        if hasattr(os, "getuid") and (state.st_uid != os.getuid() or state.st_mode & 0o077):
            raise SeepageError(f"{place} is not yours alone; remove it, and a new key is made")
        key = bytes.fromhex(place.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no key"
        raise SeepageError(
            f"no key of yours at {place}: {why}; set XDG_STATE_HOME to a folder of your own that stays"
        ) from error
    if len(key) != KEY_BYTES:
        raise SeepageError(f"{place} is no key of {KEY_BYTES} bytes; remove it, and a new one is made")
    return key


def _make(place: Path) -> None:
    """Write a new key, unless another process does so first."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = place.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        write_whole(temporary, secrets.token_bytes(KEY_BYTES).hex() + "\n", mode=OWNER_ONLY)
        with suppress(FileExistsError):
            os.link(temporary, place)  # whole or not at all, and never over another
    finally:
        temporary.unlink(missing_ok=True)
