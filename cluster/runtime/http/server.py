"""Listens, accepts, and ends what takes too long."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from kopt.cluster.runtime.http.connection import Connection
from kopt.cluster.runtime.http.limits import BodyLimit, HttpLimits
from kopt.cluster.runtime.http.messages import Handler
from kopt.cluster.runtime.http.shares import Shares, peer_of

_LOG = logging.getLogger(__name__)
_SWEEP_S = 1.0
_BACKLOG = 1024
_TURN = 64
"""Connections accepted before others of the loop's have their turn."""
_PAUSE_S = 0.005
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpServer:
    """Listens until `stop`. ``handle`` answers at once or returns something to wait for, and does not raise.

    ``largest_body_bytes`` is for all paths, or by path; ``patience_s`` and ``most_connections`` are two of
    ``limits``.
    """

    def __init__(
        self,
        handle: Handler,
        largest_body_bytes: int | BodyLimit,
        patience_s: float | None = None,
        most_connections: int | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        limits = limits or HttpLimits()
        limits = limits if patience_s is None else limits.within(patience_s)
        self.limits = limits if most_connections is None else replace(limits, connections=most_connections)
        self.handle = handle
        self.body_limit: BodyLimit = (
            largest_body_bytes if callable(largest_body_bytes) else lambda _: largest_body_bytes
        )
        self.shares = Shares(self.limits.connections, self.limits.buffered_bytes)
        self.admits: Callable[[asyncio.Transport], bool] = lambda _: True
        """Whether a caller may go on once TLS is agreed with; others are cut."""
        self.draining = False
        """Answers ask for their connection to be closed."""
        self.term = 0
        """Rises when connections that were made before may go on no longer."""
        self._listening: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connections(self) -> list[Connection]:
        """All that are open, also those that TLS is not agreed with yet."""
        return cast(list[Connection], self.shares.everything())

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False) -> int:
        """The port it listens on; on ``::`` IPv4 as well. With ``reuse_port`` several processes listen on one, and the
        kernel deals connections out. Raises OSError when the address is taken."""
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            # Accepted connections inherit both.
            listening.setsockopt(socket.SOL_SOCKET, option, self.limits.socket_bytes)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listening.bind((host, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise OSError(f"{host}:{port} cannot be listened on: {error}") from error
        listening.setblocking(False)
        self._listening = listening
        self._tasks = [asyncio.create_task(self._accept(listening, tls)), asyncio.create_task(self._sweep())]
        return int(listening.getsockname()[1])

    def end_connections(self) -> None:
        """Have callers connect anew: what is open, or on its way to be, ends at once or with the answer to what was
        asked."""
        self.term += 1
        for connection in self.connections:
            connection.finish()

    async def stop(self) -> None:
        """Stop listening and cut what is still open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in self.connections:
            connection.close()

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop, accepted = asyncio.get_running_loop(), 0
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    _LOG.warning("no connection can be accepted (%s); the longest idle one is closed", error)
                    self.shares.free_connection()
                    await asyncio.sleep(_PAUSE_S)
                continue
            peer = peer_of(address)
            while not self.shares.make_room(peer):
                await asyncio.sleep(_PAUSE_S)
            self._start(client, peer, tls)
            accepted += 1
            if accepted % _TURN == 0:
                await asyncio.sleep(0)

    def _start(self, client: socket.socket, peer: str, tls: ssl.SSLContext | None) -> None:
        connection = Connection(self, peer)
        self.shares.add(connection)
        connection.handshake = asyncio.create_task(self._open(connection, client, tls))

    async def _open(self, connection: Connection, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Hand the socket to its connection, after TLS. A failure concerns this caller only."""
        times: dict[str, float] = {}
        if tls is not None:
            times = {"ssl_handshake_timeout": self.limits.handshake_s, "ssl_shutdown_timeout": self.limits.linger_s}
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: connection, client, ssl=tls, **times)
        except (OSError, asyncio.CancelledError) as error:
            # Certificates that do not fit are an OSError too.
            _LOG.debug("a connection from %s was not made: %r", connection.address, error)
            client.close()
            if not connection.made:
                self.shares.remove(connection)
        finally:
            connection.handshake = None

    async def _sweep(self) -> None:
        """A request that was begun has to be completed in time; half requests must not pile up."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.limits.request_s / 2))
            now_s = loop.time()
            for connection in cast(list[Connection], self.shares.unfinished()):
                if connection.deadline_s < now_s:
                    connection.give_up()


def _same(largest_body_bytes: int) -> BodyLimit:
    return lambda _: largest_body_bytes
