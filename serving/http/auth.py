"""Who calls the endpoint. In a cluster (``KOPT_AUTH=token``) callers show a bearer token that the API server reviews.

A caller needs the right to use the path: RBAC ``nonResourceURLs: ["/v1/*", "/v2/*"]`` with verbs get and post. What
the endpoint stores about series and advice belongs to the caller; reading other callers' needs the verb list.
Sizes may be stored for a namespace as well: evidence for it is accepted only from callers who may patch its Jobs, and
who could therefore change their requests anyway.
"""

import functools
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kopt.cluster.client.errors import ApiError
from kopt.core.settings import Settings
from kopt.serving.http.limits import CALLER
from kopt.serving.http.problems import Problem

if TYPE_CHECKING:
    # At run time only where callers authenticate: it brings the Kubernetes client.
    from kopt.cluster.client.auth_reviews import Caller

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
OPEN = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v2/health/live", "/v2/health/ready")
"""Open to all callers: probes, metrics (which a network policy limits to scrapers) and the documentation."""
PAIRWISE = "/v1/bandwidth/pairs"
RUNTIME_QUEUES = "/v1/runtime/queues"
AUDIT = "/v1/audit"
HEALTH = ("/v1/health/models", "/v1/health/predictors")
BYCALLER = ("/v1/recommendations", *HEALTH, "/v1/checkpoint", PAIRWISE, RUNTIME_QUEUES, AUDIT)
"""Paths that show what is kept by caller; the verb list (no HTTP method) on one is the right to see all callers'."""
_SEES_ALL = "kopt.sees-all"
_RIGHTS = "kopt.rights"
_MAY = "kopt.may"
_CHALLENGE = {"www-authenticate": 'Bearer realm="kopt"'}


class Reviewer(Protocol):
    """What ``cluster.client.auth_reviews.TokenReviewer`` does. Raises ApiError when the API server cannot be asked."""

    async def caller(self, token: str) -> "Caller | None": ...

    async def may(self, caller: "Caller", verb: str, path: str) -> bool: ...

    async def may_on_jobs(self, caller: "Caller", verb: str, namespace: str) -> bool: ...


class Identity:
    """ASGI middleware: 401 without a valid token, 403 without the right; ``caller_of`` tells the rest who it is."""

    def __init__(self, app: ASGIApp, reviewer: Reviewer) -> None:
        self._app, self._reviewer = app, reviewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._identify(scope)
            scope[CALLER] = caller.name
            scope[_RIGHTS] = functools.partial(self._reviewer.may_on_jobs, caller)
            scope[_MAY] = functools.partial(self._reviewer.may, caller)
            scope[_SEES_ALL] = scope["path"] in BYCALLER and await self._may(caller, "list", scope["path"])
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _identify(self, scope: Scope) -> "Caller":
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Problem(401, "Send a service account's token: Authorization: Bearer …", headers=_CHALLENGE)
        caller = await _reviewed(self._reviewer.caller(token.strip()))
        if caller is None:
            raise Problem(401, "The token is not valid, or no longer; get a new one.", headers=_CHALLENGE)
        verb, path = scope["method"].lower(), scope["path"]
        if not await self._may(caller, verb, path):
            raise Problem(
                403, f"{caller.name} may not {verb} {path}: bind a ClusterRole with these nonResourceURLs to it."
            )
        return caller

    async def _may(self, caller: "Caller", verb: str, path: str) -> bool:
        return await _reviewed(self._reviewer.may(caller, verb, path))


async def _reviewed(question: Awaitable[T]) -> T:
    try:
        return await question
    except ApiError as error:
        # Fails closed. The API server's message may be about our own rights, so only the log has it.
        _LOG.warning("the API server does not review tokens: %s", error)
        text = "The API server does not review tokens now; try again."
        raise Problem(503, text, headers={"retry-after": "2"}) from None


def caller_of(request: Request) -> str:
    """The caller's name; empty where callers do not authenticate."""
    return str(request.scope.get(CALLER, ""))


async def answering_namespace(request: Request, namespace: str | None, *, tells: bool) -> str:
    """The namespace whose evidence counts for a request; empty without authentication or without a namespace.

    ``tells``: the request brings evidence. Raises Problem 403 without the right, 503 where it cannot be reviewed.
    """
    rights: Callable[[str, str], Awaitable[bool]] | None = request.scope.get(_RIGHTS)
    if rights is None or not namespace:
        return ""
    verb = "patch" if tells else "list"
    if not await _reviewed(rights(verb, namespace)):
        what = "tell what the jobs of" if tells else "ask about the jobs of"
        text = f"{caller_of(request)} may not {what} namespace {namespace} need: it needs the right to {verb} its Jobs."
        raise Problem(403, text)
    return namespace


async def sees_all_measurements(request: Request, path: str = PAIRWISE) -> bool:
    """Whether answers to the caller may rest on every caller's measured pairs, or on what else ``path`` shows: the verb
    list on it; everybody where callers do not authenticate. Raises Problem 503 where nobody can say."""
    may: Callable[[str, str], Awaitable[bool]] | None = request.scope.get(_MAY)
    return may is None or await _reviewed(may("list", path))


def visible_owner(request: Request) -> str | None:
    """Whose histories and advice the caller may see: its own name, or None for everybody's."""
    return None if request.scope.get(_SEES_ALL) else caller_of(request)


def reviewer_from(settings: Settings) -> Reviewer | None:
    """Asks the cluster that the environment names; None with ``auth`` = none. Raises NoCluster."""
    if settings.auth == "none":
        return None
    from kopt.cluster.client.api import Kube, KubeSettings
    from kopt.cluster.client.auth_reviews import ReviewSettings, TokenReviewer
    from kopt.cluster.client.credentials import find_access

    kube = Kube(find_access(None, os.environ), KubeSettings(timeout_s=3.0, user_agent="kopt-serving"))
    audiences = tuple(part.strip() for part in settings.auth_audiences.split(",") if part.strip())
    return TokenReviewer(kube, ReviewSettings(audiences=audiences))
