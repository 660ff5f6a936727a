"""Logging in with a provider of OpenID Connect: the authorization code flow with PKCE (Core 1.0; RFC 7636).

The name and the groups of an ID token become a user of the cluster by the same rules as ``--oidc-*`` of its API
server, so that RBAC means the same person. Between the two steps the browser keeps an encrypted note, and nothing is
kept here.
"""

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from kopt.dashboard.login.authority import User

_LOG = logging.getLogger(__name__)
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by the provider's key; none by a shared secret."""
_LEEWAY_S = 30
_TIMEOUT_S = 10.0
_KEPT_S = 3600.0
"""How long the provider's addresses and keys are kept; an unknown key is looked up at once."""
_RESERVED = "system:"


class OidcError(Exception):
    """The login failed; the message is for its reader."""


@dataclass(frozen=True)
class OidcSettings:
    """Claims and prefixes as the API server has them (``--oidc-username-claim`` and its like)."""

    issuer: str
    client_id: str
    client_secret: str
    callback: str
    """The address of ``/login/oidc/callback`` as browsers reach it."""
    username_claim: str = "email"
    username_prefix: str = ""
    groups_claim: str = "groups"
    groups_prefix: str = ""
    scopes: str = "openid email profile groups"

    def __post_init__(self) -> None:
        for address in (self.issuer, self.callback):
            parts = urlsplit(address)
            if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
                raise ValueError(f"{address!r} is not an https address")
        if not self.client_id:
            raise ValueError("the client's id is empty")


@dataclass(frozen=True)
class Pending:
    """A login that was begun, as the browser keeps it."""

    state: str
    nonce: str
    verifier: str
    then: str

    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


class Oidc:
    """One provider. Methods raise OidcError."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.time) -> None:
        self.settings, self._clock = settings, clock
        self._provider: Mapping[str, Any] = {}
        self._keys: KeySet | None = None
        self._read_at_s = float("-inf")
        self._reading = asyncio.Lock()

    async def begin(self, then: str) -> tuple[str, Pending]:
        """The provider's address to go to, and what the browser has to keep until it returns."""
        pending = Pending(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(64), then)
        provider = await self._addresses()
        async with self._client() as client:
            address, _ = client.create_authorization_url(
                provider["authorization_endpoint"],
                state=pending.state,
                nonce=pending.nonce,
                code_verifier=pending.verifier,
            )
        return address, pending

    async def finish(self, pending: Pending, answer: Mapping[str, str]) -> User:
        """Who it is, by the query that the provider sent the browser back with."""
        if not hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise OidcError("This login was not begun in this browser, or twice; log in again.")
        if "code" not in answer:
            raise OidcError(f"The provider refused the login ({answer.get('error', 'no code')[:80]}).")
        provider = await self._addresses()
        try:
            async with self._client() as client:
                token = await client.fetch_token(
                    provider["token_endpoint"], code=answer["code"], code_verifier=pending.verifier
                )
        except (AuthlibBaseError, httpx.HTTPError, ValueError) as error:
            raise _failed("The provider does not confirm the login.", error) from error
        return self._user(await self._claims(str(token.get("id_token", "")), pending.nonce))

    def _client(self) -> AsyncOAuth2Client:
        settings = self.settings
        return AsyncOAuth2Client(
            settings.client_id,
            settings.client_secret,
            scope=settings.scopes,
            redirect_uri=settings.callback,
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
        )

    async def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        for attempt in range(2):
            provider = await self._addresses(again=attempt > 0)
            try:
                claims = jwt.decode(token, self._keys or KeySet([]), algorithms=ALGORITHMS).claims
                registry = jwt.JWTClaimsRegistry(
                    now=lambda: int(self._clock()),
                    leeway=_LEEWAY_S,
                    iss={"essential": True, "value": provider["issuer"]},
                    aud={"essential": True, "value": self.settings.client_id},
                    exp={"essential": True},
                    iat={"essential": True},
                    nonce={"essential": True, "value": nonce},
                )
                registry.validate(claims)
            except (JoseError, ValueError) as error:
                # It may have been signed with a key that is newer than those that are kept.
                if attempt:
                    raise _failed("The provider's answer is not signed as it should be.", error) from error
            else:
                return dict(claims)
        raise AssertionError("unreachable")

    def _user(self, claims: Mapping[str, Any]) -> User:
        settings = self.settings
        name = claims.get(settings.username_claim)
        if not isinstance(name, str) or not name:
            raise OidcError(f"The provider says no {settings.username_claim!r}; ask for it in its client's settings.")
        if settings.username_claim == "email" and claims.get("email_verified", True) is not True:
            raise OidcError("The provider has not verified the email address.")
        groups = claims.get(settings.groups_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise OidcError(f"The provider's {settings.groups_claim!r} is no list of names.")
        user = User(settings.username_prefix + name, "", tuple(settings.groups_prefix + group for group in groups))
        # Names of the cluster's own: nobody may become system:masters by what a provider says.
        if any(each.startswith(_RESERVED) for each in (user.name, *user.groups)):
            raise OidcError(f"Names and groups that begin with {_RESERVED} are the cluster's own; set a prefix.")
        # As the API server has them: everybody who is logged in.
        return replace(user, groups=(*user.groups, "system:authenticated"))

    async def _addresses(self, *, again: bool = False) -> Mapping[str, Any]:
        async with self._reading:
            if self._keys is None or again or self._clock() - self._read_at_s > _KEPT_S:
                try:
                    await self._read()
                except (httpx.HTTPError, JoseError, ValueError, KeyError, TypeError) as error:
                    raise _failed("The login provider does not answer as one does.", error) from error
            return self._provider

    async def _read(self) -> None:
        issuer = self.settings.issuer
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as http:
            answer = await http.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            provider = answer.raise_for_status().json()
            if provider["issuer"] != issuer:
                raise ValueError(f"it calls itself {provider['issuer']!r}")
            keys = KeySet.import_key_set((await http.get(provider["jwks_uri"])).raise_for_status().json())
        self._provider, self._keys, self._read_at_s = provider, keys, self._clock()


def pending_of(text: str) -> Pending:
    """What ``Pending.text`` wrote. Raises ValueError."""
    try:
        return Pending(**{key: str(value) for key, value in json.loads(text).items()})
    except (TypeError, AttributeError) as error:
        raise ValueError("not a login that was begun") from error


def _failed(sentence: str, error: Exception) -> OidcError:
    # What a provider answers may hold secrets: the class of the error is enough for the log.
    _LOG.warning("login with OpenID Connect: %s (%s)", sentence, type(error).__name__)
    return OidcError(f"{sentence} Try again, or ask whoever runs these pages: their log says why.")
