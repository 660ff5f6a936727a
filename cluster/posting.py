"""POST requests over connections that stay open.

A pod waits for one of them, its Binding. A general client spends a third of a millisecond of CPU on it, a fifth of what
a pod may cost in all; this spends a third of that. It knows HTTP/1.1 as API servers speak it, and no proxies.
"""

import asyncio
import time
from typing import NamedTuple, cast

from yarl import URL

from kopt.cluster.access import Credentials
from kopt.cluster.errors import Unreachable

_IDLE_S = 30.0
"""A connection that was not used for so long is not trusted to be there still."""
_LARGEST_BYTES = 64 << 20
_LARGEST_HEAD_BYTES = 64 << 10


class Answer(NamedTuple):
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Broken(Exception):
    """The connection ended, or brought what is no HTTP."""


class Poster:
    """Connections to one API server, made as they are needed; the one used last is used next."""

    def __init__(self, user_agent: str) -> None:
        self._user_agent = user_agent
        self._idle: list[tuple[float, _Connection]] = []
        self._signed: Credentials | None = None
        self._url = URL()
        self._head = ""

    async def post(self, signed: Credentials, path: str, content: bytes, content_type: str,
                   timeout_s: float) -> Answer:  # fmt: skip
        """The answer, whatever its status. Raises Unreachable where there is none; the write may have happened."""
        head = self._head_of(signed, path, len(content), content_type)
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._kept() or await self._connect(signed)
                answer = await connection.ask(head + content)
        except TimeoutError as error:
            raise Unreachable(f"POST {path} was not answered within {timeout_s:g} s") from error
        except _Broken as error:
            raise Unreachable(f"POST {path}: {error}") from error
        if connection.reusable:
            self._idle.append((time.monotonic(), connection))
        return answer

    def close(self) -> None:
        """Close what is open."""
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    def _kept(self) -> "_Connection | None":
        while self._idle:
            used_s, connection = self._idle.pop()
            if connection.reusable and time.monotonic() - used_s < _IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self, signed: Credentials) -> "_Connection":
        host, port = self._url.host or "", self._url.port or 443
        name = signed.server_name or host
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, host, port, ssl=signed.tls, server_hostname=name if signed.tls is not None else None
            )
        except OSError as error:
            # Certificates that do not fit are an OSError too.
            raise _Broken(f"{type(error).__name__} {error}") from error
        return connection

    def _head_of(self, signed: Credentials, path: str, length: int, content_type: str) -> bytes:
        if signed is not self._signed:
            self._sign(signed)
        first = f"POST {self._url.raw_path.rstrip('/')}{path} HTTP/1.1\r\n"
        head = f"{first}{self._head}Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
        if not head.isascii() or first.count(" ") != 2 or head.count("\n") != self._head.count("\n") + 4:
            raise ValueError(f"{path[:200]!r} cannot be the path of a request")
        return head.encode()

    def _sign(self, signed: Credentials) -> None:
        """What is the same in each request. Connections are kept as long as their TLS is the same."""
        if self._signed is not None and (self._signed.host, self._signed.tls) != (signed.host, signed.tls):
            self.close()
        self._signed, self._url = signed, URL(signed.host)
        lines = [f"Host: {self._url.authority}", f"User-Agent: {self._user_agent}", "Accept: application/json"]
        if signed.authorization:
            lines.append(f"Authorization: {signed.authorization}")
        if any(not line.isprintable() for line in lines):
            raise Unreachable("the credentials hold what no header can")
        self._head = "".join(f"{line}\r\n" for line in lines)


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._asked: asyncio.Future[Answer] | None = None
        self._head: tuple[int, dict[str, str]] | None = None

    @property
    def reusable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._asked is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, and do what they say.
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes) -> Answer:
        """Raises _Broken. Whoever stops waiting takes the connection along: its answer is still under way."""
        if self._transport is None:
            raise _Broken("the connection ended")
        self._asked = self._loop.create_future()
        self._transport.write(request)
        try:
            return await self._asked
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            answer = self._answer(ended=False)
        except (ValueError, _Broken) as error:
            self._give_up(f"what came is no answer ({error})")
            self.close()
            return
        if answer is not None:
            self._done(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        try:
            answer = self._answer(ended=True)
        except (ValueError, _Broken):
            answer = None
        if answer is not None:
            self._done(answer)
        self._give_up(f"the connection ended without an answer{f' ({error})' if error else ''}")

    def _done(self, answer: Answer) -> None:
        asked, self._asked, self._head = self._asked, None, None
        # More than was asked for, or the server's wish: no other request on this connection.
        if self._buffer or "close" in answer.headers.get("connection", "").lower():
            self.close()
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def _give_up(self, text: str) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(_Broken(text))

    def _answer(self, ended: bool) -> Answer | None:
        """The answer, None while it is not whole. Raises ValueError or _Broken for what is none."""
        while self._head is None:
            end = self._buffer.find(b"\r\n\r\n", 0, _LARGEST_HEAD_BYTES)
            if end < 0:
                if len(self._buffer) >= _LARGEST_HEAD_BYTES:
                    raise _Broken("a head that does not end")
                return None
            head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            if head[0] >= 200:
                self._head = head
        status, headers = self._head
        if len(self._buffer) > _LARGEST_BYTES:
            raise _Broken("an answer of more than 64 MiB")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = _unchunked(self._buffer)
        elif status in (204, 304):
            body = b""
        elif "content-length" in headers:
            length = int(headers["content-length"])
            body = bytes(self._buffer[:length]) if len(self._buffer) >= length else None
            if body is not None:
                del self._buffer[:length]
        else:
            body = bytes(self._buffer) if ended else None
        return None if body is None else Answer(status, headers, body)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Raises ValueError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("not HTTP/1.1")
    fields = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in fields}


def _unchunked(buffer: bytearray) -> bytes | None:
    """The body of chunks, taken from the buffer; None while the last is not there. Raises ValueError."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = buffer.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(bytes(buffer[at:end]).partition(b";")[0], 16)
        if size == 0:
            # There may be trailers; an empty line ends them.
            last = buffer.find(b"\r\n\r\n", end)
            if last < 0:
                return None
            del buffer[: last + 4]
            return b"".join(parts)
        at = end + 2 + size + 2
        if len(buffer) < at:
            return None
        parts.append(bytes(buffer[end + 2 : end + 2 + size]))
