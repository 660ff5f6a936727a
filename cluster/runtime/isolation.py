"""A failure stays with its object: it is counted, reported on the object, and retried later; all others go on.

What informers show was written by people, and one object that breaks a reader or a reconciler must cost nobody else
their turn. So every loop over objects runs each of them under a guard:

    isolation = Isolation("sizing", report)
    with isolation.guard(subject) as attempt:
        again_s = await reconcile(key)
    if attempt.error is not None:
        again_s = attempt.again_s

A subject that failed is left alone (``waits_s``) for a time that doubles with each failure, or until it changes.
``guard`` is the only place of the control plane's loops that catches every exception.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.errors import ApiError, Invalid
from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.annotations import AnnotationError, Checks, ForgedError
from kopt.cluster.runtime.lease import Deposed
from kopt.core.untrusted import printable

_LOG = logging.getLogger(__name__)
RECONCILE_ERROR, SUBSCRIBER_ERROR = "ReconcileError", "SubscriberError"
INVALID_OBJECT = "InvalidObject"
INVALID_ANNOTATION, FORGED_ANNOTATION = "InvalidAnnotation", "ForgedAnnotation"
_LONGEST_CHARS = 300
_REMEMBERED = 4096


@dataclass(frozen=True)
class Subject:
    """The object that a failure is about, as it was seen."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    version: str = ""

    @classmethod
    def of(cls, resource: Resource, document: Any) -> "Subject":
        """Never raises: what is broken may be anything."""
        metadata = document.get("metadata") if isinstance(document, dict) else None
        result = metadata if isinstance(metadata, dict) else {}
        namespace, name, uid, version = (
            str(result.get(key) or "") for key in ("namespace", "name", "uid", "resourceVersion")
        )
        return cls(resource.api_version, resource.kind, namespace, name, uid, version)

    @property
    def identity(self) -> tuple[str, ...]:
        return self.kind, self.namespace, self.name, self.uid

    @property
    def reference(self) -> Object:
        """As events hold it."""
        parts = {"namespace": self.namespace, "uid": self.uid}
        result = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name}
        return result | {key: value for key, value in parts.items() if value}


Report = Callable[[Subject, str, str], None]
"""(object, reason, sentence): an event of type Warning, and a count."""


@dataclass(frozen=True)
class RetrySettings:
    """Pauses in seconds; they double from the first to the longest."""

    first_s: float = 1.0
    longest_s: float = 300.0
    longest_changed_s: float = 10.0
    """For a subject that changes after each failure, perhaps by our own writes."""


@dataclass
class Attempt:
    """What came of one guarded block; ``again_s``: when to try again after an ``error``."""

    error: Exception | None = None
    again_s: float = 0.0


@dataclass
class _Failure:
    subject: Subject
    reason: str
    sentence: str
    at_s: float
    pause_s: float


@dataclass
class _Complaints:
    """Of one object, by annotation: reason and sentence."""

    subject: Subject
    about: dict[str, tuple[str, str]] = field(default_factory=dict)


def _unreported(subject: Subject, reason: str, sentence: str) -> None:
    """For tools without events: the log has it."""


