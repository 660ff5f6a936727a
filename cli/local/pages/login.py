"""How readers of the pages log in, from the environment: ``KOPT_PAGES_LOGIN`` is ``none`` (the default), ``token`` or
``oidc``, which takes tokens as well.

``KOPT_PAGES_SESSION_KEY_FILE`` holds the key of sessions, ``KOPT_PAGES_URL`` is where readers open the pages, and
``KOPT_PAGES_AUDIENCE`` what their tokens have to be issued for. With OpenID Connect ``KOPT_PAGES_OIDC_ISSUER``,
``…_CLIENT_ID`` and ``…_CLIENT_SECRET_FILE`` name the provider; ``…_USERNAME_CLAIM``, ``…_USERNAME_PREFIX``,
``…_GROUPS_CLAIM`` and ``…_GROUPS_PREFIX`` are those of the API server.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.auth_reviews import Caller, ReviewSettings, TokenReviewer
from kopt.dashboard.data.access import ALL_NAMESPACES, Right
from kopt.dashboard.login.authority import AuthorityError, User
from kopt.dashboard.login.oidc import Oidc, OidcSettings
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions

_LOG = logging.getLogger(__name__)
AUDIENCE = "kopt-pages"
"""Not the API server's own: a token that is typed into a page should be good for nothing else."""
_KINDS = ("none", "token", "oidc")
_OIDC = "KOPT_PAGES_OIDC_"
_CALLBACK = "/login/oidc/callback"


class LoginSettingsError(ValueError):
    """The environment asks for a login that cannot be."""


class ClusterAuthority:
    """The API server says who a token belongs to, and what they may list."""

    def __init__(self, kube: Kube, audience: str) -> None:
        self._reviewer = TokenReviewer(kube, ReviewSettings(audiences=(audience,) if audience else ()))

    async def user_of(self, token: str) -> User | None:
        try:
            caller = await self._reviewer.caller(token)
        except ApiError as error:
            raise _unanswered(error) from error
        return None if caller is None else User(caller.name, caller.uid, caller.groups)

    async def rights_of(self, user: User, rights: Collection[Right]) -> Collection[Right]:
        """What somebody may list in all namespaces they may list in each: most need a single question."""
        caller = Caller(user.name, user.uid, user.groups)
        everywhere = {_everywhere(right) for right in rights}
        held = await self._held(caller, everywhere)
        rest = {right for right in rights if right not in everywhere and _everywhere(right) not in held}
        return {right for right in rights if _everywhere(right) in held} | await self._held(caller, rest)

    async def _held(self, caller: Caller, rights: Collection[Right]) -> set[Right]:
        requested = list(rights)
        try:
            answers = await asyncio.gather(
                *(self._reviewer.may_on(caller, "list", r.group, r.resource, r.namespace) for r in requested)
            )
        except ApiError as error:
            raise _unanswered(error) from error
        return {right for right, may in zip(requested, answers, strict=True) if may}


def login_of(environ: Mapping[str, str], kube: Kube | None) -> Login | None:
    """None where nobody logs in. Raises LoginSettingsError with the variable to set."""
    kind = environ.get("KOPT_PAGES_LOGIN", "") or "none"
    if kind not in _KINDS:
        raise LoginSettingsError(f"KOPT_PAGES_LOGIN is {kind!r}, not one of {', '.join(_KINDS)}")
    if kind == "none":
        return None
    if kube is None:
        raise LoginSettingsError("KOPT_PAGES_LOGIN needs a cluster: run in a pod, or set KUBECONFIG")
    secure = environ.get("KOPT_PAGES_URL", "").startswith("https://")
    if not secure:
        _LOG.warning("KOPT_PAGES_URL is no https address: sessions can be read on the way to the pages")
    try:
        sessions = Sessions(_key(environ), secure=secure)
    except (OSError, ValueError) as error:
        raise LoginSettingsError(
            f"KOPT_PAGES_SESSION_KEY_FILE has to name a file with 32 bytes in URL-safe base64 ({error})"
        ) from error
    audience = environ.get("KOPT_PAGES_AUDIENCE", AUDIENCE)
    oidc = Oidc(_oidc_settings(environ)) if kind == "oidc" else None
    return Login(ClusterAuthority(kube, audience), sessions, audience, oidc)


def _oidc_settings(environ: Mapping[str, str]) -> OidcSettings:
    names = ("username_claim", "username_prefix", "groups_claim", "groups_prefix", "scopes")
    changes = {name: environ[_OIDC + name.upper()] for name in names if environ.get(_OIDC + name.upper())}
    secret = environ.get(f"{_OIDC}CLIENT_SECRET_FILE", "")
    try:
        return OidcSettings(
            environ.get(f"{_OIDC}ISSUER", ""),
            environ.get(f"{_OIDC}CLIENT_ID", ""),
            Path(secret).read_text(encoding="utf-8").strip() if secret else "",
            environ.get("KOPT_PAGES_URL", "").rstrip("/") + _CALLBACK,
            **changes,
        )
    except (OSError, ValueError) as error:
        variables = f"{_OIDC}ISSUER, {_OIDC}CLIENT_ID, {_OIDC}CLIENT_SECRET_FILE and KOPT_PAGES_URL"
        raise LoginSettingsError(
            f"{variables} have to name the provider and the address of the pages: {error}"
        ) from error


def _key(environ: Mapping[str, str]) -> str:
    name = environ.get("KOPT_PAGES_SESSION_KEY_FILE", "")
    if not name:
        raise ValueError("it is not set")
    return Path(name).read_text(encoding="ascii").strip()


def _everywhere(right: Right) -> Right:
    return Right(right.group, right.resource, ALL_NAMESPACES)


def _unanswered(error: ApiError) -> AuthorityError:
    # What the API server says may be about our own rights, so only the log has it.
    _LOG.warning("the API server does not say who may see what: %s", error)
    return AuthorityError("The cluster's API server does not answer now; try again.")
