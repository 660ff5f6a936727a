"""Digests and ed25519 signatures of model folders.

A folder's digest is the sha256 of a canonical manifest: every file's name, size and sha256, sorted by name. The
signature covers the digest and lies beside the files as ``signature.json``, which the digest leaves out. Training
needs the private key, serving only public ones.
"""

import base64
import binascii
import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kopt.core.signing_keys import PUBLIC_KEY_FILE, SigningError, key_id

SIGNATURE_FILE = "signature.json"
_PURPOSE = b"kopt model folder v1\n"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_MAX_DEPTH = 4
_MAX_SIGNATURE_BYTES = 4096


@dataclass(frozen=True)
class FileEntry:
    """One line of the manifest: name relative to the folder with ``/``, size and sha256."""

    name: str
    size_bytes: int
    sha256: str


def manifest(folder: Path) -> tuple[FileEntry, ...]:
    """Every file below ``folder`` but the signature, sorted by name.

    Raises SigningError for links, special files, odd names and folders nested deeper than four.
    """
    if not folder.is_dir():
        raise SigningError(f"{folder} is not a folder")
    entries = sorted(_walk(folder, ""), key=lambda entry: entry.name)
    if not entries:
        raise SigningError(f"{folder} holds no files")
    lowered = [entry.name.lower() for entry in entries]
    if len(set(lowered)) != len(lowered):
        raise SigningError(f"{folder} holds names that differ only in case")
    return tuple(entries)


def is_model_path(name: str) -> bool:
    """Whether a relative path is made of plain file names only."""
    return all(_NAME.fullmatch(part) for part in name.split("/"))


def _walk(folder: Path, prefix: str) -> Iterator[FileEntry]:
    if prefix.count("/") > _MAX_DEPTH:
        raise SigningError(f"{prefix}: folders nested deeper than {_MAX_DEPTH}")
    with os.scandir(folder) as result:
        children = list(result)
    for child in children:
        name = prefix + child.name
        if not _NAME.fullmatch(child.name):
            raise SigningError(f"{name!a} is not a file name of a model (letters, digits, _ . + -)")
        mode = child.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(Path(child.path), name + "/")
        elif not stat.S_ISREG(mode):
            raise SigningError(f"{name} is a link or a special file; a model folder holds plain files only")
        elif name != SIGNATURE_FILE:
            yield FileEntry(name, child.stat(follow_symlinks=False).st_size, file_sha256(Path(child.path)))


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """sha256 over the folder's manifest, 64 hexadecimal digits. Raises SigningError as ``manifest``."""
    lines = [[entry.name, entry.size_bytes, entry.sha256] for entry in manifest(folder)]
    return hashlib.sha256(_PURPOSE + json.dumps(lines, separators=(",", ":")).encode()).hexdigest()


def sign_folder(folder: Path, key: Ed25519PrivateKey) -> str:
    """Write ``signature.json`` for the folder as it is; returns the digest that was signed."""
    digest = folder_digest(folder)
    document = {
        "algorithm": "ed25519",
        "digest": digest,
        "key": key_id(key.public_key()),
        "signature": base64.b64encode(key.sign(_PURPOSE + digest.encode())).decode(),
    }
    draft = folder / f"{SIGNATURE_FILE}.new"
    draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / SIGNATURE_FILE)
    return digest


def verify_folder(folder: Path, trusted: Iterable[Ed25519PublicKey], trusted_digests: Collection[str] = ()) -> str:
    """The folder's digest, when it is in ``trusted_digests`` or signed by a trusted key.

    Raises SigningError that says which of these failed: unsigned, files changed since signing, unknown key, bad
    signature.
    """
    digest = folder_digest(folder)
    if digest in trusted_digests:
        return digest
    document = _read_signature(folder)
    if document["digest"] != digest:
        raise SigningError(f"{folder}: files were changed, added or removed since signing (digest {digest[:12]}…)")
    keys = {key_id(key): key for key in trusted}
    key = keys.get(document["key"])
    if key is None:
        names = ", ".join(sorted(keys)) or "none"
        raise SigningError(
            f"{folder} is signed by key {document['key']}, which is not trusted here (trusted: {names}); "
            f"put the signer's {PUBLIC_KEY_FILE} into the keys folder under another name ending in .pub"
        )
    try:
        key.verify(base64.b64decode(document["signature"], validate=True), _PURPOSE + digest.encode())
    except (InvalidSignature, binascii.Error) as error:
        raise SigningError(f"{folder}: the signature does not match key {document['key']}") from error
    return digest


def _read_signature(folder: Path) -> dict[str, str]:
    path = folder / SIGNATURE_FILE
    if path.is_symlink() or not path.is_file():
        raise SigningError(f"{folder} is not signed ({SIGNATURE_FILE} is missing)")
    if path.stat().st_size > _MAX_SIGNATURE_BYTES:
        raise SigningError(f"{path} is too long for a signature")
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SigningError(f"{path} is not JSON") from error
    fields = ("digest", "key", "signature")
    if not isinstance(document, dict) or not all(isinstance(document.get(field), str) for field in fields):
        raise SigningError(f"{path} lacks one of {', '.join(fields)}")
    if document.get("algorithm") != "ed25519":
        raise SigningError(f"{path}: algorithm {document.get('algorithm')!a}, expected 'ed25519'")
    return {field: document[field] for field in fields}
