"""Heads of requests, read by llhttp (httptools): what two parsers could read in two ways is refused, never guessed.

llhttp refuses a second Content-Length, one beside a Transfer-Encoding, one that is no number, line ends without CR,
folded lines, control characters and spaces before a colon. What is refused here on top is what this server does not
speak: chunked bodies, upgrades, other versions and protocols, and a second Host.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

_SMALL_HEAD_BYTES = 1 << 10
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NEVER = re.compile(rb"q=0(\.0*)?")
_VERSIONS = ("1.1", "1.0")


@dataclass(frozen=True, slots=True)
class Head:
    """``length``: bytes of the body; ``expects_continue``: the caller waits for a 100 before it sends them."""

    method: str
    target: str
    length: int
    closes: bool
    expects_continue: bool
    traceparent: str
    takes_gzip: bool = False


class Refused(Exception):
    """A request that is not read on; the connection ends with the status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Fields:
    """Called back by the parser with the parts of one head."""

    __slots__ = ("complete", "headers", "hosts", "keeps_alive", "parser", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.hosts = 0
        self.complete = self.keeps_alive = False
        self.parser: Any = HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers[name] = value
        self.hosts += name == b"host"

    def on_headers_complete(self) -> None:
        # Not later: a message without a body is complete at once, and then the parser has forgotten.
        self.complete, self.keeps_alive = True, self.parser.should_keep_alive()


def read_head(head: bytes) -> Head:
    """``head`` ends with its empty line, and holds no other. Raises Refused."""
    # The same clients send the same heads again and again.
    return _cached_head(head) if len(head) <= _SMALL_HEAD_BYTES else _parse(head)


def _parse(head: bytes) -> Head:
    fields = _Fields()
    parser = fields.parser
    try:
        parser.feed_data(head)
    except HttpParserUpgrade:
        raise Refused(400, "upgrades and tunnels are not served") from None
    except HttpParserError as error:
        raise _refusal(error, fields) from None
    finally:
        # The two refer to each other: collecting cycles would hold up the loop.
        del fields.parser
    method = parser.get_method().decode("latin-1")
    if not fields.complete or parser.get_http_version() not in _VERSIONS or method not in _METHODS:
        raise Refused(400, "not an HTTP/1.1 request")
    if not fields.target.startswith(b"/"):
        raise Refused(400, "send the path alone as the request's target")
    return _head_of(method, fields, closes=not fields.keeps_alive)


def _head_of(method: str, fields: _Fields, *, closes: bool) -> Head:
    header = fields.headers.get
    if header(b"transfer-encoding") is not None:
        raise Refused(411, "send a Content-Length")
    if fields.hosts > 1:
        raise Refused(400, "more than one Host")
    length, traceparent = int(header(b"content-length", b"0")), header(b"traceparent", b"").decode("latin-1").strip()
    waits = header(b"expect", b"").strip().lower() == b"100-continue"
    takes_gzip = _takes_gzip(header(b"accept-encoding", b""))
    return Head(method, fields.target.decode("latin-1"), length, closes, waits, traceparent, takes_gzip)


def _takes_gzip(accepted: bytes) -> bool:
    codings = (coding.replace(b" ", b"").lower().partition(b";") for coding in accepted.split(b","))
    return any(name == b"gzip" and not _NEVER.fullmatch(weight) for name, _, weight in codings)


def _refusal(error: HttpParserError, fields: _Fields) -> Refused:
    if fields.complete and b"content-length" not in fields.headers and b"transfer-encoding" in fields.headers:
        return Refused(411, "send a Content-Length")
    return Refused(400, f"not an HTTP/1.1 request: {error}")


_cached_head = lru_cache(maxsize=512)(_parse)
