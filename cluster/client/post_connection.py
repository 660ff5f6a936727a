"""POST requests over connections that stay open.

A pod waits for one of them, its Binding. A general client spends a third of a millisecond of CPU on it, a fifth of what
a pod may cost in all; this spends a third of that: no redirects, no proxies, and answers read by llhttp (httptools).
"""

import asyncio
import time
from typing import NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from yarl import URL

from kopt.cluster.client.credentials import Credentials
from kopt.cluster.client.errors import Unreachable

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

    async def post(self, signed: Credentials, path: str, content: bytes, content_type: str, timeout_s: float) -> Answer:
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
            raise Unreachable("the credentials contain characters that no header may have")
        self._head = "".join(f"{line}\r\n" for line in lines)


class _Connection(asyncio.Protocol):
    """One request at a time. The parser calls the methods that begin with on_, with what it read."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: asyncio.Future[Answer] | None = None
        self._parser = HttpResponseParser(self)
        self._expect()

    def _expect(self) -> None:
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._in_head = True
        self._received_bytes = 0

    @property
    def reusable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._pending is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, and do what they say.
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes) -> Answer:
        """Raises _Broken. A caller that stops waiting closes the connection: its answer is still under way."""
        if self._transport is None:
            raise _Broken("the connection ended")
        self._pending = self._loop.create_future()
        self._transport.write(request)
        try:
            return await self._pending
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._refuse(f"the response is malformed ({error})")
        largest_bytes = _LARGEST_HEAD_BYTES if self._in_head else _LARGEST_BYTES
        if self._pending is not None and self._received_bytes > largest_bytes:
            self._refuse("the response is malformed (it does not end)")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        unmeasured = not {"content-length", "transfer-encoding"} & self._headers.keys()
        if error is None and not self._in_head and unmeasured:
            self._done()
        else:
            self._give_up(f"the connection ended without an answer{f' ({error})' if error else ''}")

    def on_message_begin(self) -> None:
        if self._pending is None:
            self.close()  # sent unasked: whose answer the next one is would not be known

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # there are trailers too
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._headers, self._in_head = {}, True
            return
        if not self._parser.should_keep_alive():
            self.close()
        self._done()

    def _done(self) -> None:
        answer = Answer(self._parser.get_status_code(), self._headers, b"".join(self._parts))
        pending, self._pending = self._pending, None
        self._expect()
        if pending is not None and not pending.done():
            pending.set_result(answer)

    def _refuse(self, text: str) -> None:
        self._give_up(text)
        self.close()

    def _give_up(self, text: str) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.set_exception(_Broken(text))