@dataclass
class Isolation:
    """Of one controller in one process. Deposed and ApiErrors but Invalid pass: those are no fault of an object."""

    controller: str
    report: Report = _unreported
    itself: Subject = Subject("", "", "", "")
    """The controller's own object, its Lease: for failures of what all objects share."""
    settings: RetrySettings = field(default_factory=RetrySettings)
    clock: Callable[[], float] = time.monotonic
    checks: Checks = field(default_factory=dict)
    """Of the annotations that the controller goes by."""
    _failures: OrderedDict[tuple[str, ...], _Failure] = field(default_factory=OrderedDict)
    _complaints: OrderedDict[tuple[str, ...], _Complaints] = field(default_factory=OrderedDict)

    @contextmanager
    def guard(self, subject: Subject, reason: str = RECONCILE_ERROR) -> Iterator[Attempt]:
        """Contain whatever the block raises. It works around ``await`` as well."""
        attempt = Attempt()
        try:
            yield attempt
        except Invalid as error:
            # The server refuses what follows from this object, and will again.
            attempt.error = error
            attempt.again_s = self._failed(subject, reason, error)
        except (ApiError, Deposed):
            raise
        except Exception as error:  # noqa: BLE001 - the one place: a hostile object may raise anything
            attempt.error = error
            attempt.again_s = self._failed(subject, reason, error)
        else:
            self._failures.pop((*subject.identity, reason), None)

    def waits_s(self, subject: Subject, reason: str = RECONCILE_ERROR) -> float:
        """Seconds for which a subject that failed is still left alone; 0 for all others."""
        failure = self._failures.get((*subject.identity, reason))
        if failure is None:
            return 0.0
        pause_s = failure.pause_s
        if subject.version != failure.subject.version:
            pause_s = min(pause_s, self.settings.longest_changed_s)
        return max(0.0, failure.at_s + pause_s - self.clock())

    def complain(self, subject: Subject, error: AnnotationError) -> None:
        """Of an object that is handled although something on it cannot be read; once while it says the same."""
        complaints = self._complaints.get(subject.identity) or _Complaints(subject)
        complaint = _reason_of(error), str(error)
        if complaints.about.get(error.annotation) != complaint:
            self._emit(subject, *complaint)
        complaints.about[error.annotation] = complaint
        _remember(self._complaints, subject.identity, complaints)

    def check(self, subject: Subject, document: Object) -> None:
        """Complain of the annotations that the controller goes by, where they cannot be read or are forged."""
        annotations = document["metadata"].get("annotations") or {}
        for name, check in self.checks.items():
            try:
                if name in annotations:
                    check(document)
            except AnnotationError as error:
                self.complain(subject, error)
            else:
                if (complaints := self._complaints.get(subject.identity)) is not None:
                    complaints.about.pop(name, None)

    def forget(self, subject: Subject) -> None:
        """An object that is gone."""
        self._complaints.pop(subject.identity, None)

    def repeat(self) -> None:
        """Report again what fails now: a replica that begins to lead says what it has seen before."""
        for failure in list(self._failures.values()):
            self.report(failure.subject, failure.reason, failure.sentence)
        for complaints in list(self._complaints.values()):
            for complaint in complaints.about.values():
                self.report(complaints.subject, *complaint)

    def _failed(self, subject: Subject, reason: str, error: Exception) -> float:
        key = (*subject.identity, reason)
        before = self._failures.get(key)
        pause_s = self.settings.first_s if before is None else min(self.settings.longest_s, 2 * before.pause_s)
        event_reason, sentence = (
            reason,
            f"It is skipped: {type(error).__name__}: {printable(str(error), _LONGEST_CHARS)}",
        )
        if isinstance(error, AnnotationError):
            event_reason, sentence = _reason_of(error), str(error)
        _remember(self._failures, key, _Failure(subject, event_reason, sentence, self.clock(), pause_s))
        self._emit(subject, event_reason, sentence, error)
        return self.waits_s(subject, reason)

    def _emit(self, subject: Subject, reason: str, sentence: str, error: Exception | None = None) -> None:
        path = "/".join(filter(None, (subject.namespace, subject.name)))
        is_expected = error is None or isinstance(error, AnnotationError)
        _LOG.warning(
            "%s: %s %s: %s: %s",
            self.controller,
            subject.kind,
            path,
            reason,
            sentence,
            exc_info=None if is_expected else error,
        )
        self.report(subject, reason, sentence)


def _reason_of(error: AnnotationError) -> str:
    return FORGED_ANNOTATION if isinstance(error, ForgedError) else INVALID_ANNOTATION


def _remember(entries: OrderedDict[tuple[str, ...], Any], key: tuple[str, ...], value: Any) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > _REMEMBERED:
        entries.popitem(last=False)
