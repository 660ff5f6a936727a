"""An inference server as Prometheus and its clients see it."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, generate_latest


def inference_server(host: str, port: int = 0) -> ThreadingHTTPServer:
    """Listens, and is not serving yet. Completes a request for each POST, and counts it as vLLM does."""
    registry = CollectorRegistry()
    finished = Counter("vllm:request_success", "Requests.", ["model_name", "finished_reason"], registry=registry)
    for reason in ("stop", "length", "abort"):
        finished.labels("phi", reason)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(generate_latest(registry))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            finished.labels("phi", "stop").inc()
            self._answer(b"{}")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    return ThreadingHTTPServer((host, port), Handler)
