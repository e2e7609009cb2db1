"""Ed25519 signatures over a file, made and checked without a network (extra `seepage[sign]`)."""

import base64
import binascii
import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from seepage.base.storage import OWNER_ONLY, check_regular, write_whole
from seepage.errors import SeepageError, not_installed, short

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LARGEST_KEY = 2**14
"""Bytes of a key file."""

LARGEST_SIGNATURE = 2**10
"""Bytes of a signature file, which holds 64 in base64."""


def make_keys(path: Path) -> Path:
    """Write a new private key, readable by its owner alone, and its public key beside it.

    Args:
        path: File for the private key, PEM in PKCS 8, without a passphrase.

    Returns:
        The file of the public key: the same name with `.pub`.

    Raises:
        SeepageError: Where either file is there already: a key is never replaced.
    """
    _check_installed()
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = path.with_name(f"{path.name}.pub")
    for place in (path, public):
        if place.exists() or place.is_symlink():
            raise SeepageError(f"{place} is there already, and no key is replaced; name another file")
    key = Ed25519PrivateKey.generate()
    private_text = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    write_whole(path, private_text, mode=OWNER_ONLY)
    write_whole(public, public_text(key.public_key()))
    return public


def open_private_key(path: Path) -> "Ed25519PrivateKey":
    """Read a private key.

    Raises:
        SeepageError: For a file that is missing, no Ed25519 key, or protected by a passphrase.
    """
    _check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), password=None)
    except TypeError as error:
        raise SeepageError(f"{path} is protected by a passphrase; sign with a key without one") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SeepageError(f"{path} is no private key in PEM; make one with seepage evidence keygen") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SeepageError(f"{path} is no Ed25519 key; make one with seepage evidence keygen")
    return key


def open_public_key(path: Path) -> "Ed25519PublicKey":
    """Read a public key.

    Raises:
        SeepageError: For a file that is missing or no Ed25519 key.
    """
    return parse_public_key(_read(path), str(path))


def parse_public_key(text: bytes, where: str) -> "Ed25519PublicKey":
    """A public key from PEM."""
    _check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SeepageError(f"{where} is no public key in PEM; pass the .pub file of seepage evidence keygen") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SeepageError(f"{where} is no Ed25519 key; pass the .pub file of seepage evidence keygen")
    if has_small_order(key.public_bytes_raw()):
        raise SeepageError(f"{where} is a key under which anybody can sign anything; ask the auditor for theirs")
    return key


def has_small_order(raw: bytes) -> bool:
    """Whether 8 times the point of a public key is the neutral one: then one signature fits any content.

    On -x^2 + y^2 = 1 + d x^2 y^2 these points have y = 1 or -1 (order 1 and 2), y = 0 (order 4), or x^2 = -y^2, as
    their double has y = 0 (order 8), which gives d y^4 + 2 y^2 - 1 = 0. The sign of x, the top bit, does not matter.

    >>> has_small_order(bytes(32)), has_small_order(bytes([9, *31 * [0]]))
    (True, False)
    """
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p
    square = (int.from_bytes(raw, "little") % 2**255) ** 2 % p
    return square in (0, 1) or (d * square * square + 2 * square - 1) % p == 0


def public_text(key: "Ed25519PublicKey") -> bytes:
    """A public key as PEM."""
    from cryptography.hazmat.primitives import serialization as pem

    return key.public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)


def key_name(key: "Ed25519PublicKey") -> str:
    """A short name of a public key, to compare by eye: `SHA256:` and 43 letters, as ssh writes them."""
    digest = hashlib.sha256(key.public_bytes_raw()).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def sign(content: bytes, key: "Ed25519PrivateKey") -> str:
    """A signature as a line of base64."""
    return base64.b64encode(key.sign(content)).decode() + "\n"


def is_signed(content: bytes, signature: bytes, key: "Ed25519PublicKey") -> bool:
    """Whether a signature is of this content, by the holder of the key."""
    from cryptography.exceptions import InvalidSignature

    try:
        raw = base64.b64decode(signature.strip(), validate=True)
        key.verify(raw, content)
        return signature == base64.b64encode(raw) + b"\n"  # not one byte beside it
    except (InvalidSignature, binascii.Error, ValueError):
        return False


def _check_installed() -> None:
    if find_spec("cryptography") is None:
        raise not_installed("cryptography, which signs and checks signatures,", "sign")


def _read(path: Path) -> bytes:
    check_regular(path, LARGEST_KEY)
    try:
        return path.read_bytes()
    except OSError as error:
        raise SeepageError(
            f"cannot read the key {short(str(path))}: {error.strerror or error}; check the path"
        ) from error
