"""The pages ``/login`` and ``/logout``."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment
from starlette.exceptions import HTTPException

from kopt.dashboard.forms import form_of
from kopt.dashboard.login.authority import Authority, AuthorityError
from kopt.dashboard.login.oidc import Oidc, OidcError, pending_of
from kopt.dashboard.login.sessions import Session, Sessions, SessionTooLongError

LASTS_S = 8 * 3600.0
_NEVER_S = 86_400
"""A form is not refreshed while somebody fills it in."""
PENDING_S = 600
"""How long a login at a provider may take."""
_PENDING = "-login"
_LONGEST_FORM = 32 << 10
_NO_STORE = {"cache-control": "no-store"}


@dataclass(frozen=True)
class Login:
    """How one logs in. ``audience`` is what tokens have to be issued for; empty: the API server's own."""

    authority: Authority
    sessions: Sessions
    audience: str = ""
    oidc: Oidc | None = None
    """A provider that readers may log in with, beside tokens."""
    clock: Callable[[], float] = time.time


class LoginRoutes:
    """Of one ``Login``, with the pages' templates."""

    def __init__(self, login: Login, templates: Environment) -> None:
        self._login, self._templates = login, templates

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/login", self.show, methods=["GET", "HEAD"], response_model=None)
        app.add_api_route("/login", self.enter, methods=["POST"], response_model=None)
        app.add_api_route("/logout", self.leave, methods=["POST"], response_model=None)
        if self._login.oidc is not None:
            app.add_api_route("/login/oidc", self.to_provider, methods=["GET"], response_model=None)
            app.add_api_route("/login/oidc/callback", self.from_provider, methods=["GET"], response_model=None)

    async def show(self, request: Request) -> Response:
        return self._page(inside(request.query_params.get("next", "")))

    async def enter(self, request: Request) -> Response:
        """Takes a token of the cluster. Raises HTTPException 403 for a form of another site."""
        fields = parse_qs(await _own_form(request))
        token, then = fields.get("token", [""])[-1].strip(), inside(fields.get("next", [""])[-1])
        try:
            user = await self._login.authority.user_of(token)
        except AuthorityError as error:
            return self._page(then, str(error), 503)
        if user is None:
            return self._page(then, "This token is not valid here, or no longer.", 401)
        return self.begin(Session(self._login.clock() + LASTS_S, token=token), then)

    async def to_provider(self, request: Request) -> Response:
        """To the provider, with a note of what was begun."""
        assert self._login.oidc is not None
        then = inside(request.query_params.get("next", ""))
        try:
            address, pending = await self._login.oidc.begin(then)
        except OidcError as error:
            return self._page(then, str(error), 503)
        answer = RedirectResponse(address, 303, _NO_STORE)
        self._set(answer, _PENDING, self._login.sessions.seal(pending.text()), PENDING_S)
        return answer

    async def from_provider(self, request: Request) -> Response:
        """Back from the provider."""
        assert self._login.oidc is not None
        sealed = request.cookies.get(self._name(_PENDING), "")
        try:
            pending = pending_of(self._login.sessions.unsealed(sealed, PENDING_S))
        except ValueError:
            return self._page("/", "This login was not begun in this browser, or too long ago; log in again.", 400)
        try:
            user = await self._login.oidc.finish(pending, dict(request.query_params))
        except OidcError as error:
            return self._page(pending.then, str(error), 401)
        answer = self.begin(Session(self._login.clock() + LASTS_S, user=user), inside(pending.then))
        self._forget(answer, _PENDING)
        return answer

    def _name(self, purpose: str) -> str:
        return self._login.sessions.cookie + purpose

    def _set(self, answer: Response, purpose: str, value: str, lasts_s: int) -> None:
        secure = self._login.sessions.secure
        answer.set_cookie(
            self._name(purpose), value, max_age=lasts_s, path="/", secure=secure, httponly=True, samesite="lax"
        )

    def _forget(self, answer: Response, purpose: str) -> None:
        secure = self._login.sessions.secure
        answer.delete_cookie(self._name(purpose), path="/", secure=secure, httponly=True, samesite="lax")

    def begin(self, session: Session, then: str) -> Response:
        """To the page that was wanted, with a cookie."""
        sessions = self._login.sessions
        try:
            value = sessions.sealed(session)
        except SessionTooLongError as error:
            text = f"The login does not fit into a cookie ({error}): the token, or the list of groups, is too long."
            return self._page(then, text, 400)
        answer = RedirectResponse(then, 303, _NO_STORE)
        self._set(answer, "", value, round(session.until_s - self._login.clock()))
        return answer

    async def leave(self, request: Request) -> Response:
        await _own_form(request)
        answer = RedirectResponse("/login", 303, _NO_STORE)
        self._forget(answer, "")
        return answer

    def _page(self, then: str, problem: str = "", status: int = 200) -> Response:
        audience = f" --audience={self._login.audience}" if self._login.audience else ""
        command = f"kubectl create token ACCOUNT -n NAMESPACE{audience} --duration=8h"
        text = self._templates.get_template("login.html").render(
            then=then,
            problem=problem,
            command=command,
            provider=None if self._login.oidc is None else urlsplit(self._login.oidc.settings.issuer).hostname,
            path="/login",
            refresh_s=_NEVER_S,
        )
        return HTMLResponse(text, status, headers=_NO_STORE)


async def _own_form(request: Request) -> str:
    """Raises HTTPException 403 for a form of another site, 413 for a huge one."""
    form = await form_of(request, _LONGEST_FORM)
    if form is None:
        raise HTTPException(413)
    return form


def inside(address: str) -> str:
    """An address of these pages; ``/`` for anything that a browser might take for another site's."""
    parts = urlsplit(address) if len(address) <= 2000 and address.isprintable() else None
    if parts is None or parts.scheme or parts.netloc or not address.startswith("/"):
        return "/"
    # Browsers read a backslash as a slash: //elsewhere and /\elsewhere lead away.
    if address[1:2] in ("/", "\\"):
        return "/"
    return quote(address, safe="/?&=%:@,+~-._!$'()*;")
