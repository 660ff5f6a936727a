"""Ed25519 keys of people and jobs that sign: a private key in a folder that only its owner reads, and public ones.

A folder of keys holds ``signing.key`` (made on first use), ``signing.pub`` beside it, and public keys of others as
``NAME.pub``; who verifies trusts all of these.
"""

import hashlib
import os
import secrets
import stat
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PRIVATE_KEY_FILE = "signing.key"
PUBLIC_KEY_FILE = "signing.pub"


class SigningError(ValueError):
    """What is signed and cannot be trusted, or a key that cannot be used; the message says which."""


def key_id(key: Ed25519PublicKey) -> str:
    """Short name of a public key: the first 16 digits of its sha256."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def signing_key(keys: Path) -> Ed25519PrivateKey:
    """The private key in ``keys``, created with its public half on first use (file mode 0600).

    Raises SigningError when the file is not an ed25519 key or everybody may read it.
    """
    path = keys / PRIVATE_KEY_FILE
    if not path.exists():
        _create_key(keys)
    if path.stat().st_mode & stat.S_IRWXO:
        raise SigningError(f"{path} may be read by everybody; run: chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise SigningError(f"{path} is not an unencrypted PEM private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningError(f"{path} is not an ed25519 key")
    _write_public(keys, key.public_key())
    return key


def _create_key(keys: Path) -> None:
    keys.mkdir(parents=True, exist_ok=True, mode=0o700)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    draft = keys / f".{secrets.token_hex(8)}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    try:
        # A link fails where a rename would replace the key another process has just made.
        os.link(draft, keys / PRIVATE_KEY_FILE)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _write_public(keys: Path, key: Ed25519PublicKey) -> None:
    path = keys / PUBLIC_KEY_FILE
    if path.exists():
        return
    draft = keys / f".{secrets.token_hex(8)}"
    draft.write_bytes(
        key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    )
    draft.replace(path)


def public_keys(keys: Path) -> tuple[Ed25519PublicKey, ...]:
    """Every public key (``*.pub``, PEM) in ``keys``; whoever verifies trusts all of them; may be empty."""
    return tuple(_read_public(path) for path in sorted(keys.glob("*.pub")))


def _read_public(path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except ValueError as error:
        raise SigningError(f"{path} is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SigningError(f"{path} is not an ed25519 key")
    return key
