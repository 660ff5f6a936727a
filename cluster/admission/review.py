"""The AdmissionReview wire (admission.k8s.io/v1): bytes in, bytes out."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, mapping, text, texts
from kopt.cluster.runtime.http import HttpLimits

LARGEST_REVIEW_BYTES = 8 << 20
"""The API server takes objects of 3 MiB; a review may hold an old and a new one, and JSON escapes."""
REVIEW_LIMITS = HttpLimits(connections=2048, buffered_bytes=64 << 20, socket_bytes=32 << 10)
"""In a burst an API server opens a connection for each review that is under way. Idle ones take 45 KiB each, used ones
twice that: with all of them, and the buffers full, a replica stays below 400 MiB."""
_MOST_WARNING_CHARS = 250
"""The API server cuts warnings at 256 bytes and drops them past 4 KiB in all."""
_MOST_VALUES = 250_000
"""A value takes three bytes of JSON and twenty times as many of memory; the largest objects have a tenth of these."""
_ENVELOPE = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",'


class MalformedReview(ValueError):
    """Bytes that are no AdmissionReview, or one without an object; ``uid`` is its uid where it has one."""

    def __init__(self, message: str, uid: str = "") -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True)
class Review:
    """One request. ``old`` is None on CREATE; ``name`` is the prefix of a generated name where there is no other."""

    uid: str
    group: str
    kind: str
    namespace: str
    name: str
    operation: str
    dry_run: bool
    user: str
    groups: tuple[str, ...]
    object: Object
    old: Object | None = None


@dataclass(frozen=True)
class Answer:
    """``refusal`` empty: allowed. ``audit`` goes into the API server's audit log under the webhook's name."""

    refusal: str = ""
    patch: Sequence[Object] = ()
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> bytes:
        """The members of a response other than its uid, as JSON. Raises TypeError for what cannot be written."""
        response: dict[str, Any] = {"allowed": not self.refusal}
        if self.refusal:
            response["status"] = {"code": 403, "reason": "Forbidden", "message": self.refusal}
        if self.patch and not self.refusal:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(orjson.dumps(list(self.patch))).decode()
        if self.warnings:
            response["warnings"] = [warning[:_MOST_WARNING_CHARS] for warning in self.warnings]
        if self.audit:
            response["auditAnnotations"] = dict(self.audit)
        return orjson.dumps(response)[1:-1]


ALLOWED = Answer()


def let_through(cause: str, omitted: str, remedy: str) -> Answer:
    """Allowed as it is after a failure of ours: whoever submits the object is warned, and learns nothing internal."""
    return Answer(warnings=(f"kopt {cause} and let this object through as it is: {omitted}. {remedy}",))


def parse_review(body: bytes) -> Review:
    """The request in a review. Raises MalformedReview."""
    if len(body) > _MOST_VALUES and sum(map(body.count, (b",", b"{", b"["))) > _MOST_VALUES:
        raise MalformedReview(f"it has more than {_MOST_VALUES} values")
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedReview(f"not JSON: {error}") from error
    request = mapping(document, "request")
    uid = text(request, "uid")
    result = request.get("object")
    if not uid:
        raise MalformedReview("no request with a uid in it")
    if not isinstance(result, dict):
        raise MalformedReview("the request has no object", uid)
    old = request.get("oldObject")
    return Review(
        uid=uid,
        group=text(request, "kind", "group"),
        kind=text(request, "kind", "kind"),
        namespace=text(request, "namespace") or text(result, "metadata", "namespace"),
        name=text(request, "name") or text(result, "metadata", "name") or text(result, "metadata", "generateName"),
        operation=text(request, "operation"),
        dry_run=at(request, "dryRun") is True,
        user=text(request, "userInfo", "username"),
        groups=texts(request, "userInfo", "groups"),
        object=result,
        old=old if isinstance(old, dict) else None,
    )


def encode_answer(uid: str, answer: Answer = ALLOWED) -> bytes:
    """The review that goes back."""
    return b'%s"response":{"uid":%s,%s}}' % (_ENVELOPE, orjson.dumps(uid), answer.encoded)
