"""POSTs over kept connections: whatever a server does, an answer or an Unreachable, and never another's answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.api import Kube, Unauthorized, Unreachable
from kopt.cluster.client.credentials import Credentials
from kopt.cluster.client.post_connection import Answer, Poster
from kopt.cluster.client.resources import PODS

Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PLAIN = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = (
    b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;x=1\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nT: 1\r\n\r\n"
)


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


@contextlib.asynccontextmanager
async def server(handle: Streams) -> AsyncIterator[str]:
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await handle(reader, writer)
        writer.close()

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(one(reader, writer))
        tasks.add(task)

    listening = await asyncio.start_server(met, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for task in tasks:
            task.cancel()


def answering(*parts: bytes, pause_s: float = 0.0) -> Streams:
    """Each request gets the same parts, with a pause between them."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)

    return handle


async def post(poster: Poster, url: str, path: str = "/api/v1/x", timeout_s: float = 5.0) -> Answer:
    return await poster.post(Credentials(url, "Bearer secret", None), path, b'{"a":1}', "application/json", timeout_s)


@pytest.fixture
def poster() -> Poster:
    return Poster("tests")


@given(st.data())
@settings(max_examples=examples(30), deadline=None)
def test_an_answer_is_whole_however_it_arrives(data: st.DataObject) -> None:
    raw, expected = data.draw(
        st.sampled_from(
            [
                (PLAIN, (201, b"{}")),
                (b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, (201, b"{}")),
                (CHUNKED, (409, b"abc0123456789abcdef")),
                (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
            ]
        )
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=4)))
    parts = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    async def twice() -> None:
        poster = Poster("tests")
        async with server(answering(*parts, pause_s=0.001)) as url:
            for _ in range(2):
                found = await post(poster, url)
                assert (found.status, found.body) == expected
        poster.close()

    asyncio.run(twice())


async def test_connections_are_kept_and_few(poster: Poster) -> None:
    met, seen = [], []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(1)
        while True:
            seen.append(await request_of(reader))
            writer.write(PLAIN)

    async with server(handle) as url:
        for _ in range(5):
            await post(poster, url)
        assert len(met) == 1
        await asyncio.gather(*(post(poster, url) for _ in range(4)))
        assert len(met) == 4
    assert seen[0].startswith(b"POST /api/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer secret\r\n" in seen[0]
    poster.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\n{}",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: -x\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 201 Created\r\n" + b"X-Name: value\r\n" * 5_000,
    ],
)
async def test_what_is_no_answer_is_unreachable(poster: Poster, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(raw)
        await writer.drain()

    async with server(handle) as url:
        with pytest.raises(Unreachable):
            await post(poster, url)
    assert not caplog.records, "the event loop met an error that nobody handled"


async def test_a_body_without_a_length_ends_with_the_connection(poster: Poster) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nX-Empty:\r\nX-Kind:  a b \r\n\r\nhalf and ")
        await writer.drain()
        writer.write(b"half")

    async with server(handle) as url:
        for _ in range(2):
            found = await post(poster, url)
            assert found == (200, {"x-empty": "", "x-kind": "a b"}, b"half and half")


@pytest.mark.parametrize(
    ("head", "part", "most_bytes"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + bytes(1 << 20) + b"\r\n", 64 << 20),
        (b"Content-Length: 1000000000\r\n\r\n", bytes(1 << 20), 64 << 20),
        (b"\r\n", bytes(1 << 20), 64 << 20),
        (b"", b"X-Name: value\r\n" * 100, 64 << 10),
    ],
    ids=["chunks", "length", "connection", "head"],
)
async def test_an_answer_without_an_end_is_given_up(poster: Poster, head: bytes, part: bytes, most_bytes: int) -> None:
    sent_bytes = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + head)
        while True:
            writer.write(part)
            await writer.drain()
            sent_bytes += len(part)

    async with server(handle) as url:
        with pytest.raises(Unreachable, match="does not end"):
            await post(poster, url, timeout_s=120.0)
    # What lies in the sockets' buffers is above what was read.
    assert most_bytes - len(part) <= sent_bytes < most_bytes + (16 << 20)


async def test_nobody_gets_the_answer_to_another_request(poster: Poster) -> None:
    """Neither of one that was given up, nor what a server sends unasked."""
    begun, left = asyncio.Event(), asyncio.Semaphore(0)

    unasked = {
        b"/twice": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", b""),
        b"/begun": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\not", b"her"),
        b"/junk": (b"junk", b""),
    }

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        later = b""
        while True:
            asked = await request_of(reader)
            if b"/slow" in asked:
                begun.set()
                assert await reader.read() == b""
                left.release()
            name = asked.split(b" ")[1]
            more, then = unasked.get(name, (b"", b""))
            writer.write(later + b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name) + more)
            later = then

    async with server(handle) as url:
        with pytest.raises(Unreachable, match="was not answered within"):
            await post(poster, url, "/slow", 0.05)
        begun.clear()
        gone = asyncio.create_task(post(poster, url, "/slow", 60.0))
        await begun.wait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        async with asyncio.timeout(60):  # whoever gave up also hung up
            await left.acquire()
            await left.acquire()
        for path in ("/one", "/twice", "/two", "/begun", "/three", "/junk", "/four"):
            assert (await post(poster, url, path)).body == path.encode()
            await asyncio.sleep(0.01)  # now and then what was not asked for comes later than the answer
    poster.close()


async def test_a_server_that_closes_is_asked_anew(poster: Poster) -> None:
    close = b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(close)

    async with server(handle) as url:
        for _ in range(3):
            assert (await post(poster, url)).status == 201
    with pytest.raises(Unreachable):
        await post(poster, url)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: 1", "/ä", "/a\nb"])
async def test_a_path_cannot_carry_headers(poster: Poster, path: str) -> None:
    async with server(answering(PLAIN)) as url:
        with pytest.raises(ValueError, match="cannot be the path"):
            await post(poster, url, path)


class Renewing:
    """Credentials whose first token has expired."""

    def __init__(self, url: str) -> None:
        self.url, self.tokens = url, ["old"]

    async def credentials(self) -> Credentials:
        return Credentials(self.url, f"Bearer {self.tokens[-1]}", None)

    async def renew(self) -> Credentials:
        self.tokens.append("new")
        return await self.credentials()


async def test_an_expired_token_is_renewed_once() -> None:
    good = b"new"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = await request_of(reader)
            accepted = b"Bearer " + good in asked
            writer.write(PLAIN if accepted else b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}")

    async with server(handle) as url:
        access = Renewing(url)
        kube = Kube(access)
        assert await kube.create_at(PODS, "space", "pod", "binding", {}) == {}
        assert access.tokens == ["old", "new"]
        good = b"never"
        with pytest.raises(Unauthorized):
            await kube.create_at(PODS, "space", "pod", "binding", {})
        await kube.close()
        with pytest.raises(Unreachable, match="closed"):
            await kube.create_at(PODS, "space", "pod", "binding", {})
