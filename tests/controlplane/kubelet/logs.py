"""The kubelet's server: container logs, for the API server only."""

import ssl
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from controlplane.certificates import KeyPair

if TYPE_CHECKING:
    from controlplane.kubelet.pods import PodWorker

_API_SERVER = "kube-apiserver-kubelet-client"


class LogServer(ThreadingHTTPServer):
    """HTTPS on loopback with client certificates; ``find`` gives the worker of a pod by namespace and name."""

    daemon_threads = True

    def __init__(self, serving: KeyPair, authority: Path, find: "Callable[[str, str], PodWorker | None]") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.find = find
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(serving.certificate, serving.key)
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
        # The handshake happens in the request's thread: a silent client must not stop the others.
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that breaks off is no error of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: LogServer

    def do_GET(self) -> None:
        """``/containerLogs/<namespace>/<pod>/<container>?follow=&tailLines=&limitBytes=&previous=``."""
        url = urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        subject = dict(pair[0] for pair in self.connection.getpeercert()["subject"])
        if subject.get("commonName") != _API_SERVER:
            return self.send_error(403, "only the API server may read logs here")
        if len(parts) != 4 or parts[0] != "containerLogs":
            return self.send_error(501, "this kubelet serves container logs only")
        worker = self.server.find(parts[1], parts[2])
        container = worker.container(parts[3]) if worker else None
        if worker is None or container is None:
            return self.send_error(404, "no such container here")
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        path = container.previous_log if query.get("previous") == "true" else container.log
        if not path.exists():
            return self.send_error(400, f'container "{container.name}" has no such log')
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        content = path.read_bytes()
        self.wfile.write(_cut(content, query))
        if query.get("follow") == "true" and query.get("previous") != "true":
            self._follow(path, len(content), lambda: container.running and container.log == path)
        return None

    def _follow(self, path: Path, offset: int, goes_on: Callable[[], bool]) -> None:
        while True:
            last = not goes_on()
            with path.open("rb") as log:
                log.seek(offset)
                more = log.read()
            self.wfile.write(more)
            self.wfile.flush()
            offset += len(more)
            if last:
                return
            time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        """Requests are not printed."""


def _cut(content: bytes, query: dict[str, str]) -> bytes:
    if "tailLines" in query:
        wanted = int(query["tailLines"])
        content = b"".join(content.splitlines(keepends=True)[-wanted:] if wanted else [])
    return content[: int(query["limitBytes"])] if "limitBytes" in query else content
