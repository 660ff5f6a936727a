"""A real Alertmanager on loopback (Debian package ``prometheus-alertmanager``), and a webhook that it notifies."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from controlplane.processes import free_port, spawn


class Webhook:
    """Keeps what it receives, with the time of its arrival."""

    def __init__(self) -> None:
        self.received: list[tuple[float, dict[str, Any]]] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["content-length"])))
                webhook.received.append((time.time(), document))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def alerts(self, name: str, status: str) -> list[tuple[float, dict[str, Any]]]:
        """When each came, and what it says."""
        return [
            (at_s, item)
            for at_s, document in list(self.received)
            for item in document["alerts"]
            if (item["labels"]["alertname"], item["status"]) == (name, status)
        ]


@contextmanager
def running_alertmanager(
    folder: Path, webhook: Webhook, route: Mapping[str, Any], more: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[str]:
    """Its address, host and port. ``route`` is beside the receiver, ``more`` what that has beside the webhook."""
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("Alertmanager is not installed (Debian package prometheus-alertmanager)")
    receiver = {"name": "team", "webhook_configs": [{"url": webhook.url, "send_resolved": True}], **more}
    configuration = folder / "alertmanager.yml"
    configuration.write_text(yaml.safe_dump({"route": {"receiver": "team", **route}, "receivers": [receiver]}))
    subprocess.run(["amtool", "check-config", configuration], check=True, capture_output=True, timeout=60)
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={configuration}", f"--storage.path={folder / 'alertmanager'}"]
    options += [f"--web.listen-address={address}", "--cluster.listen-address="]
    with (folder / "alertmanager.log").open("wb") as log:
        process = spawn([binary, *options], stdout=log, stderr=log)
    try:
        yield address
    finally:
        process.kill()
        process.wait()
