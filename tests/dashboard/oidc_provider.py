"""A small provider of OpenID Connect over real HTTP: whoever comes is ``claims``, and is asked for no password."""

import base64
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT_ID, CLIENT_SECRET = "kopt-pages", "secret of the client: %&"


def new_key(name: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


@dataclass
class Provider:
    """``changes`` are put into ID tokens in place of what is right; ``published`` keys can be others than the one that
    signs."""

    claims: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    name: str = ""
    key: RSAKey = field(default_factory=lambda: new_key("first"))
    published: list[RSAKey] = field(default_factory=list)
    refuses: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.configuration),
                Route("/keys", self.keys),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
            ]
        )

    async def configuration(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.name or self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
            }
        )

    async def keys(self, _: Request) -> Response:
        return JSONResponse(KeySet(self.published or [self.key]).as_dict(private=False))

    async def authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        if self.refuses:
            return _back(query, error=self.refuses)
        assert (query["client_id"], query["response_type"]) == (CLIENT_ID, "code")
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return _back(query, code=code)

    async def token(self, request: Request) -> Response:
        form = {key: values[-1] for key, values in parse_qs((await request.body()).decode()).items()}
        asked = self.codes.pop(form.get("code", ""), None)
        wanted = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or request.headers.get("authorization") != f"Basic {wanted}":
            return JSONResponse({"error": "invalid_client"}, 401)
        if challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now_s = int(time.time())
        claims = {"iss": self.url, "sub": "1", "aud": CLIENT_ID, "iat": now_s, "exp": now_s + 300}
        claims |= {"nonce": asked["nonce"], **self.claims, **self.changes}
        token = jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": token})


def _back(query: dict[str, str], **answer: str) -> Response:
    return RedirectResponse(f"{query['redirect_uri']}?{urlencode({**answer, 'state': query['state']})}", 302)
