"""Protection of a replica: large or slow bodies, too many concurrent requests, uncaught errors."""

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kopt.serving.contract.common import DEADLINE_HEADER, MAX_BODY_BYTES
from kopt.serving.http.deadline import Deadline
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.problems import Problem, invalid
from kopt.serving.http.sharing import Shares, address_of

_LOG = logging.getLogger(__name__)
DEADLINE_S = 5.0
"""For callers that name none."""
_LONGEST_DEADLINE_S = 60.0
_BODY_WITHIN_S = 10.0
MOST_BUFFERED_BYTES = 256 << 20
"""Of all bodies that are being received or answered."""
CALLER = "kopt.caller"
"""In the scope: the name of a caller who authenticated."""
_BODY = "kopt.body"
_RELEASE = "kopt.release"
"""In the scope: releases what `Gate` counts for the request's address."""
_ALWAYS = ("/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready")
"""Answered however busy the replica is: probes must not kill a replica because it is busy."""


class Gate:
    """ASGI middleware: 429 beyond ``most`` requests at once or an address's share of them, 500 as a problem document,
    counts and times. An address counts until `FairShare` knows the caller: many callers may stand behind one."""

    def __init__(self, app: ASGIApp, metrics: EndpointMetrics, most: int) -> None:
        self._app, self._metrics, self._most = app, metrics, most
        self._shares, self._now = Shares(most), 0

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
            if route in _ALWAYS:
                await self._guarded(scope, receive, noting_status)
            else:
                await self._shared(scope, receive, noting_status)
        finally:
            self._now -= 1
            self._metrics.in_flight.set(self._now)
            self._count(scope, status, time.perf_counter() - started)

    async def _shared(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = address_of(scope)
        if not self._shares.acquire(address):
            await _overloaded(self._shares, self._most).response()(scope, receive, send)
            return
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._shares.release(address)

        scope[_RELEASE] = release
        try:
            await self._guarded(scope, receive, send)
        finally:
            release()

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
        result = scope.get("route")
        route = getattr(result, "path", "other") if result is not None else "other"
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)


class FairShare:
    """ASGI middleware behind `Identity`: a caller's share of ``most`` requests at once, and of buffered bytes."""

    def __init__(self, app: ASGIApp, most: int, most_bytes: int = MOST_BUFFERED_BYTES) -> None:
        self._app, self._most = app, most
        self._requests, self._bytes = Shares(most), Shares(most_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS:
            await self._app(scope, receive, send)
            return
        caller = str(scope.get(CALLER) or "") or address_of(scope)
        if not self._requests.acquire(caller):
            await _overloaded(self._requests, self._most).response()(scope, receive, send)
            return
        release: Callable[[], None] | None = scope.get(_RELEASE)
        if release is not None:
            release()
        body = scope[_BODY] = _Body(self._bytes, caller)
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests.release(caller)
            body.forget()


class _Body:
    """The buffered bytes of one request."""

    def __init__(self, shares: Shares, caller: str) -> None:
        self._shares, self._caller, self._size = shares, caller, 0

    def grow(self, size: int) -> None:
        """Raises Problem 429 past the caller's share."""
        if not self._shares.acquire(self._caller, size):
            text = "Your requests hold their share of the memory for bodies; send fewer at once, or smaller ones."
            raise Problem(429, text, headers={"retry-after": "1"})
        self._size += size

    def forget(self) -> None:
        if self._size:
            self._shares.release(self._caller, self._size)
            self._size = 0


def _overloaded(shares: Shares, most: int) -> Problem:
    whose = f"{most} requests are" if shares.total >= most else "Your share of the requests is"
    return Problem(429, f"{whose} being answered already; try again in a second.", headers={"retry-after": "1"})


async def read_json(request: Request) -> bytes:
    """The body of a JSON request. Raises Problem 415, 413 or 408."""
    headers = request.headers
    _require_json(headers)
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    chunks, size = [], 0
    kept: _Body | None = request.scope.get(_BODY)
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                if kept is not None:
                    kept.grow(len(chunk))
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
        budget_s = float(text) / 1000
    except ValueError:
        raise invalid(DEADLINE_HEADER, "a deadline is a number of milliseconds") from None
    if not 0 <= budget_s <= _LONGEST_DEADLINE_S:
        raise invalid(DEADLINE_HEADER, f"a deadline lies between 0 and {_LONGEST_DEADLINE_S * 1000:g} ms")
    return Deadline(arrived_s + budget_s, budget_s)
