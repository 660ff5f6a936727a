"""What callers may take of a server: all of them together, and how long each."""

from collections.abc import Callable
from dataclasses import dataclass, replace

BodyLimit = Callable[[str], int]
"""The largest body, in bytes, that a path takes."""
SMALL_BODY_BYTES = 4 << 10
"""Where no body is read: enough for a mistaken call to be answered."""


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Of one server. Times are counted from the first byte, so that none can be stretched by sending slowly."""

    connections: int = 512
    """A further one has the longest idle connection of the address with most connections closed."""
    buffered_bytes: int = 64 << 20
    """Of unfinished requests, requests in work and unread answers, over all connections. Past it the address that
    holds most is cut off, its largest connections first."""
    head_bytes: int = 16 << 10
    socket_bytes: int = 128 << 10
    """Of the kernel's buffers for a connection, which count where memory is limited. uvloop keeps as much again of one
    that uses TLS."""
    handshake_s: float = 5.0
    """TLS, from the accepted connection to its end."""
    head_s: float = 5.0
    request_s: float = 10.0
    """Head and body; as long is waited for an answer to be read."""
    linger_s: float = 2.0
    """After a refusal: closing at once would take the answer from a caller that is still sending."""

    def within(self, request_s: float) -> "HttpLimits":
        """The same, with requests in ``request_s`` at most."""
        return replace(
            self, request_s=request_s, head_s=min(self.head_s, request_s), linger_s=min(self.linger_s, request_s)
        )
