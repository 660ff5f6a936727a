"""Logging in with OpenID Connect, over real HTTP with a provider that tells the truth, lies, or is away."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_server import served
from pages_source import FixedSource

from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.access import pods_in
from kopt.dashboard.login.oidc import Oidc, OidcSettings
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.pages.jobs.data import JOBS
from tests.conformance.test_pages import full
from tests.dashboard.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider, new_key
from tests.dashboard.test_login import ADDRESS, KEY, KnownUsers

CALLBACK = f"{ADDRESS}/login/oidc/callback"
ANN = {"email": "ann@example.com", "email_verified": True, "groups": ["gpu-users"]}


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider(dict(ANN))
    with served(provider.app()) as url:
        provider.url = url
        yield provider


@pytest.fixture
def users() -> KnownUsers:
    return KnownUsers(held={"ann@example.com": (pods_in("team-a"),)})


class Browser(httpx.AsyncClient):
    """Follows the way to the provider and back, as browsers do; cookies stay with their site."""

    async def log_in(self, then: str = "/jobs", **changes: str) -> httpx.Response:
        begun = await self.get("/login/oidc", params={"next": then})
        if begun.status_code != 303:
            return begun
        async with httpx.AsyncClient(trust_env=False) as elsewhere:
            back = (await elsewhere.get(begun.headers["location"])).headers["location"]
        assert back.startswith(CALLBACK)
        address = httpx.URL(back)
        return await self.get("/login/oidc/callback", params={**dict(address.params), **changes})


@pytest.fixture
def start(provider: Provider, users: KnownUsers, tmp_path: Path) -> Any:
    def start(**settings: str) -> Browser:
        oidc = Oidc(OidcSettings(provider.url, CLIENT_ID, CLIENT_SECRET, CALLBACK, **settings))
        login = Login(users, Sessions(KEY, secure=False), oidc=oidc)
        source = FixedSource({JOBS: full("team-a/secret-of-a")[JOBS]})
        app = create_app(Settings(home=tmp_path), source=source, login=login)
        return Browser(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=ADDRESS)

    return start


async def test_a_person_logs_in_with_the_provider_and_sees_their_namespace(start: Any) -> None:
    async with start() as browser:
        assert "Log in with 127.0.0.1" in (await browser.get("/login?next=/jobs")).text
        entered = await browser.log_in("/jobs?q=x")
        assert (entered.status_code, entered.headers["location"]) == (303, "/jobs?q=x")
        page = (await browser.get("/jobs")).text
        assert "secret-of-a" in page
        assert "ann@example.com" in page
        assert set(browser.cookies) == {"kopt"}, "the note of the login is gone"


async def test_groups_and_prefixes_are_those_of_the_api_server(start: Any, users: KnownUsers) -> None:
    seen: list[Any] = []
    users.held["oidc:ann"] = ()
    asked = users.rights_of

    async def rights_of(user: Any, rights: Any) -> Any:
        seen.append(user)
        return await asked(user, rights)

    users.rights_of = rights_of  # type: ignore[method-assign]
    options = {"username_claim": "name", "username_prefix": "oidc:", "groups_prefix": "oidc:"}
    async with start(**options) as browser:
        assert (await browser.log_in()).status_code == 401, "the provider says no name"
    async with start(**{**options, "username_claim": "sub"}) as browser:
        users.held["oidc:1"] = ()
        assert (await browser.log_in()).status_code == 303
        await browser.get("/jobs")
    assert seen[0].name == "oidc:1"
    assert seen[0].groups == ("oidc:gpu-users", "system:authenticated")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nonce": "another"}, "not signed as it should be"),
        ({"aud": "another client"}, "not signed as it should be"),
        ({"iss": "https://evil.example"}, "not signed as it should be"),
        ({"exp": int(time.time()) - 3600}, "not signed as it should be"),
        ({"email_verified": False}, "not verified"),
        ({"email": ""}, "says no &#39;email&#39;"),
        ({"email": ["ann@example.com"]}, "says no &#39;email&#39;"),
        ({"email": "system:admin"}, "the cluster&#39;s own"),
        ({"groups": ["system:masters"]}, "the cluster&#39;s own"),
        ({"groups": {"a": 1}}, "no list of names"),
        ({"groups": ["g" * 30] * 200}, "does not fit into a cookie"),
    ],
)
async def test_what_a_provider_may_not_say_logs_nobody_in(
    start: Any, provider: Provider, changes: dict[str, Any], words: str
) -> None:
    provider.changes = changes
    async with start() as browser:
        answer = await browser.log_in()
        assert answer.status_code in (400, 401)
        assert words in answer.text
        assert "kopt" not in browser.cookies
        assert (await browser.get("/jobs")).status_code == 303


async def test_a_token_that_another_key_signed_logs_nobody_in(start: Any, provider: Provider) -> None:
    provider.published = [new_key("published")]
    async with start() as browser:
        assert (await browser.log_in()).status_code == 401


async def test_a_new_key_of_the_provider_is_looked_up(start: Any, provider: Provider) -> None:
    async with start() as browser:
        assert (await browser.log_in()).status_code == 303
        provider.key = new_key("second")
        assert (await browser.log_in()).status_code == 303


@pytest.mark.parametrize("changes", [{"state": "made up"}, {"state": ""}, {"code": "made up"}])
async def test_an_answer_to_another_login_is_refused(start: Any, changes: dict[str, str]) -> None:
    async with start() as browser:
        answer = await browser.log_in(**changes)
        assert answer.status_code == 401
        assert "kopt" not in browser.cookies


async def test_an_answer_without_a_login_or_used_twice_is_refused(start: Any) -> None:
    async with start() as browser:
        assert (await browser.get("/login/oidc/callback?code=x&state=y")).status_code == 400
        browser.cookies.set("kopt-login", "garbage", domain="127.0.0.1")
        assert (await browser.get("/login/oidc/callback?code=x&state=y")).status_code == 400


async def test_a_refusal_of_the_provider_is_said(start: Any, provider: Provider) -> None:
    provider.refuses = "access_denied"
    async with start() as browser:
        answer = await browser.log_in()
        assert answer.status_code == 401
        assert "access_denied" in answer.text


async def test_a_provider_that_is_away_or_another_one_leaves_the_token(start: Any, provider: Provider) -> None:
    provider.name = "https://another.example"
    async with start() as browser:
        answer = await browser.log_in()
        assert answer.status_code == 503
        assert 'name="token"' in answer.text
        provider.name = ""
        assert (await browser.log_in()).status_code == 303, "and it is asked again"


@pytest.mark.parametrize(
    "settings",
    [("http://provider.example", CLIENT_ID), ("", CLIENT_ID), ("https://provider.example", "")],
)
def test_settings_that_cannot_be_are_refused(settings: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"https address|id is empty"):
        OidcSettings(*settings, CLIENT_SECRET, CALLBACK)
