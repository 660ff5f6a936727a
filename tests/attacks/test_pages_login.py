"""Strangers at the pages of a cluster: whatever they send, they see nothing of anybody and change no session."""

import asyncio
import tempfile
from pathlib import Path

import httpx
from cryptography.fernet import Fernet
from hypothesis import given, settings
from hypothesis import strategies as st
from pages_source import FixedSource

from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.login.authority import User
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Session, Sessions
from kopt.dashboard.pages.pages import PAGES
from tests.conformance.test_pages import NOW_S, full
from tests.dashboard.test_login import ADDRESS, KEY, KnownUsers

SECRET = "secret-of-a"
APP = create_app(
    Settings(home=Path(tempfile.gettempdir()) / "kopt-no-home"),
    source=FixedSource(full(f"team-a/{SECRET}")),
    login=Login(KnownUsers(), Sessions(KEY, secure=False)),
)
PATHS = [
    path
    for page in PAGES
    for path in (page.path, *page.aliases, *page.documents, *([page.events] if page.events else []))
]
paths = st.sampled_from(PATHS).map(
    lambda path: (
        path.replace("{name:path}", f"team-a/{SECRET}")
        .replace("{namespace}/{kind}/{name}", f"team-a/job/{SECRET}")
        .replace("{name}", SECRET)
    )
)
visible = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='";,\\'), max_size=400)
of_another_key = Sessions(Fernet.generate_key().decode(), secure=False)
sealed = st.builds(
    lambda user, token: of_another_key.sealed(Session(NOW_S * 2, token=token, user=user)),
    st.none() | st.builds(User, st.just("root"), st.just(""), st.just(("system:masters",))),
    st.just("token-of-root"),
)
headers = st.dictionaries(
    st.sampled_from(["authorization", "x-forwarded-user", "x-remote-user", "impersonate-user", "x-original-url"]),
    st.sampled_from(["root", "Bearer token-of-root", "token-of-root", "/healthz", "/static/style.css"]),
)


@settings(max_examples=150, deadline=None)
@given(paths, st.sampled_from(["GET", "HEAD", "POST"]), visible | sealed, headers)
def test_no_stranger_sees_anything(path: str, method: str, cookie: str, sent: dict[str, str]) -> None:
    if path.startswith("/v1/") and sent.get("authorization") == "Bearer token-of-root":
        # Who has the operator's token is no stranger there; elsewhere only a session counts.
        sent = {**sent, "authorization": "Bearer guessed"}

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(APP, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            return await client.request(method, path, headers={**sent, "cookie": f"kopt={cookie}"})

    answer = asyncio.run(send())
    assert answer.status_code in (303, 401)
    assert SECRET not in answer.text
    assert "set-cookie" not in answer.headers


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300) | st.sampled_from([b"token=", b"token=a&token=b", b"token=%00", b"token=%F0%9F%9B%B0"]))
def test_no_form_makes_a_session(body: bytes) -> None:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(APP, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            return await client.post("/login", content=body)

    answer = asyncio.run(send())
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
