"""What a caller sent and what it gets back."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

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
    takes_gzip: bool = False

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
        head = (
            f"HTTP/1.1 {self.status} {_PHRASES[self.status]}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n{self.more}{last}\r\n"
        )
        return head.encode("latin-1", "replace") + self.body


Handler = Callable[[Request], Reply | Awaitable[Reply]]
