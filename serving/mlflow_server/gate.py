"""Access control for MLflow: a secret, known host names, and an allow-list of routes.

MLflow itself asks for nothing, and among its routes are some that read and write files, call other servers and run
commands. Every user of a machine reaches its loopback; only those who can read the home have the secret.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

USER = "kopt"
"""Of HTTP's basic authentication; any name will do."""
HEALTH = "/health"
_CHALLENGE = 'Basic realm="MLflow of this home", charset="UTF-8"'
_PARTS = (
    "artifacts/list|datasets|experiments|logged-models|metrics|model-versions|registered-models|runs|server-info|"
    "traces|get-trace-artifact|unified-traces"
)
ROUTES = re.compile(
    r"/|/version|/graphql|/static-files/.+|/get-artifact|/model-versions/get-artifact|"
    rf"/(?:ajax-)?api/[23]\.0/mlflow/(?!runs/create-promptlab-run)(?:{_PARTS})(?:/.*)?"
)
"""Everything but MLflow's gateway, assistant, jobs, scorers, webhooks, artifact proxy and uploads."""


class Gate:
    """ASGI middleware around MLflow's application. ``hosts`` are names accepted in the Host header, without port.

    Clients send the secret as bearer token (``MLFLOW_TRACKING_TOKEN``) or as the password of basic authentication.
    The latter is what browsers ask for and keep by scheme, host *and port*: a cookie would also go to every other
    server on loopback, whoever runs it.
    """

    def __init__(self, app: ASGIApp, *, secret: str, hosts: Collection[str], routes: re.Pattern[str] = ROUTES) -> None:
        self._app, self._secret, self._routes = app, secret.encode(), routes
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http" and (refusal := self._refuse(scope, Headers(scope=scope))) is not None:
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        hosts, path = headers.getlist("host"), scope["path"]
        if len(hosts) != 1 or _name(hosts[0]) not in self._hosts:
            return PlainTextResponse("421: MLflow does not answer under this host name", 421)
        if path == HEALTH and scope["method"] == "GET":
            return None
        if not self._is_authorized(headers.getlist("authorization")):
            text = "401: MLflow of this home asks for a secret; `kopt mlflow` shows it to the home's owner"
            return PlainTextResponse(text, 401, {"www-authenticate": _CHALLENGE})
        if not _is_own(headers, scope["method"], path):
            return PlainTextResponse("403: another web page may not ask MLflow", 403)
        if not self._routes.fullmatch(path):
            return PlainTextResponse(f"403: kopt does not serve {path} of MLflow", 403)
        return None

    def _is_authorized(self, values: list[str]) -> bool:
        if len(values) != 1:
            return False
        kind, _, credentials = values[0].partition(" ")
        presented = credentials.strip()
        if kind.lower() == "basic":
            presented = _password(presented)
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(presented.encode(), self._secret)


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _is_own(headers: Headers, method: str, path: str) -> bool:
    """A browser adds the password to requests of any page: only MLflow's own may, and a link may open its first."""
    site = headers.get("sec-fetch-site", "none")
    opened = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not opened:
        return False
    return headers.get("origin", f"http://{headers['host']}") == f"http://{headers['host']}"


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    return name.lower() if port == "" or (port.isascii() and port.isdigit()) else ""
