"""The extender's own HTTP server, byte by byte."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from controlplane.processes import until
from example_budget import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.cluster.runtime.http import HttpServer, Reply, Request


class Echo:
    """Answers with what it was asked; a path that begins with /later is waited for."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.server = HttpServer(self.answer, largest_body_bytes=1000, patience_s=0.2)
        self.port = 0

    def answer(self, request: Request) -> "Reply | asyncio.Future[Reply]":
        reply = Reply(f"{request.method} {request.path} {request.argument('pod')} ".encode() + request.body)
        return asyncio.ensure_future(self.later(reply)) if request.path.startswith("/later") else reply

    async def later(self, reply: Reply) -> Reply:
        await self.go_on.wait()
        return reply

    async def talk(self, *pieces: bytes, until_closed: bool = True) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                return await reader.read() if until_closed else await reader.read(65536)
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    one = Echo()
    one.port = await one.server.start("127.0.0.1", 0)
    yield one
    await one.server.stop()


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


CLOSE = "Connection: close"


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 250), max_size=6), bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=4))
async def test_requests_are_answered_in_order_however_their_bytes_are_cut(
    echo: Echo, cuts: list[int], bodies: list[bytes]
) -> None:
    stream = b"".join(post(f"/{i}", body) for i, body in enumerate(bodies)) + post("/end", b"", CLOSE)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    answer = await echo.talk(*(stream[a:b] for a, b in pairwise(places)))
    expected = [f"POST /{i}  ".encode() + body for i, body in enumerate(bodies)] + [b"POST /end  "]
    assert answer.count(b"HTTP/1.1 200 OK") == len(expected)
    at = 0
    for one in expected:
        at = answer.index(one, at)


async def test_a_request_behind_one_that_is_waited_for_waits_too(echo: Echo) -> None:
    talking = asyncio.create_task(echo.talk(post("/later", b"1") + post("/now", b"2", CLOSE)))
    await asyncio.sleep(0.1)
    assert not talking.done()
    echo.go_on.set()
    answer = await talking
    assert answer.index(b"/later  1") < answer.index(b"/now  2")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /a HTTP/2\r\n\r\n", 400),
        (b"POST http://a/b HTTP/1.1\r\n\r\n", 400),
        (post("/a", b"", "no colon"), 400),
        (post("/a", b"", "Content-Length: 5"), 400),
        (b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST /a HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"GET /a HTTP/1.1\r\nX: " + b"x" * (65 << 10), 431),
    ],
)
async def test_what_it_does_not_read_is_refused_and_the_connection_ends(echo: Echo, sent: bytes, status: int) -> None:
    answer = await echo.talk(sent)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Connection: close" in answer
    assert not echo.server.connections


async def test_a_client_that_asks_first_is_told_to_go_on(echo: Echo) -> None:
    answer = await echo.talk(post("/a", b"x", "Expect: 100-continue", CLOSE))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_half_a_request_is_not_waited_for_for_ever(echo: Echo) -> None:
    assert await echo.talk(b"POST /a HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf") == b""
    # An idle connection between requests is no half one.
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    await asyncio.sleep(0.6)
    writer.write(post("/still", b"", CLOSE))
    assert b"/still" in await reader.read()
    writer.close()


async def test_a_server_that_leaves_asks_for_connections_to_be_closed(echo: Echo) -> None:
    echo.server.draining = True
    assert b"Connection: close" in await echo.talk(post("/a", b""))


async def test_a_client_that_hangs_up_while_it_is_answered_harms_nobody(echo: Echo) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    writer.write(post("/later", b""))
    await writer.drain()
    writer.transport.abort()
    await until(lambda: not echo.server.connections)
    echo.go_on.set()
    assert b"200 OK" in await echo.talk(post("/a", b"", CLOSE))
    assert not echo.server.connections


async def test_queries_are_decoded(echo: Echo) -> None:
    assert b"GET /explain research/trainer-0 " in await echo.talk(
        b"GET /explain?pod=research%2Ftrainer-0 HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
