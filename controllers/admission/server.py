"""The HTTPS server that the API server calls, and the plain one for probes and metrics.

Every review is answered: a malformed one, or one that a fault of ours meets, with "allowed". Reviews arrive on
connections that the API server keeps open, so a server that leaves first asks for them to be closed, then waits.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from kopt.cluster.admission.review import (
    LARGEST_REVIEW_BYTES,
    REVIEW_LIMITS,
    Answer,
    MalformedReview,
    Review,
    encode_answer,
    let_through,
    parse_review,
)
from kopt.cluster.runtime.http import SMALL_BODY_BYTES, HttpLimits, HttpServer, Reply, Request
from kopt.cluster.runtime.tracing import Span, SpanExport, name_attributes
from kopt.controllers.admission.answers import LET_THROUGH, UNJUDGED, Admission
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.metrics import WebhookMetrics

_LOG = logging.getLogger(__name__)
DECISIONS = logging.getLogger("kopt.decisions")
"""One line per evaluated object: who, what, why."""
PROBE_LIMITS = HttpLimits(connections=64, buffered_bytes=16 << 20)
_PATHS = ("/mutate", "/validate")
FAILED = Admission(
    let_through("met an error of its own", UNJUDGED, "The log of the Deployment kopt-webhook has the error.")
)
"""Because of a fault of ours."""
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class ServerSettings:
    """Addresses and times. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 9443
    probe_port: int = 9444
    reuse_port: bool = False
    """Several processes on one port; the kernel deals connections out."""
    drain_s: float = 5.0
    """Between the signal to end and closing: until endpoints and connections have moved on."""


class _Timestamp(NamedTuple):
    """A time by the monotonic and by the wall clock."""

    clock_s: float
    unix_ns: int


