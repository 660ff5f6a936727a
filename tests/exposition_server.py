"""Exposition text on loopback, as exporters serve it, and a Prometheus that scrapes it."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml


@contextmanager
def serving(lines: Sequence[str]) -> Iterator[str]:
    """The address of a server whose answer is what ``lines`` are at the time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = "\n".join([*lines, ""]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def scraping(*targets: str, every_s: float = 1, **more: object) -> str:
    """Configuration of a Prometheus; ``more`` is further keys of it."""
    interval = f"{every_s:g}s"
    times: Mapping[str, str] = {"scrape_interval": interval, "evaluation_interval": interval}
    job = {"job_name": "test", "honor_labels": True, "static_configs": [{"targets": list(targets)}]}
    return yaml.safe_dump({"global": times, "scrape_configs": [job], **more})
