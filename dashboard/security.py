"""What stands around every answer: host check, security headers, counts, and an error page without a trace.

The host check keeps a foreign web page from reading these pages through a name of its own that resolves to loopback
(DNS rebinding).
"""

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kopt.dashboard.events import MEDIA_TYPE

LOG = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SECURITY_HEADERS = {
    # Plotly writes its own style rules; everything else comes from files of this server.
    "content-security-policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class PageMetrics:
    """Counters of this process in a registry of their own."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    seconds: Histogram = field(init=False)
    errors: Counter = field(init=False)

    def __post_init__(self) -> None:
        made = {
            "requests": Counter(
                "kopt_pages_requests_total", "Answers by route and status.", ["route", "status"], registry=self.registry
            ),
            "seconds": Histogram(
                "kopt_pages_request_seconds", "Time to answer, by route.", ["route"], registry=self.registry
            ),
            "errors": Counter(
                "kopt_pages_errors_total", "Requests that ended in an unforeseen error.", registry=self.registry
            ),
        }
        for name, metric in made.items():
            object.__setattr__(self, name, metric)


class Guard:
    """ASGI middleware. ``hosts`` are names accepted in the Host header, without port."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], metrics: PageMetrics) -> None:
        self._app, self._hosts, self._metrics = app, {host.lower() for host in hosts}, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, is_stream = time.perf_counter(), 500, False

        async def counted(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-cache")
                is_stream = headers.get("content-type", "").startswith(MEDIA_TYPE)
            await send(message)

        try:
            if host_of(Headers(scope=scope).get("host", "")) in self._hosts:
                await self._app(scope, receive, counted)
            else:
                await _refused(scope, receive, counted)
        except Exception:
            self._metrics.errors.inc()
            raise
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.requests.labels(route, str(status)).inc()
            if not is_stream:
                # One that goes on while a page is open says nothing about how long an answer takes.
                self._metrics.seconds.labels(route).observe(time.perf_counter() - begun)


def host_of(header: str) -> str:
    """The name in a Host header in lower case, IPv6 addresses in brackets; empty for anything malformed."""
    name, colon, port = header.rpartition(":")
    if not colon or header.endswith("]"):
        name, port = header, ""
    return name.lower() if port == "" or (port.isascii() and port.isdigit()) else ""


async def _refused(scope: Scope, receive: Receive, send: Send) -> None:
    text = (
        "421: these pages do not answer under this host name. Open them under the address that `kopt up` printed, or "
        "name the host in KOPT_PAGES_HOSTS."
    )
    await PlainTextResponse(text, 421)(scope, receive, send)


def allowed_hosts(host: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Loopback's names, the interface the pages listen on, and those named by the operator."""
    own = (f"[{host}]" if ":" in host else host,) if host not in ("", "0.0.0.0", "::") else ()
    return (*LOOPBACK, *own, *(name for name in more if name))
