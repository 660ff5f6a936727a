"""Servers that staging reads from in the tests: files over HTTP, a hub, and a pipe that counts what goes through."""

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit


@dataclass
class Served:
    """A file, and how it is served. ``busy`` and ``cut``: so many answers are 503, or end in the middle."""

    content: bytes
    etag: str = '"one"'
    modified: str = ""
    ranges: bool = True
    busy: int = 0
    cut: int = 0
    status: int = 200
    then: bytes | None = None
    """Content with another etag, from the second part on."""


@dataclass
class Web:
    """Files by their paths; ``asked`` has path (with query), range and headers of each request."""

    files: dict[str, Served] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    bytes_served: int = 0

    @property
    def ranges(self) -> list[str]:
        return [found for _, found, _ in self.asked if found]


@contextlib.contextmanager
def web() -> Iterator[Web]:
    """A server of files on loopback."""
    state = Web()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: Any) -> None:
            pass

        def do_GET(self) -> None:
            _answer(self, state)

    with _running(Handler) as url:
        state.url = url
        yield state


def _answer(handler: BaseHTTPRequestHandler, state: Web) -> None:
    headers = {key.lower(): value for key, value in handler.headers.items()}
    state.asked.append((handler.path, headers.get("range", ""), headers))
    one = state.files.get(unquote(urlsplit(handler.path).path))
    if one is None:
        _send(handler, 404, b"")
        return
    if one.then is not None and headers.get("range", "bytes=0-").startswith("bytes=0-") is False:
        one.content, one.then = one.then, None
        one.etag = one.etag and '"two"'
        one.modified = one.modified and "Sun, 22 Nov 2026 11:00:00 GMT"
    if one.busy or one.status != 200:
        one.busy = max(0, one.busy - 1)
        _send(handler, one.status if one.status != 200 else 503, b"")
        return
    if "if-match" in headers and headers["if-match"] != one.etag:
        _send(handler, 412, b"")
        return
    _send_file(handler, state, one, headers.get("range", "") if one.ranges else "")


def _send_file(handler: BaseHTTPRequestHandler, state: Web, one: Served, wanted: str) -> None:
    body, more = (
        one.content,
        {key: value for key, value in (("etag", one.etag), ("last-modified", one.modified)) if value},
    )
    status = 200
    if wanted:
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(body)) + 1, len(body))
        if begin >= len(body):
            _send(handler, 416, b"", {"content-range": f"bytes */{len(body)}"})
            return
        more["content-range"] = f"bytes {begin}-{end - 1}/{len(body)}"
        body, status = body[begin:end], 206
    if one.cut and len(body) > 1:
        one.cut -= 1
        _send(handler, status, body[: len(body) // 2], more, length=len(body))
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        return
    state.bytes_served += len(body)
    _send(handler, status, body, more)


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    more: dict[str, str] | None = None,
    length: int | None = None,
) -> None:
    handler.send_response(status)
    for key, value in {"content-length": str(len(body) if length is None else length), **(more or {})}.items():
        handler.send_header(key, value)
    handler.end_headers()
    with contextlib.suppress(OSError):
        handler.wfile.write(body)
        handler.wfile.flush()


@dataclass
class Hub:
    """A hub with one model; ``large`` files are told with their SHA-256, as those are that it keeps outside of git."""

    name: str
    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    token: str = ""
    commit: str = "c" * 40
    refs: tuple[str, ...] = ("main",)
    told: dict[str, str] = field(default_factory=dict)
    """Other names than the true ones in listings, other digests by ``oid:NAME``."""
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def tree(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"type": "directory", "path": "inner", "oid": "0" * 40, "size": 0}]
        for path, content in self.files.items():
            blob = hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()
            one: dict[str, Any] = {"type": "file", "path": self.told.get(path, path), "size": len(content), "oid": blob}
            if path in self.large:
                digest = self.told.get(f"oid:{path}", hashlib.sha256(content).hexdigest())
                one["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            found.append(one)
        return found


@contextlib.contextmanager
def hub(state: Hub) -> Iterator[Hub]:
    """Answers as https://huggingface.co does: pages of two files, files by redirect to another address."""
    with web() as store:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: Any) -> None:
                pass

            def do_GET(self) -> None:
                state.asked.append(self.path)
                if state.token and self.headers.get("authorization") != f"Bearer {state.token}":
                    _send(self, 401, b'{"error": "Invalid username or password."}')
                else:
                    _hub_answer(self, state, store)

        with _running(Handler) as url:
            state.url = url
            for path, content in state.files.items():
                store.files[f"/blobs/{path}"] = Served(content, etag='"of-the-store"')
            state.stored = store  # type: ignore[attr-defined]
            yield state


def _hub_answer(handler: BaseHTTPRequestHandler, state: Hub, store: Web) -> None:
    parts = urlsplit(handler.path)
    path = unquote(parts.path)
    api, files = f"/api/models/{state.name}", f"/{state.name}/resolve/{state.commit}/"
    if path in {f"{api}/revision/{one}" for one in (*state.refs, state.commit)}:
        _send(handler, 200, json.dumps({"sha": state.commit, "id": state.name}).encode())
    elif path == f"{api}/tree/{state.commit}":
        begin = int(parts.query.partition("cursor=")[2] or 0)
        tree = state.tree()
        more = {}
        if begin + 2 < len(tree):
            more["link"] = f'<{state.url}{parts.path}?recursive=true&limit=2&cursor={begin + 2}>; rel="next"'
        _send(handler, 200, json.dumps(tree[begin : begin + 2]).encode(), more)
    elif path.startswith(files):
        _send(handler, 302, b"", {"location": f"{store.url}/blobs/{quote(path.removeprefix(files))}?signed=1"})
    else:
        _send(handler, 404, b'{"error": "Repository not found"}')


@contextlib.contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Pipe:
    """A TCP relay to a port; ``bytes`` came from there. ``broken``: connections end at once, ``refused`` of them."""

    def __init__(self, port: int) -> None:
        self._target, self.bytes, self.broken, self.refused = port, 0, False, 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self.broken:
                    near.close()
                    self.refused += 1
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if self.broken:
                    break
                sink.sendall(piece)
                self.bytes += len(piece) * counted
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
