"""What stands around every answer: hosts, headers, methods, caching, counts."""

import gzip

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.dashboard import assets
from kopt.dashboard.security import allowed_hosts, host_of

ROUTES = ("/", "/lending", "/models", "/nope", "/healthz", "/metrics", "/static/none.css", "/services/none")


@pytest.mark.parametrize("route", ROUTES)
async def test_every_answer_carries_the_security_headers_and_no_cookie(pages: httpx.AsyncClient, route: str) -> None:
    reply = await pages.get(route)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src" not in policy
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("route", ["/", "/lending", "/models"])
async def test_no_page_holds_a_script_or_a_handler_of_its_own(pages: httpx.AsyncClient, route: str) -> None:
    html = (await pages.get(route)).text
    assert "<script>" not in html
    assert " onclick=" not in html
    assert "javascript:" not in html
    assert "http://" not in html.replace("http://endpoint", "")
    assert "https://" not in html


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "",
        "127.0.0.1.evil:8701",
        "[::2]",
        "a b",
        "localhost:x",
        "@localhost",
        "127.0.0.2",
    ],
)
async def test_a_foreign_host_name_reads_nothing(pages: httpx.AsyncClient, host: str) -> None:
    reply = await pages.get("/", headers={"host": host})
    assert reply.status_code == 421
    assert "<table" not in reply.text


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:8701", "[::1]:1", "127.0.0.1:65535"])
async def test_loopback_names_are_answered(pages: httpx.AsyncClient, host: str) -> None:
    assert (await pages.get("/healthz", headers={"host": host})).status_code == 200


def test_an_interface_is_a_host_name_only_when_it_is_one() -> None:
    assert "0.0.0.0" not in allowed_hosts("0.0.0.0")
    assert "10.0.0.7" in allowed_hosts("10.0.0.7")
    assert "[fd00::1]" in allowed_hosts("fd00::1")
    assert "kopt.lan" in allowed_hosts("::", ["kopt.lan", ""])


@given(st.text(max_size=40))
def test_any_host_header_is_read_without_a_fall(header: str) -> None:
    assert header.lower().startswith(host_of(header))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(pages: httpx.AsyncClient, method: str) -> None:
    reply = await pages.request(method, "/models", content=b"x" * 1000)
    assert reply.status_code == 405
    assert "read only" in reply.text


async def test_assets_cache_for_ever_under_addresses_that_change_with_them(pages: httpx.AsyncClient) -> None:
    address = assets.addresses()["plotly.min.js"]
    packed = await pages.get(address, headers={"accept-encoding": "gzip"})
    assert packed.status_code == 200
    assert "immutable" in packed.headers["cache-control"]
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < 1_700_000
    plain = await pages.get(address, headers={"accept-encoding": "identity"})
    assert plain.content == packed.content == assets.PLOTLY.read_bytes()
    assert gzip.decompress(assets.asset(address.removeprefix("/static/")).compressed) == plain.content  # type: ignore[union-attr]
    for wrong in ("/static/style.css", "/static/../app.py", "/static/..%2fapp.py", address.replace(".min", ".max")):
        assert (await pages.get(wrong)).status_code == 404


async def test_an_unchanged_page_is_not_sent_again(pages: httpx.AsyncClient) -> None:
    first = await pages.get("/")
    again = await pages.get("/", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert not again.content
    assert "content-security-policy" in again.headers
    assert (await pages.get("/?q=x", headers={"if-none-match": first.headers["etag"]})).status_code == 200


async def test_head_is_answered_and_requests_are_counted_by_route_not_by_path(pages: httpx.AsyncClient) -> None:
    assert (await pages.head("/")).status_code == 200
    for name in ("a", "b", "c"):
        await pages.get(f"/services/{name}")
    text = (await pages.get("/metrics")).text
    assert 'kopt_pages_requests_total{route="/services/{name:path}",status="404"} 3.0' in text
    assert "/services/a" not in text
