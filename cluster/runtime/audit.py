"""What this process does to a cluster, sealed into its chain of the audit log (``core.audit``).

Everything goes through two loggers, so that nothing has to be handed through: ``kopt.audit`` gets the writes of fences
and the events, ``kopt.decisions`` the decisions with their models. Nothing is recorded before ``start_audit``.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kopt.cluster.client.resources import SECRETS, Object, Resource
from kopt.core.audit import AuditChain, SealedRecord, touched
from kopt.core.redaction import redact_document

_AUDIT = logging.getLogger("kopt.audit")
_AUDIT.propagate = False
_AUDIT.setLevel(logging.CRITICAL + 1)
"""Until it is started."""
_DECISIONS = logging.getLogger("kopt.decisions")
_ORIGIN = "kopt_audit"
_LINE = '{"logger":"kopt.audit","sha256":"%s","level":"INFO","message":"a record of the audit log","record":%s}\n'
_MAY_HOLD_SECRETS = ("text", "before", "after", "details")
"""The rest are names that the API server has let through, and words of ours."""
Send = Callable[[SealedRecord], None]
"""Takes a record on its way to the store; returns at once, whatever happens to the store."""


def audit_write(
    verb: str, resource: Resource, metadata: Object, before: Object | None = None, after: Object | None = None
) -> None:
    """A write that the API server has accepted. ``metadata`` is the object's; ``before`` as it was seen."""
    if not _AUDIT.isEnabledFor(logging.INFO):
        return
    about = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "namespace": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
        "uid": metadata.get("uid", ""),
    }
    content: dict[str, Any] = {"kind": "write", "verb": verb, "object": about}
    # What Secrets hold is in no log.
    if resource != SECRETS:
        content |= {key: value for key, value in (("before", before), ("after", after)) if value is not None}
    _AUDIT.info("%s %s", verb, resource.kind, extra={_ORIGIN: content})


def audit_patch(resource: Resource, document: Object, changes: Object) -> None:
    """A merge patch of an object as it was seen; what only serves the writing is left out."""
    if not _AUDIT.isEnabledFor(logging.INFO):
        return
    wanted = {key: value for key, value in (changes.get("metadata") or {}).items() if key != "resourceVersion"}
    after = {key: value for key, value in changes.items() if key != "metadata"} | (
        {"metadata": wanted} if wanted else {}
    )
    if after:
        audit_write("patch", resource, document["metadata"], touched(document, after), after)


def audit_event(regarding: Object, reason: str, verb: str, message: str) -> None:
    """What was said about an object, whether or not the event itself was written."""
    if _AUDIT.isEnabledFor(logging.INFO):
        content = {"kind": "event", "verb": verb, "object": regarding, "reason": reason, "text": message}
        _AUDIT.info("%s", reason, extra={_ORIGIN: content})


class AuditHandler(logging.Handler):
    """Seals what comes and gives it to ``sinks``, in order; thread-safe as handlers are."""

    def __init__(self, component: str, chain: AuditChain, *sinks: Send) -> None:
        super().__init__(logging.INFO)
        self._component, self._chain, self._sinks = component, chain, sinks
        self.append({"kind": "start"}, time.time())

    def emit(self, record: logging.LogRecord) -> None:
        content = getattr(record, _ORIGIN, None) or _content_of(record)
        if content is not None:
            self.append(content, record.created)

    def append(self, content: Mapping[str, Any], at_s: float) -> None:
        """Seal and hand on one record."""
        readable = {
            key: redact_document(value) if key in _MAY_HOLD_SECRETS else value for key, value in content.items()
        }
        sealed = self._chain.seal({"at_s": round(at_s, 3), "component": self._component} | readable)
        for sink in self._sinks:
            sink(sealed)


def start_audit(component: str, identity: str, *sinks: Send) -> AuditHandler:
    """Record from now on. ``identity`` names the process among all that ever were: its start is added."""
    handler = AuditHandler(component, AuditChain(f"{component}/{identity}/{time.time_ns()}"), *sinks)
    _AUDIT.setLevel(logging.INFO)
    _AUDIT.addHandler(handler)
    _DECISIONS.addHandler(handler)
    _DECISIONS.setLevel(logging.INFO)
    return handler


def stop_audit(handler: AuditHandler) -> None:
    """The inverse of ``start_audit``."""
    _AUDIT.removeHandler(handler)
    _DECISIONS.removeHandler(handler)
    if not any(isinstance(other, AuditHandler) for other in _AUDIT.handlers):
        _AUDIT.setLevel(logging.CRITICAL + 1)


class RecordLines:
    """Writes records to standard error, one JSON line each: the copy that the store's owner does not hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, record: SealedRecord) -> None:
        # The record is a JSON object already, and the line is its text with the hash.
        with self._lock:
            sys.stderr.write(_LINE % (record.digest, record.text))


def _content_of(record: logging.LogRecord) -> Mapping[str, Any] | None:
    """Of a decision's log record."""
    decision = getattr(record, "decision", None)
    if not isinstance(decision, Mapping):
        return None
    kind, _, path = record.getMessage().partition(" ")
    namespace, _, name = path.rpartition("/")
    about = {"kind": kind, "namespace": namespace, "name": name, "uid": str(decision.get("uid", ""))}
    return {"kind": "decision", "verb": str(decision.get("policy", "")), "object": about, "details": decision}
