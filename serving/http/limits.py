"""What a replica protects itself from: large or slow bodies, too many requests at once, errors nobody caught."""

import asyncio
import logging
import time

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kopt.serving.metrics import EndpointMetrics
from kopt.serving.problems import Problem, invalid
from kopt.serving.wire import DEADLINE_HEADER, MAX_BODY_BYTES
from kopt.serving.workers import Deadline

_LOG = logging.getLogger(__name__)
DEADLINE_S = 5.0
"""For callers that name none."""
_LONGEST_DEADLINE_S = 60.0
_BODY_WITHIN_S = 10.0
_ALWAYS = ("/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready")
"""Answered however busy the replica is: probes must not kill it for working."""


class Gate:
    """ASGI middleware: 429 beyond ``most`` requests at once, 500 as a problem document, counts and times."""

    def __init__(self, app: ASGIApp, metrics: EndpointMetrics, most: int) -> None:
        self._app, self._metrics, self._most = app, metrics, most
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, route = time.perf_counter(), 500, scope["path"]
        scope["kopt.arrived_s"] = time.monotonic()

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._now += 1
        self._metrics.in_flight.set(self._now)
        try:
            if self._now > self._most and route not in _ALWAYS:
                text = f"{self._most} requests are being answered already; try again in a second."
                await Problem(429, text, headers={"retry-after": "1"}).response()(scope, receive, noting_status)
            else:
                await self._guarded(scope, receive, noting_status)
        finally:
            self._now -= 1
            self._metrics.in_flight.set(self._now)
            self._count(scope, status, time.perf_counter() - started)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting_start(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting_start)
        except Exception:  # noqa: BLE001 - edge: the last place where an error can become an answer
            _LOG.exception("%s %s failed", scope["method"], scope["path"])
            if not begun:
                await Problem(500, "This is a bug; the server's log has it.").response()(scope, receive, send)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # Unknown paths share a label, or a scan of the server would fill its memory.
        found = scope.get("route")
        route = getattr(found, "path", "other") if found is not None else "other"
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)


async def read_json(request: Request) -> bytes:
    """The body of a JSON request. Raises Problem 415, 413 or 408."""
    headers = request.headers
    _require_json(headers)
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    chunks, size = [], 0
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        raise Problem(408, f"The body did not arrive within {_BODY_WITHIN_S:g} s.") from None
    return b"".join(chunks)


def _require_json(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "Send application/json.")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(415, "Compressed bodies are not read; send plain JSON.")


def _too_large() -> Problem:
    return Problem(413, f"The body is larger than {MAX_BODY_BYTES >> 20} MiB; send shorter histories or fewer series.")


def deadline_of(request: Request) -> Deadline:
    """The caller's deadline, counted from the request's arrival. Raises Problem 422 for one that is no number."""
    arrived_s: float = request.scope.get("kopt.arrived_s") or time.monotonic()
    text = request.headers.get(DEADLINE_HEADER)
    if text is None:
        return Deadline(arrived_s + DEADLINE_S, DEADLINE_S)
    try:
        given_s = float(text) / 1000
    except ValueError:
        raise invalid(DEADLINE_HEADER, "a deadline is a number of milliseconds") from None
    if not 0 <= given_s <= _LONGEST_DEADLINE_S:
        raise invalid(DEADLINE_HEADER, f"a deadline lies between 0 and {_LONGEST_DEADLINE_S * 1000:g} ms")
    return Deadline(arrived_s + given_s, given_s)
