"""Short signed statements: a table of texts and numbers under an ed25519 signature, as one line of JSON.

The signature covers the statement's purpose and its canonical JSON, so a statement made for one purpose proves nothing
for another.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kopt.core.signing_keys import SigningError, key_id

MOST_CHARACTERS = 8192
Fields = Mapping[str, str | int]


def sign_statement(purpose: str, fields: Fields, key: Ed25519PrivateKey) -> str:
    """``fields`` with the key's name and signature, as one line of JSON."""
    signature = base64.b64encode(key.sign(_signed(purpose, fields))).decode()
    document = {
        "algorithm": "ed25519",
        "key": key_id(key.public_key()),
        "signature": signature,
        "statement": dict(fields),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def verify_statement(purpose: str, text: str, trusted: Iterable[Ed25519PublicKey]) -> Fields:
    """The fields of a statement that a trusted key has signed for this purpose. Raises SigningError otherwise."""
    document = _document(text)
    keys = {key_id(key): key for key in trusted}
    key = keys.get(document["key"])
    if key is None:
        names = ", ".join(sorted(keys)) or "none"
        raise SigningError(f"signed by key {document['key'][:64]!a}, which is not trusted here (trusted: {names})")
    fields: Fields = document["statement"]
    try:
        key.verify(base64.b64decode(document["signature"], validate=True), _signed(purpose, fields))
    except (InvalidSignature, binascii.Error, UnicodeEncodeError) as error:
        raise SigningError(f"the signature does not match key {document['key']}") from error
    return fields


def _signed(purpose: str, fields: Fields) -> bytes:
    return f"{purpose}\n".encode() + json.dumps(dict(fields), sort_keys=True, separators=(",", ":")).encode()


def _document(text: str) -> dict[str, Any]:
    if len(text) > MOST_CHARACTERS:
        raise SigningError(f"{len(text)} characters are too long for a signed statement")
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SigningError("not a signed statement (no JSON)") from error
    is_ed25519 = isinstance(document, dict) and document.get("algorithm") == "ed25519"
    if not is_ed25519 or not all(isinstance(document.get(field), str) for field in ("key", "signature")):
        raise SigningError("not a signed statement (algorithm, key or signature is missing)")
    fields = document.get("statement")
    if not isinstance(fields, dict) or not all(type(value) in (str, int) for value in fields.values()):
        raise SigningError("not a signed statement (its fields are texts and whole numbers)")
    return dict(document)
