"""Whose connection goes when a server is full: connections and buffered bytes, by the address that holds them.

No address has a fixed share, as an API server in a burst may need them all. But who holds most pays first, so a caller
that holds little is never cut off for one that holds much.
"""

import ipaddress
from enum import Enum
from typing import Protocol

_DOWN_TO = 0.9
"""Of the budget for bytes: freeing some at once spares looking again for each packet."""


class State(Enum):
    """BUSY: in a handshake or a request, or with an answer unread. Only a fair share ends what is BUSY; ANSWERING
    ends by itself."""

    BUSY = "busy"
    IDLE = "idle"
    ANSWERING = "answering"


class Peer:
    """What one address holds: connections by state, those longest in it first."""

    __slots__ = ("answering", "buffered_bytes", "busy", "idle")

    def __init__(self) -> None:
        self.busy: dict[Connected, None] = {}
        self.idle: dict[Connected, None] = {}
        self.answering: dict[Connected, None] = {}
        self.buffered_bytes = 0

    def __len__(self) -> int:
        return len(self.busy) + len(self.idle) + len(self.answering)

    def of(self, state: State) -> "dict[Connected, None]":
        if state is State.IDLE:
            return self.idle
        return self.busy if state is State.BUSY else self.answering


class Connected(Protocol):
    """A connection as its shares see it; ``drop`` ends it at once and does not raise."""

    address: str
    peer: Peer
    """Of the address; set when it is added."""
    state: State
    buffered_bytes: int

    def drop(self) -> None: ...


class Shares:
    """Counts what is open. Everything but finding the largest address takes constant time."""

    def __init__(self, most_connections: int, most_bytes: int) -> None:
        self._most_connections, self._most_bytes = most_connections, most_bytes
        self._peers: dict[str, Peer] = {}
        self._count = 0
        self.buffered_bytes = 0
        self.dropped = 0
        """Connections that made way for others."""

    def make_room(self, address: str) -> bool:
        """Room for one more connection of this address; False where it holds most itself and all of that is being
        answered, which ends soon."""
        return self._count < self._most_connections or self.free_connection(address)

    def free_connection(self, address: str | None = None) -> bool:
        """End one connection of the address that holds most, its longest idle one where it has any."""
        largest = max(self._peers.values(), key=len, default=None)
        if largest is None:
            return False
        own = address is not None and largest is self._peers.get(address)
        for connections in (largest.idle, largest.busy, {} if own else largest.answering):
            if connections:
                self._drop(next(iter(connections)))
                return True
        return False

    def add(self, connection: Connected) -> None:
        peer = connection.peer = self._peers.setdefault(connection.address, Peer())
        peer.of(connection.state)[connection] = None
        self._count += 1

    def touch(self, connection: Connected) -> None:
        """It was used just now."""
        idle = connection.peer.idle
        if connection in idle:
            del idle[connection]
            idle[connection] = None

    def move(self, connection: Connected, state: State) -> None:
        """Into ``state``, as the one that came last; nothing for a connection that is gone."""
        peer = connection.peer
        if connection not in peer.of(connection.state):
            return
        del peer.of(connection.state)[connection]
        connection.state = state
        peer.of(state)[connection] = None

    def charge(self, connection: Connected, buffered_bytes: int) -> None:
        """So many bytes are kept for the connection now. May drop it, or others."""
        peer = connection.peer
        if connection not in peer.of(connection.state):
            return
        more = buffered_bytes - connection.buffered_bytes
        connection.buffered_bytes = buffered_bytes
        peer.buffered_bytes += more
        self.buffered_bytes += more
        if more > 0 and self.buffered_bytes > self._most_bytes:
            self._free_bytes()

    def remove(self, connection: Connected) -> None:
        peer = connection.peer
        if connection not in peer.of(connection.state):
            return
        del peer.of(connection.state)[connection]
        self._count -= 1
        peer.buffered_bytes -= connection.buffered_bytes
        self.buffered_bytes -= connection.buffered_bytes
        if not len(peer) and self._peers.get(connection.address) is peer:
            del self._peers[connection.address]

    def unfinished(self) -> "list[Connected]":
        """What is BUSY: whose time may be up."""
        return [connection for peer in self._peers.values() for connection in peer.busy]

    def everything(self) -> "list[Connected]":
        return [connected for peer in self._peers.values() for state in State for connected in peer.of(state)]

    def _free_bytes(self) -> None:
        while self.buffered_bytes > self._most_bytes * _DOWN_TO:
            peer = max(self._peers.values(), key=lambda peer: peer.buffered_bytes)
            # What is being answered keeps its bytes whatever becomes of its connection.
            largest = max(peer.busy, key=lambda connected: connected.buffered_bytes, default=None)
            if largest is None or not largest.buffered_bytes:
                return
            self._drop(largest)

    def _drop(self, connection: Connected) -> None:
        self.remove(connection)
        self.dropped += 1
        connection.drop()


def peer_of(address: object) -> str:
    """Who is behind a socket's address: an IPv4 address, or the /64 that one host has of IPv6."""
    host = address[0] if isinstance(address, tuple) and address else ""
    try:
        result = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return str(host)
    if isinstance(result, ipaddress.IPv4Address):
        return str(result)
    return str(result.ipv4_mapped or ipaddress.ip_network((int(result) >> 64 << 64, 64)))
