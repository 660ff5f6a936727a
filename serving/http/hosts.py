"""Under which names the endpoint answers.

A foreign web page may have a name of its own resolve to this machine, or into this network, and read the answers as its
own (DNS rebinding). The browser still sends that name in the Host header; whoever asks by an address or by a name that
only we have is none of these.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kopt.core.settings import Settings
from kopt.serving.http.problems import Problem

_CLUSTER = (".svc", ".svc.cluster.local", ".localhost")
_MOST_CHARS = 261
"""A name of 255 and a port."""


class HostCheck:
    """ASGI middleware: 421 for requests under a foreign name. ``names`` are those of the operator."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only clients that are no browser leave it out.
        requested = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        if all(self._answers(host) for host in requested) and len(requested) <= 1:
            await self._app(scope, receive, send)
            return
        text = "This endpoint does not answer under this name. Ask by its address, or name the host in KOPT_HOSTS."
        await Problem(421, text).response()(scope, receive, send)

    def _answers(self, header: str) -> bool:
        name = name_in(header)
        return bool(name) and (name in self._names or _is_near(name))


def name_in(header: str) -> str:
    """The name or address in a Host header, in lower case, without port and brackets; empty for anything malformed."""
    if len(header) > _MOST_CHARS or any(char in header for char in "/@?#\\") or not header.isprintable():
        return ""
    try:
        parts = urlsplit(f"//{header}")
        port = parts.port  # Raises ValueError for what is none.
    except ValueError:
        return ""
    return (parts.hostname or "").rstrip(".") if port is None or port >= 0 else ""


def names_of(settings: Settings) -> tuple[str, ...]:
    """What the operator has named: hosts, interface and the endpoint's own URL."""
    named = [name.strip() for name in settings.hosts.split(",")]
    return tuple(name for name in (*named, settings.api_host, urlsplit(settings.url).hostname or "") if name)


def _is_near(name: str) -> bool:
    """An address, a Service of this cluster, or a name without a dot, which no public name server answers for."""
    if "." not in name or name.endswith(_CLUSTER):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
