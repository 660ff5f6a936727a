"""Proof that a controller of ours wrote an annotation on an object that its user may write as well.

Whoever may write a pod may write every annotation of it, so an annotation alone says nothing about its writer. Those on
which a controller acts later (``kaiwo.ai/evicting``, ``kaiwo.ai/preemption``, ``kaiwo.ai/resizing``,
``kaiwo.ai/save-requested``) are JSON objects with a ``proof``: an HMAC-SHA256 (RFC 2104) over the annotation's name,
the uid of the object and the rest of the JSON. The key lies in a Secret in the controllers' namespace. An annotation
without a valid proof, one that was changed, and one that was copied from another object all count as absent. An old one
that its user writes again is told by its time, which the reader checks.

    text = SEAL.sealed("kaiwo.ai/evicting", uid, {"at": …})
    SEAL.opened("kaiwo.ai/evicting", uid, text)  # {"at": …}, or None
    SEAL.read("kaiwo.ai/evicting", uid, text)  # {"at": …}, or what is wrong with it

A process without the Secret has a key of its own: it believes itself alone.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.api import Kube
from kopt.cluster.client.errors import AlreadyExists, Forbidden, Invalid, NotFound
from kopt.cluster.client.resources import COMPONENT_LABEL, PART_OF, PART_OF_LABEL, SECRETS, Object
from kopt.cluster.objects.annotations import AnnotationError, ForgedError
from kopt.core.untrusted import UnreadableError, decode_mapping

_LOG = logging.getLogger(__name__)
SECRET = "kopt-seal"
PROOF = "proof"
SEALED_KEYS = ("kaiwo.ai/evicting", "kaiwo.ai/preemption", "kaiwo.ai/resizing", "kaiwo.ai/save-requested")
"""Annotations that count with a proof alone."""
_KEY_BYTES = 32
_LONGEST_CHARS = 64 << 10


class Seal:
    """Seals and opens annotations with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.shared = False
        """Whether the key is that of all controllers: what it does not open is forged."""

    def sealed(self, name: str, uid: str, document: Mapping[str, Any]) -> str:
        """The value of the annotation ``name`` on the object ``uid``."""
        plain = {key: value for key, value in document.items() if key != PROOF}
        return json.dumps(plain | {PROOF: self._proof(name, uid, plain)}, separators=(",", ":"), ensure_ascii=False)

    def opened(self, name: str, uid: str, text: object) -> dict[str, Any] | None:
        """What a controller of ours wrote there; None for anything else."""
        try:
            return self.read(name, uid, text)
        except AnnotationError:
            return None

    def read(self, name: str, uid: str, text: object) -> dict[str, Any]:
        """What a controller of ours wrote there. Raises AnnotationError for what cannot be read, and ForgedError for
        what can and has no valid proof."""
        try:
            document = decode_mapping(text, longest_chars=_LONGEST_CHARS)
        except UnreadableError as error:
            raise AnnotationError(name, error, "It counts as absent. Remove it.") from None
        proof = document.pop(PROOF, None)
        if not uid or not isinstance(proof, str) or not proof.isascii():
            raise ForgedError(name)
        if not hmac.compare_digest(proof, self._proof(name, uid, document)):
            raise ForgedError(name)
        return document

    def proven(self, uid: str, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """The annotations of the object ``uid`` without those that need a proof and have none."""
        return {
            name: value
            for name, value in annotations.items()
            if name not in SEALED_KEYS or self.opened(name, uid, value) is not None
        }

    def adopt(self, key: bytes) -> None:
        """Seal and open with the key of all controllers from now on."""
        self._key, self.shared = key, True

    def _proof(self, name: str, uid: str, document: Mapping[str, Any]) -> str:
        content = json.dumps([name, uid, document], separators=(",", ":"), sort_keys=True, ensure_ascii=True)
        return hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()


SEAL = Seal(secrets.token_bytes(_KEY_BYTES))
"""Of this process; ``adopt_key`` gives it the key that all controllers share."""


async def adopt_key(kube: Kube, namespace: str, seal: Seal = SEAL) -> bool:
    """Take the shared key from its Secret, made by whichever process comes first; False where it may not be read.

    Raises ApiError while the API server does not answer.
    """
    try:
        result = await _read_or_make(kube, namespace)
    except (Forbidden, Invalid) as error:
        _LOG.error(
            "Secret %s/%s cannot be used (%s): what other controllers and earlier leaders wrote on objects does "
            "not count here",
            namespace,
            SECRET,
            error,
        )
        return False
    key = _key_of(result)
    if key is None:
        _LOG.error(
            "Secret %s/%s has no key of %d bytes; delete it and restart the controllers", namespace, SECRET, _KEY_BYTES
        )
        return False
    seal.adopt(key)
    return True


async def _read_or_make(kube: Kube, namespace: str) -> Object:
    with contextlib.suppress(NotFound):
        return await kube.get(SECRETS, SECRET, namespace)
    labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: "seal"}
    key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    made = {
        "metadata": {"name": SECRET, "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "data": {"key": key},
    }
    try:
        return await kube.create(SECRETS, made)
    except AlreadyExists:
        return await kube.get(SECRETS, SECRET, namespace)


def _key_of(secret: Object) -> bytes | None:
    try:
        key = base64.b64decode((secret.get("data") or {}).get("key") or "", validate=True)
    except (binascii.Error, TypeError):
        return None
    return key if len(key) >= _KEY_BYTES else None
