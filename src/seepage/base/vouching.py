"""Proof that seepage made a run folder for this user on this machine; a folder from a checkout has none.

A secret key lies in the user's state folder, made on first use and readable by nobody else. `owner.mac` in a run folder
holds an HMAC-SHA-256 with that key. Until the run is finished it is over the file that defines the run (one of
`NAMED_BY`), and is written before anything else; then it is over the manifest, which lists all other files. Nobody
can make either without the key.

A gate judges an older folder only if it has this proof. An unfinished folder is proven by its definition alone: whoever
can write into it can change the intermediate results from which the run is resumed.
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
"""File in a run folder with the proof, in hexadecimal; no manifest lists it, as it is over the manifest."""

KEY = "run.key"
"""File in the user's state folder with the secret key, in hexadecimal."""
KEY_BYTES = 32
"""Length of the key: that of SHA-256's output, beyond which a longer one adds no strength."""

MANIFEST, RESULT = "manifest.json", "result.json"
NAMED_BY = ("attack.json", "captured.json", "recipe.toml")
"""Files that define a run; a run of captured files has two of them."""

LARGEST = 2**26
"""Largest size in bytes (64 MiB) of a file that is hashed; a larger one was not written by seepage."""
LARGEST_PROOF = 2**10
"""Largest size in bytes (1 KiB) of a key or proof that is read: each is one line of 64 hexadecimal digits."""


def state_folder() -> Path:
    """The folder of this user's program state: `$XDG_STATE_HOME/seepage`, or the system's own place for it.

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
    """Write the proof of a run that is about to start; nothing where the folder holds files without a proof.

    Where no key can be made, no proof is written, and the folder counts as foreign later.

    Args:
        folder: The run folder; empty, or with a valid proof.
        text: Content of the file that defines the run.
    """
    if _is_empty(folder) or is_own(folder):
        with suppress(SeepageError):
            _write(folder, _begun(_key(make=True), text.encode()))


@contextmanager
def staying_own(folder: Path, *, finished: bool = True) -> Iterator[None]:
    """Keep a folder's proof valid while seepage rewrites its manifest or result; a folder without one gets none.

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
    """Whether a run folder has a valid proof that this user's seepage made it."""
    return _why_foreign(folder) is None


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is not empty and has no valid proof, and a file in place of a folder.

    Raises:
        SeepageError: With the reason and the remedy.
    """
    if _is_empty(folder):
        return
    reason = _why_foreign(folder) if folder.is_dir() else "a file alone says nothing of who made it"
    if reason is not None:
        raise SeepageError(
            f"{folder} holds a run that nothing shows to be yours ({reason}), and a gate would believe "
            "whoever made it; name a fresh folder, or, if you know where it comes from, add --reuse"
        )


def _why_foreign(folder: Path) -> str | None:
    """The reason why a folder has no valid proof; None where it has one. Never raises."""
    place = folder / OWNER
    if not place.is_file():
        return f"it has no {OWNER}"
    try:
        check_regular(place, LARGEST_PROOF)
        found, key = bytes.fromhex(place.read_text(encoding="ascii").strip()), _key()
        valid = [_begun(key, _content(folder / name)) for name in NAMED_BY if (folder / name).is_file()]
        # The proof over the manifest needs the result too. A finished run whose result was deleted would be resumed,
        # from intermediate files that may have been changed since.
        if (folder / RESULT).is_file() and (folder / MANIFEST).is_file():
            valid.append(_finished(key, _content(folder / MANIFEST)))
    except (SeepageError, OSError, ValueError) as error:
        return str(error)
    if any(hmac.compare_digest(found, one) for one in valid):  # constant time
        return None
    return f"its {OWNER} is of another key or of other files"


def _content(path: Path) -> bytes:
    check_regular(path, LARGEST)
    return path.read_bytes()


def _begun(key: bytes, named: bytes) -> bytes:
    """Proof of a run that is not finished, over the content of the file that defines it."""
    return hmac.digest(key, b"seepage: a run begun of\0" + named, "sha256")


def _finished(key: bytes, manifest: bytes) -> bytes:
    """Proof of a finished run, over the content of its manifest."""
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
        check_regular(place, LARGEST_PROOF)
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