class WebhookServer:
    """Serves ``/mutate`` and ``/validate`` over TLS; ``/healthz``, ``/readyz`` and ``/metrics`` in plain."""

    def __init__(
        self,
        admissions: Admissions,
        tls: ssl.SSLContext,
        settings: ServerSettings,
        metrics: WebhookMetrics,
        ready: Callable[[], bool] = lambda: True,
        spans: SpanExport | None = None,
    ) -> None:
        self._admissions, self._tls, self._settings, self._metrics = admissions, tls, settings, metrics
        self._ready = ready
        self._spans = spans or SpanExport("kopt-webhook")
        # Idle connections are the API server's to close: were we first, a review on its way could be lost. Only where
        # there is no room for another does the caller with most of them lose one.
        self._reviews = HttpServer(self._review, _largest_body, limits=REVIEW_LIMITS)
        self._probes = HttpServer(self._probe, SMALL_BODY_BYTES, limits=PROBE_LIMITS)
        self.port = self.probe_port = 0

    async def start_probes(self) -> None:
        """Answer probes: alive, not ready. Raises OSError when the address is taken."""
        self.probe_port = await self._probes.start(self._settings.host, self._settings.probe_port)

    async def start(self) -> None:
        """Take reviews, once there is a certificate to serve with. Raises OSError when the address is taken."""
        settings = self._settings
        self.port = await self._reviews.start(settings.host, settings.port, self._tls, reuse_port=settings.reuse_port)

    def end_connections(self) -> None:
        """The trusted callers have changed: all of them have to reconnect."""
        self._reviews.end_connections()

    async def stop(self) -> None:
        """Not ready any more; drain; close."""
        self._reviews.draining = True
        await asyncio.sleep(self._settings.drain_s)
        for http in (self._reviews, self._probes):
            await http.stop()
        await asyncio.to_thread(self._spans.close)

    def _review(self, request: Request) -> Reply | Awaitable[Reply]:
        if request.path not in _PATHS:
            return Reply.text(f"no webhook at {request.path}; there are /mutate and /validate", 404)
        began = _Timestamp(time.perf_counter(), time.time_ns())
        try:
            review = parse_review(request.body)
        except MalformedReview as error:
            return self._malformed(request.path, error)
        if not self._ready():
            return self._reply(request, review, LET_THROUGH, began)
        if request.path == "/mutate":
            try:
                # Most are answered here and now: another turn of the loop is a tenth of what a review may cost.
                admission = self._admissions.mutate_at_once(review, request.traceparent)
            except Exception:  # noqa: BLE001 - edge: see _failed
                return self._reply(request, review, _failed(review), began)
            if admission is not None:
                return self._reply(request, review, admission, began)
        return self._wait(request, review, began)

    async def _wait(self, request: Request, review: Review, began: _Timestamp) -> Reply:
        try:
            if request.path == "/mutate":
                admission = await self._admissions.mutate(review, request.traceparent)
            else:
                admission = await self._admissions.validate(review)
        except Exception:  # noqa: BLE001 - edge: see _failed
            admission = _failed(review)
        return self._reply(request, review, admission, began)

    def _reply(self, request: Request, review: Review, admission: Admission, began: _Timestamp) -> Reply:
        try:
            reply = Reply(encode_answer(review.uid, admission.answer))
        except TypeError:
            # What someone nested deeper than can be written.
            admission = _failed(review)
            reply = Reply(encode_answer(review.uid, admission.answer))
        ended = _Timestamp(time.perf_counter(), time.time_ns())
        # After the answer is sent, so that it does not wait for metrics. Not later: it would delay the next review.
        asyncio.get_running_loop().call_soon(self._record, request.path, review, admission, began, ended)
        return reply

    def _malformed(self, path: str, error: MalformedReview) -> Reply:
        self._metrics.answered(path, "malformed", 0.0)
        _LOG.warning("a malformed review at %s: %s", path, error)
        if not error.uid:
            return Reply.text(f"{error}; send an admission.k8s.io/v1 AdmissionReview", 400)
        return Reply(encode_answer(error.uid, Answer(warnings=(f"kopt could not read it: {error}",))))

    def _record(self, path: str, review: Review, admission: Admission, began: _Timestamp, ended: _Timestamp) -> None:
        self._metrics.answered(path, _outcome(admission), ended.clock_s - began.clock_s)
        if review.dry_run:
            return
        if admission.trace is not None and self._spans.wanted:
            kind = review.kind.lower()
            about = {"k8s.namespace.name": review.namespace} | name_attributes(review.group, review.kind, review.name)
            self._spans.record(Span(f"admit {kind}", admission.trace, began.unix_ns, ended.unix_ns, about))
        self._metrics.decided(admission.records)
        if admission.records and DECISIONS.isEnabledFor(logging.INFO):
            DECISIONS.info(
                "%s %s/%s",
                review.kind,
                review.namespace,
                review.name,
                extra={
                    "decision": {
                        "user": review.user,
                        "operation": review.operation,
                        "uid": review.uid,
                        "refused": bool(admission.answer.refusal),
                        "patch": list(admission.answer.patch),
                        "reasons": [
                            {
                                "row": record.row,
                                "code": record.code,
                                "mode": record.mode.value,
                                "message": record.message,
                            }
                            for record in admission.records
                        ],
                    }
                },
            )

    def _probe(self, request: Request) -> Reply:
        if request.path == "/healthz":
            return Reply.text("ok")
        if request.path == "/readyz":
            ready = bool(self.port) and self._ready() and not self._reviews.draining
            return Reply.text("ready") if ready else Reply.text("not ready", 503)
        if request.path == "/metrics":
            return Reply(self._metrics.exposition(), content_type=_EXPOSITION)
        return Reply.text("there are /healthz, /readyz and /metrics", 404)


def _largest_body(path: str) -> int:
    return LARGEST_REVIEW_BYTES if path in _PATHS else SMALL_BODY_BYTES


def _failed(review: Review) -> Admission:
    """A fault of ours must not cost a pod."""
    _LOG.exception("%s %s/%s is admitted without evaluation", review.kind, review.namespace, review.name)
    return FAILED


def _outcome(admission: Admission) -> str:
    if admission is FAILED:
        return "failed"
    return "refused" if admission.answer.refusal else "patched" if admission.answer.patch else "unchanged"
