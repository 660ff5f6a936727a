"""DSSE envelopes (Dead Simple Signing Envelope 1.0): a payload, its type and ed25519 signatures of both.

The signature covers the type, so that what was signed as one kind of document is never taken for another. As
https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md; the payload is decoded only after a key of ours has
signed it.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kopt.core.signing_keys import SigningError, key_id
from kopt.core.untrusted import UnreadableError, word

MOST_PAYLOAD_BYTES = 64 << 10
MOST_SIGNATURES = 8
_LONGEST_PAYLOAD = -(-MOST_PAYLOAD_BYTES // 3) * 4


class UntrustedKeyError(SigningError):
    """Signed by keys that are not trusted here, or by none."""


class WrongTypeError(SigningError):
    """An envelope of another kind of document."""


@dataclass(frozen=True)
class Envelope:
    """``signatures``: (key id, signature) of each."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """What is signed: ``DSSEv1``, and type and payload with their lengths."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload_type: str, payload: bytes, key: Ed25519PrivateKey) -> Envelope:
    """Raises SigningError for a payload that nobody would read."""
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise SigningError(f"{len(payload)} bytes are too many to sign; at most {MOST_PAYLOAD_BYTES}")
    signature = key.sign(pre_authentication_encoding(payload_type, payload))
    return Envelope(payload_type, payload, ((key_id(key.public_key()), signature),))


def verified(envelope: Envelope, payload_type: str, trusted: Iterable[Ed25519PublicKey]) -> bytes:
    """The payload, where a trusted key has signed it as this type.

    Raises WrongTypeError, UntrustedKeyError, and SigningError for a signature that does not match.
    """
    if envelope.payload_type != payload_type:
        raise WrongTypeError(f"a document of type {envelope.payload_type[:80]!r}, not {payload_type!r}")
    keys = {key_id(key): key for key in trusted}
    candidates = [(name, signature) for name, signature in envelope.signatures if name in keys]
    if not candidates:
        names = ", ".join(name[:20] for name, _ in envelope.signatures) or "nobody"
        raise UntrustedKeyError(f"signed by {names}; trusted here: {', '.join(sorted(keys)) or 'none'}")
    message = pre_authentication_encoding(envelope.payload_type, envelope.payload)
    for name, signature in candidates:
        try:
            keys[name].verify(signature, message)
        except InvalidSignature:
            continue
        return envelope.payload
    raise SigningError(f"the signature does not match key {candidates[0][0]}")


def envelope_document(envelope: Envelope) -> dict[str, Any]:
    """As JSON has it."""
    signatures = [{"keyid": name, "sig": base64.b64encode(sig).decode()} for name, sig in envelope.signatures]
    payload = base64.b64encode(envelope.payload).decode()
    return {"payload": payload, "payloadType": envelope.payload_type, "signatures": signatures}


def envelope_of(document: Mapping[str, Any]) -> Envelope:
    """Raises UnreadableError; says nothing about whether it can be trusted."""
    payload_type = word(document, "payloadType", 256)
    payload = _decoded(word(document, "payload", _LONGEST_PAYLOAD), "payload")
    signatures = document.get("signatures")
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= MOST_SIGNATURES:
        raise UnreadableError(f"signatures is no list of 1 to {MOST_SIGNATURES}")
    if not all(isinstance(item, dict) for item in signatures):
        raise UnreadableError("a signature is no object")
    return Envelope(
        payload_type,
        payload,
        tuple((word(item, "keyid", 64), _decoded(word(item, "sig", 256), "sig")) for item in signatures),
    )


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise UnreadableError(f"{name} is not base64") from None
