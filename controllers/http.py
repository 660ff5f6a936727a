"""HTTP/1.1 for the clients that call thousands of times a minute, over connections that they keep open: kube-scheduler
and the API server.

A general server spends a tenth of a millisecond on each call, a tenth of what a pod may cost in all; this spends a
fifth of that. It knows requests with a Content-Length, one after the other on a connection, and refuses what else HTTP
has (chunked bodies, upgrades) with a status that says so.
"""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs

_LARGEST_HEAD_BYTES = 64 << 10
_SMALL_HEAD_BYTES = 1 << 10
_SWEEP_S = 10.0
_JSON = "application/json"
_PHRASES = {int(status): status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Request:
    """One call, whole."""

    method: str
    target: str
    body: bytes
    traceparent: str = ""
    """The W3C trace context that it came with."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def argument(self, name: str) -> str:
        """The first value of a query parameter; empty when there is none."""
        return parse_qs(self.target.partition("?")[2]).get(name, [""])[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """``more`` are further header lines, each ending in CRLF."""

    body: bytes
    status: int = 200
    content_type: str = _JSON
    more: str = ""

    @classmethod
    def text(cls, text: str, status: int = 200) -> "Reply":
        return cls(text.encode(), status, "text/plain; charset=utf-8")

    def encoded(self, closes: bool) -> bytes:
        last = "Connection: close\r\n" if closes else ""
        head = (f"HTTP/1.1 {self.status} {_PHRASES[self.status]}\r\nContent-Type: {self.content_type}\r\n"
                f"Content-Length: {len(self.body)}\r\n{self.more}{last}\r\n")  # fmt: skip
        return head.encode("latin-1", "replace") + self.body


Handler = Callable[[Request], Reply | Awaitable[Reply]]


class HttpServer:
    """Listens until `stop`. ``handle`` answers at once or returns something to wait for, and does not raise."""

    def __init__(self, handle: Handler, largest_body_bytes: int, patience_s: float = 30.0,
                 most_connections: int = 512) -> None:  # fmt: skip
        self.handle, self.largest_body_bytes, self.patience_s = handle, largest_body_bytes, patience_s
        self.most_connections = most_connections
        self.connections: set[Connection] = set()
        self.leaving = False
        """Answers ask for their connection to be closed."""
        self.term = 0
        """Rises when connections that were made before may go on no longer."""
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False) -> int:
        """The port it listens on; on ``::`` IPv4 as well. With ``reuse_port`` several processes listen on one, and the
        kernel deals connections out. Raises OSError when the address is taken."""
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listening.bind((host, port))
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Connection(self), sock=listening, ssl=tls, backlog=1024
            )
        except OSError as error:
            listening.close()
            raise OSError(f"{host}:{port} cannot be listened on: {error}") from error
        self._sweeper = asyncio.create_task(self._sweep())
        return int(listening.getsockname()[1])

    def end_connections(self) -> None:
        """Have callers connect anew: what is open, or on its way to be, ends at once or with the answer to what was
        asked."""
        self.term += 1
        for connection in tuple(self.connections):
            connection.finish()

    async def stop(self) -> None:
        """Stop listening and cut what is still open."""
        if self._server is None or self._sweeper is None:
            return
        self._server.close()
        self._sweeper.cancel()
        for connection in tuple(self.connections):
            connection.close()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper

    async def _sweep(self) -> None:
        """Whoever begins a request has to end it; half ones must not pile up."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.patience_s))
            for connection in tuple(self.connections):
                if connection.begun_s is not None and loop.time() - connection.begun_s > self.patience_s:
                    connection.close()


class Connection(asyncio.Protocol):
    """One client's connection: requests are answered in their order, the next is looked at after the answer."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._answering: asyncio.Future[Reply] | None = None
        self._refused = self._last = False
        self._term = server.term
        self.begun_s: float | None = None
        """When the request began that is not whole yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, and do what they say.
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= self._server.most_connections or self._term != self._server.term:
            self._transport.abort()
            return
        self._server.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        # What is being answered goes on: a Binding may be under way.
        self._transport = None
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._buffer += data
        if self._answering is None:
            self._advance()
        elif len(self._buffer) > _LARGEST_HEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """Close, after the answer to what was asked."""
        self._last = True
        if self._answering is None:
            self.close()

    def _advance(self) -> None:
        """Answer every request that is whole, until one has to be waited for."""
        while self._answering is None and self._transport is not None:
            try:
                request = self._next()
            except _Refused as refused:
                self._refuse(refused)
                return
            if request is None:
                self.begun_s = (self.begun_s or self._loop.time()) if self._buffer or self._head else None
                return
            self.begun_s = None
            head, whole = request
            answer = self._server.handle(whole)
            if isinstance(answer, Reply):
                self._write(answer, head.closes)
            else:
                self._answering = asyncio.ensure_future(answer)
                self._answering.add_done_callback(functools.partial(self._answered, head.closes))

    def _answered(self, closes: bool, answer: asyncio.Future[Reply]) -> None:
        self._answering = None
        self._write(answer.result(), closes)
        if self._transport is not None:
            self._transport.resume_reading()
            self._advance()

    def _refuse(self, refused: "_Refused") -> None:
        """Answer, and let the client send what it has begun: closing at once would take the answer from it."""
        self._refused, self.begun_s = True, self._loop.time()
        self._buffer.clear()
        if self._transport is not None:
            self._transport.write(Reply.text(f"{refused}\n", refused.status).encoded(closes=True))

    def _write(self, reply: Reply, closes: bool) -> None:
        if self._transport is None:
            return
        closes = closes or self._last or self._server.leaving
        self._transport.write(reply.encoded(closes))
        if closes:
            self._transport.close()
            self._transport = None

    def _next(self) -> "tuple[_Head, Request] | None":
        """The next request, None while it is not whole. Raises _Refused."""
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n", 0, _LARGEST_HEAD_BYTES)
            if end < 0:
                if len(self._buffer) >= _LARGEST_HEAD_BYTES:
                    raise _Refused(431, "the head of a request has at most 64 KiB")
                return None
            self._head = _head_of(bytes(self._buffer[:end]), self._server.largest_body_bytes)
            del self._buffer[: end + 4]
            if self._head.asks_first and self._transport is not None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = self._head
        if len(self._buffer) < head.length:
            return None
        body = bytes(self._buffer[: head.length])
        del self._buffer[: head.length]
        self._head = None
        return head, Request(head.method, head.target, body, head.traceparent)


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    target: str
    length: int
    closes: bool
    asks_first: bool
    traceparent: str


class _Refused(Exception):
    """A request that is not read on; the connection ends with the status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _head_of(head: bytes, largest_body_bytes: int) -> _Head:
    """The same clients say the same again and again. Raises _Refused."""
    parse = _known_head if len(head) <= _SMALL_HEAD_BYTES else _parse_head
    return parse(head, largest_body_bytes)


def _parse_head(head: bytes, largest_body_bytes: int) -> _Head:
    """Raises _Refused for what is no request, and for what this server does not read."""
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0") or not parts[1].startswith("/"):
        raise _Refused(400, "not an HTTP/1.1 request")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "content-length" and name in fields):
            raise _Refused(400, "a header that is none")
        fields[name] = value.strip()
    if "transfer-encoding" in fields:
        raise _Refused(411, "send a Content-Length")
    written = fields.get("content-length", "0")
    if not written.isascii() or not written.isdigit() or len(written) > 18:
        raise _Refused(400, "the Content-Length is no number")
    if int(written) > largest_body_bytes:
        raise _Refused(413, f"a call has at most {largest_body_bytes} bytes")
    wishes = fields.get("connection", "").lower()
    closes = "close" in wishes or (parts[2] == "HTTP/1.0" and "keep-alive" not in wishes)
    asks_first = fields.get("expect", "").lower() == "100-continue"
    return _Head(parts[0], parts[1], int(written), closes, asks_first, fields.get("traceparent", ""))


_known_head = lru_cache(maxsize=512)(_parse_head)
