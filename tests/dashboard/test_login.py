"""Whoever logs in sees what they may list, and nobody else sees anything."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from pages_source import FixedSource

from kopt.core.scheduling.queued import QueueState
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data import access
from kopt.dashboard.data.access import Right, pods_in
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.login.authority import AuthorityError, User
from kopt.dashboard.login.routes import Login, inside
from kopt.dashboard.login.sessions import LONGEST_COOKIE, Session, Sessions, SessionTooLongError
from kopt.dashboard.pages.efficiency.data import Efficiency
from kopt.dashboard.pages.gpus.data import VisibleMap
from kopt.dashboard.pages.models.data import Models
from kopt.dashboard.pages.pages import PAGES
from kopt.dashboard.pages.quotas.data import Quotas
from kopt.dashboard.pages.sizes.data import Sizes
from tests.conformance.test_pages import NOW_S, full
from tests.efficiency.made_hours import history_of

ADDRESS = "http://127.0.0.1:8701"
KEY = Fernet.generate_key().decode()
OF_NAMESPACES = ("/", "/jobs", "/recommendations", "/queue", "/lending", "/quotas", "/efficiency", "/alerts")
EVERYTHING = (pods_in(access.ALL_NAMESPACES), access.POOLS, access.NODES)


@dataclass
class KnownUsers:
    """An authority that knows two teams and an operator, and can be away."""

    tokens: dict[str, User] = field(
        default_factory=lambda: {"token-of-a": User("ann"), "token-of-b": User("bob"), "token-of-root": User("root")}
    )
    held: dict[str, Collection[Right]] = field(
        default_factory=lambda: {"ann": (pods_in("team-a"),), "bob": (pods_in("team-b"),), "root": EVERYTHING}
    )
    away: bool = False

    async def user_of(self, token: str) -> User | None:
        if self.away:
            raise AuthorityError("The cluster's API server does not answer now; try again.")
        return self.tokens.get(token)

    async def rights_of(self, user: User, rights: Collection[Right]) -> Collection[Right]:
        if self.away:
            raise AuthorityError("The cluster's API server does not answer now; try again.")
        everywhere = {right.resource for right in self.held[user.name] if not right.namespace}
        return [right for right in rights if right in self.held[user.name] or right.resource in everywhere]


@pytest.fixture
def users() -> KnownUsers:
    return KnownUsers()


@pytest.fixture
def browser(users: KnownUsers, tmp_path: Path) -> Callable[..., httpx.AsyncClient]:
    """A browser with cookies of its own; every feed holds something of namespace team-a that names its secret."""
    source = FixedSource(full("team-a/secret-of-a"))
    source.values = {feed: _of_team_a(data) for feed, data in source.values.items()}
    login = Login(users, Sessions(KEY, secure=False), "kopt-pages")
    app = create_app(Settings(home=tmp_path), source=source, login=login)

    def start() -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=ADDRESS)

    return start


def _of_team_a(data: Any) -> Any:
    """Without sentences about the platform, which are for everybody; sizes name their namespace in a field."""
    if isinstance(data, Snapshot):
        return replace(data, problems=(), endpoint=Endpoint(ADDRESS))
    if isinstance(data, Sizes):
        return Sizes(tuple(replace(size, namespace="team-a") for size in data.sizes))
    if isinstance(data, QueueState):
        return replace(data, queued=tuple(replace(each, namespace="team-a") for each in data.queued), problems=())
    if isinstance(data, Models):
        return replace(data, problems=())
    if isinstance(data, Quotas):
        hers = [
            replace(queue, namespaces=frozenset({"team-a"})) if "secret-of-a" in queue.name else queue
            for queue in data.tree.queues
        ]
        return replace(data, tree=replace(data.tree, queues=tuple(hers), problems=()))
    if isinstance(data, Efficiency):
        return replace(data, problem="", histories={"24h": history_of("team-a", "secret-of-a")})
    if isinstance(data, VisibleMap):
        return replace(data, map=replace(data.map, problems=()))
    return replace(data, problem="") if hasattr(data, "problem") else data


async def log_in(client: httpx.AsyncClient, token: str, then: str = "/") -> httpx.Response:
    return await client.post("/login", data={"token": token, "next": then})


@pytest.mark.parametrize("page", PAGES, ids=[page.path for page in PAGES])
async def test_without_a_session_every_page_leads_to_the_login(browser: Any, page: Any) -> None:
    async with browser() as client:
        for path in (page.path, *page.aliases):
            answer = await client.get(path.replace("{name:path}", "x").replace("{name}", "x"))
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login?next=%2F")
        for path in page.documents:
            answer = await client.get(path.replace("{name:path}", "x").replace("{name}", "x"))
            assert answer.status_code in (303, 401)
            assert "secret-of-a" not in answer.text


@pytest.mark.parametrize("path", [page.path for page in PAGES if page.title])
async def test_each_sees_what_they_may_list(browser: Any, path: str) -> None:
    texts = {}
    for name in ("a", "b", "root"):
        async with browser() as client:
            entered = await log_in(client, f"token-of-{name}", path)
            assert (entered.status_code, entered.headers["location"]) == (303, path)
            texts[name] = (await client.get(path)).text
    assert "ann" in texts["a"]
    assert "Log out" in texts["a"]
    assert ("secret-of-a" in texts["a"]) == (path in OF_NAMESPACES or path == "/models"), "pools and nodes are not hers"
    assert ("secret-of-a" in texts["b"]) == (path == "/models"), "versions of models are for everybody"
    assert "secret-of-a" in texts["root"]


async def test_a_token_that_is_not_valid_begins_nothing(browser: Any) -> None:
    async with browser() as client:
        answer = await log_in(client, "made-up")
        assert answer.status_code == 401
        assert "not valid" in answer.text
        assert "made-up" not in answer.text
        assert not answer.cookies
        assert (await client.get("/")).status_code == 303


async def test_a_token_that_is_revoked_ends_the_session(browser: Any, users: KnownUsers) -> None:
    async with browser() as client:
        await log_in(client, "token-of-a")
        assert (await client.get("/")).status_code == 200
        users.tokens.clear()
        assert (await client.get("/")).status_code == 303


async def test_nothing_is_shown_while_rights_cannot_be_looked_up(browser: Any, users: KnownUsers) -> None:
    async with browser() as client:
        await log_in(client, "token-of-a")
        users.away = True
        answer = await client.get("/jobs")
        assert answer.status_code == 503
        assert "secret-of-a" not in answer.text
        assert (await log_in(client, "token-of-a")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200


async def test_logging_out_forgets_the_session(browser: Any) -> None:
    async with browser() as client:
        await log_in(client, "token-of-a")
        assert (await client.post("/logout")).status_code == 303
        assert not client.cookies
        assert (await client.get("/")).status_code == 303


async def test_forms_of_other_sites_and_huge_ones_are_refused(browser: Any) -> None:
    async with browser() as client:
        for path in ("/login", "/logout"):
            answer = await client.post(path, data={"token": "token-of-a"}, headers={"origin": "https://evil.example"})
            assert answer.status_code == 403
            assert not client.cookies
        assert (await client.post("/login", content=b"token=" + b"x" * 100_000)).status_code == 413


async def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(users: KnownUsers, tmp_path: Path) -> None:
    login = Login(users, Sessions(KEY, secure=True))
    app = create_app(Settings(home=tmp_path), source=FixedSource({}), hosts=["gpus.example"], login=login)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://gpus.example") as client:
        cookie = (await log_in(client, "token-of-a")).headers["set-cookie"]
    assert cookie.startswith("__Host-kopt=")
    for attribute in ("HttpOnly", "Secure", "Path=/", "SameSite=lax", "Max-Age=28800"):
        assert attribute in cookie
    assert "token-of-a" not in cookie


@pytest.mark.parametrize(
    "address",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "evil",
        "",
        "/\n/evil",
        "/" * 2,
        "/a\r\nset-cookie: x=y",
    ],
)
def test_a_login_never_leads_to_another_site(address: str) -> None:
    assert inside(address) == "/"


@given(st.text())
def test_whatever_is_asked_for_the_login_stays_here(address: str) -> None:
    led = inside(address)
    assert led.startswith("/")
    assert led[1:2] not in ("/", "\\")
    assert led.isascii()
    assert led.isprintable()


def test_sessions_end_and_cannot_be_made_up() -> None:
    now_s = NOW_S
    sessions = Sessions(KEY, secure=False, clock=lambda: now_s)
    session = Session(NOW_S + 10, user=User("ann", "7", ("dev", "gpu")))
    sealed = sessions.sealed(session)
    assert sessions.opened(sealed) == session
    now_s += 10
    assert sessions.opened(sealed) is None
    now_s -= 10
    other = Sessions(Fernet.generate_key().decode(), secure=False, clock=lambda: now_s)
    for wrong in (other.sealed(session), sealed[:-2], sealed + "x", "", "x" * 10_000, sealed.swapcase()):
        assert sessions.opened(wrong) is None
    with pytest.raises(SessionTooLongError):
        sessions.sealed(Session(NOW_S, token="x" * LONGEST_COOKIE))


def test_the_conformance_source_has_nothing_for_whoever_may_list_nothing() -> None:
    """Every feed leaves out all that has a namespace."""
    for feed, data in full("team-a/secret-of-a").items():
        nothing = feed.restrict(data, lambda _: False)
        everything = feed.restrict(data, lambda _: True)
        assert everything == data
        if feed.name not in ("past forecasts", "models"):
            assert nothing != data, feed.name
