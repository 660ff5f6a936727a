"""Lets requests with a session through, and sends the others to the login."""

from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kopt.dashboard.login.authority import Authority, AuthorityError, User
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.problem import problem_document

USER = "kopt.user"
"""Of the request's scope: who asks."""
PUBLIC = ("/healthz", "/metrics", "/login", "/logout")
_PUBLIC_FOLDERS = ("/static/", "/login/")
INTERFACE = "/v1/"
"""Below it programs ask, with a token each time: no other page can make a browser send one."""
_CHALLENGE = {"www-authenticate": 'Bearer realm="kopt"'}


class LoginRequired:
    """ASGI middleware. ``/static/``, the login itself and the probes are for everybody; below ``/v1/`` a bearer token
    takes the place of a session, as on the login."""

    def __init__(self, app: ASGIApp, authority: Authority, sessions: Sessions) -> None:
        self._app, self._authority, self._sessions = app, authority, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC or scope["path"].startswith(_PUBLIC_FOLDERS):
            await self._app(scope, receive, send)
            return
        try:
            is_program = scope["path"].startswith(INTERFACE)
            user = await (self._bearer(scope) if is_program else self._user(HTTPConnection(scope)))
        except AuthorityError as error:
            await problem_document(503, "The cluster does not answer", str(error))(scope, receive, send)
            return
        if user is None:
            await self._to_login(scope)(scope, receive, send)
            return
        scope[USER] = user
        await self._app(scope, receive, send)

    async def _user(self, connection: HTTPConnection) -> User | None:
        session = self._sessions.opened(connection.cookies.get(self._sessions.cookie, ""))
        if session is None:
            return None
        return session.user or await self._authority.user_of(session.token)

    async def _bearer(self, scope: Scope) -> User | None:
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        return await self._authority.user_of(token.strip()) if kind.lower() == "bearer" else None

    def _to_login(self, scope: Scope) -> Response:
        if scope["path"].startswith(INTERFACE):
            text = "Send a token that the pages accept: Authorization: Bearer …"
            return problem_document(401, "Who asks?", text, _CHALLENGE)
        if scope["path"].startswith("/data/") or scope["method"] not in ("GET", "HEAD"):
            return problem_document(401, "Log in", "The session has ended; log in at /login.")
        query = scope["query_string"].decode("ascii", "replace")
        address = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(address, safe='')}", 303, {"cache-control": "no-store"})


def user_of(scope: Scope) -> User | None:
    """Who asks; None where nobody logs in."""
    user: User | None = scope.get(USER)
    return user
