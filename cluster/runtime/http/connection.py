"""One client's connection: requests are answered in their order, one after the other."""

import asyncio
import functools
from collections.abc import Callable
from typing import Protocol, cast

from kopt.cluster.runtime.http.limits import BodyLimit, HttpLimits
from kopt.cluster.runtime.http.messages import Handler, Reply, Request
from kopt.cluster.runtime.http.parsing import Head, Refused, read_head
from kopt.cluster.runtime.http.shares import Peer, Shares, State

_AHEAD_BYTES = 64 << 10
"""Of requests that came before their turn: more is not read until there is less."""
_UNREAD_BYTES = 16 << 10
"""Of answers: with more than this nothing further is answered."""


class Listener(Protocol):
    """What connections share."""

    handle: Handler
    body_limit: BodyLimit
    limits: HttpLimits
    shares: Shares
    admits: Callable[[asyncio.Transport], bool]
    draining: bool
    term: int


class Connection(asyncio.Protocol):
    """Made when a client was accepted, before TLS; ``deadline_s`` is when it has to be further, by the loop's clock."""

    def __init__(self, server: Listener, address: str) -> None:
        self._server, self.address = server, address
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._searched = 0
        self._head: Head | None = None
        self._answering: asyncio.Future[Reply] | None = None
        self._in_work_bytes = self._unread_bytes = 0
        self._refused = self._last = self._closing = self._scheduled = self._paused = False
        self._term = server.term
        self.state, self.peer = State.BUSY, Peer()
        self.buffered_bytes = 0
        self.handshake: asyncio.Task[None] | None = None
        self._begun_s: float | None = None
        self.deadline_s: float = self._loop.time() + server.limits.handshake_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, and do what they say.
        self._transport = cast(asyncio.Transport, transport)
        if self._closing or self._term != self._server.term or not self._server.admits(self._transport):
            self.drop()
            return
        self._transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        self._move(State.IDLE)

    def connection_lost(self, _: Exception | None) -> None:
        # What is being answered goes on: a Binding may be under way.
        self._transport = None
        self._buffer.clear()
        self._server.shares.remove(self)

    def data_received(self, data: bytes) -> None:
        if self._refused or self._closing:
            return
        self._buffer += data
        if self._answering is None and not self._scheduled and not self._unread_bytes:
            self._advance()
        elif len(self._buffer) > _AHEAD_BYTES:
            self._pause()
        self._charge()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._unread_bytes = self._transport.get_write_buffer_size()
            self._await_caller(self._server.limits.request_s)
            self._charge()

    def resume_writing(self) -> None:
        self._unread_bytes = 0
        if self._closing or self._transport is None:
            return
        if self._answering is None and not self._refused:
            self._begun_s = None
            self._move(State.IDLE)
            self._schedule()
        self._charge()

    def close(self) -> None:
        """After what was written; a client that does not read it is cut off in time."""
        self._closing = True
        if self._transport is not None:
            self._await_caller(self._server.limits.request_s)
            self._transport.close()
        elif self.handshake is not None:
            self.handshake.cancel()

    def give_up(self) -> None:
        """Its time is up."""
        if self._closing or self._unread_bytes:
            self.drop()
        else:
            self.close()

    @property
    def made(self) -> bool:
        """Whether it got through its handshake."""
        return self._transport is not None

    def drop(self) -> None:
        """Now."""
        self._closing = True
        self._buffer.clear()
        if self._transport is not None:
            self._transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def finish(self) -> None:
        """Close, after the answer to what was asked."""
        self._last = True
        if self._answering is None:
            self.close()

    def _advance(self) -> None:
        """Answer the next request if it is complete. One at a time, so that the loop is shared fairly."""
        self._scheduled = False
        if self._answering is not None or self._transport is None or self._unread_bytes or self._closing:
            return
        try:
            request = self._next()
        except Refused as refused:
            self._refuse(refused)
            return
        if request is None:
            self._wait_for_more()
            return
        self._begun_s = None
        head, whole = request
        answer = self._server.handle(whole)
        if isinstance(answer, Reply):
            if self.state is State.IDLE:
                self._server.shares.touch(self)
            else:
                self._move(State.IDLE)
            self._write(answer, head.closes)
            if self._buffer:
                self._schedule()
        else:
            self._in_work_bytes = len(whole.body)
            self._move(State.ANSWERING)
            self._answering = asyncio.ensure_future(answer)
            self._answering.add_done_callback(functools.partial(self._answered, head.closes))

    def _schedule(self) -> None:
        if self._buffer and not self._scheduled and not self._closing:
            self._scheduled = True
            self._loop.call_soon(self._advance_later)

    def _advance_later(self) -> None:
        self._advance()
        self._resume()
        self._charge()

    def _answered(self, closes: bool, answer: asyncio.Future[Reply]) -> None:
        self._answering, self._in_work_bytes = None, 0
        self._move(State.IDLE)
        self._write(answer.result(), closes)
        self._schedule()
        self._resume()
        self._charge()

    def _wait_for_more(self) -> None:
        if not (self._buffer or self._head):
            return
        limits = self._server.limits
        if self._begun_s is None:
            self._begun_s = self._loop.time()
            self._move(State.BUSY)
        self.deadline_s = self._begun_s + (limits.head_s if self._head is None else limits.request_s)

    def _refuse(self, refused: Refused) -> None:
        """Answer, and let the client send what it has begun: closing at once would take the answer from it."""
        self._refused = True
        self._buffer.clear()
        if self._transport is not None:
            self._transport.write(Reply.text(f"{refused}\n", refused.status).encoded(closes=True))
            self._await_caller(self._server.limits.linger_s)

    def _await_caller(self, seconds: float) -> None:
        """It is the caller's turn, for so long."""
        self.deadline_s = self._loop.time() + seconds
        self._move(State.BUSY)

    def _write(self, reply: Reply, closes: bool) -> None:
        if self._transport is None or self._closing:
            return
        closes = closes or self._last or self._server.draining
        self._transport.write(reply.encoded(closes))
        if closes:
            self.close()

    def _next(self) -> tuple[Head, Request] | None:
        """The next request, None while it is not whole. Raises Refused."""
        if self._head is None and not self._consume_head():
            return None
        head = self._head
        assert head is not None
        if len(self._buffer) < head.length:
            return None
        body = bytes(self._buffer[: head.length])
        del self._buffer[: head.length]
        self._head = None
        return head, Request(head.method, head.target, body, head.traceparent, head.takes_gzip)

    def _consume_head(self) -> bool:
        """Whether the head is whole; its bytes are gone then. Raises Refused."""
        largest = self._server.limits.head_bytes
        end = self._buffer.find(b"\r\n\r\n", max(0, self._searched - 3), largest)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched >= largest:
                raise Refused(431, f"the head of a request has at most {largest >> 10} KiB")
            return False
        head = read_head(bytes(self._buffer[: end + 4]))
        most = self._server.body_limit(head.target.partition("?")[0])
        if head.length > most:
            raise Refused(413, f"a call has at most {most} bytes")
        del self._buffer[: end + 4]
        self._searched, self._head = 0, head
        if head.expects_continue and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None and self._answering is None and not self._closing:
            if len(self._buffer) > _AHEAD_BYTES and self._scheduled:
                return
            self._paused = False
            self._transport.resume_reading()

    def _move(self, state: State) -> None:
        if not (self._closing and state is State.IDLE):
            self._server.shares.move(self, state)

    def _charge(self) -> None:
        kept = len(self._buffer) + self._in_work_bytes + self._unread_bytes
        if kept != self.buffered_bytes:
            self._server.shares.charge(self, kept)
