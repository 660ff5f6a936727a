"""An inference server as Prometheus and its clients see it: serve.py ADDRESS:PORT TARGETS NAMESPACE SERVICE.

Answers POSTs and counts them under vLLM's name. TARGETS is the folder in which Prometheus looks for what to scrape
(file_sd); the server's own entry goes with it.
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, generate_latest

REGISTRY = CollectorRegistry()
FINISHED = Counter("vllm:request_success", "Requests.", ["model_name", "finished_reason"], registry=REGISTRY)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(generate_latest(REGISTRY))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        FINISHED.labels("phi", "stop").inc()
        self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    address, folder, namespace, service = sys.argv[1:]
    host, _, port = address.rpartition(":")
    FINISHED.labels("phi", "stop")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    target = Path(folder) / f"{os.environ['POD_NAME']}.json"
    new = target.with_suffix(".new")
    labels = {"namespace": namespace, "service": service, "pod": os.environ["POD_NAME"]}
    new.write_text(json.dumps([{"targets": [address], "labels": labels}]))
    new.rename(target)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.serve_forever()
    finally:
        target.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
