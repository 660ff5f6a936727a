"""A GPU reports an XID: a real Prometheus evaluates the rules, a real Alertmanager notifies, also of the end."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from controlplane.processes import free_port, spawn, wait_for
from prometheus_server import RunningPrometheus

from kopt.core.alerts.catalogue import rule_groups

pytestmark = pytest.mark.services


class Exporter:
    """Metrics of one GPU, as dcgm-exporter shows them; and the receiver of notifications."""

    def __init__(self) -> None:
        self.xid, self.received = 0, list[dict[str, Any]]()
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = f'DCGM_FI_DEV_XID_ERRORS{{gpu="3",Hostname="gpu-1"}} {exporter.xid}\n'
                self._answer(text.encode())

            def do_POST(self) -> None:
                exporter.received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self._answer(b"")

            def _answer(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def notified(self, alert: str, status: str) -> list[dict[str, Any]]:
        return [
            item
            for notification in self.received
            for item in notification["alerts"]
            if (item["labels"]["alertname"], item["status"]) == (alert, status)
        ]


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    server = Exporter()
    yield server
    server.close()


@pytest.fixture
def alertmanager(exporter: Exporter, tmp_path: Path) -> Iterator[str]:
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("Alertmanager is not installed (Debian package prometheus-alertmanager)")
    receiver = {"name": "team", "webhook_configs": [{"url": f"http://{exporter.address}/", "send_resolved": True}]}
    route = {"receiver": "team", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    configuration = tmp_path / "alertmanager.yml"
    configuration.write_text(yaml.safe_dump({"route": route, "receivers": [receiver]}))
    subprocess.run(["amtool", "check-config", configuration], check=True, capture_output=True, timeout=60)
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "alertmanager.log").open("wb") as log:
        process = spawn(
            [
                binary,
                f"--config.file={configuration}",
                f"--storage.path={tmp_path / 'alertmanager'}",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
    yield address
    process.kill()
    process.wait()


def asked(prometheus: RunningPrometheus, question: str) -> Any:
    answer = httpx.get(f"{prometheus.url}/api/v1/{question}", trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def evaluated_s(prometheus: RunningPrometheus) -> float:
    """When the rules about GPUs were evaluated last, Unix seconds."""
    groups = asked(prometheus, "rules")["groups"]
    (text,) = [group["lastEvaluation"] for group in groups if group["name"] == "kopt-gpu"]
    return datetime.fromisoformat(text[:19] + "+00:00").timestamp()


def test_from_an_xid_to_its_notification_and_back(exporter: Exporter, alertmanager: str, tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (folder / "kopt.yaml").write_text(yaml.safe_dump({"groups": rule_groups(labels={"team": "platform"})}))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["kopt.yaml"],
        "scrape_configs": [{"job_name": "dcgm", "static_configs": [{"targets": [exporter.address]}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
    }
    prometheus = RunningPrometheus(folder, configuration=yaml.safe_dump(configuration))
    try:
        # One that applications cause is no reason to wake anybody.
        exporter.xid = 31
        wait_for(lambda: asked(prometheus, "query?query=DCGM_FI_DEV_XID_ERRORS==31")["result"], what="it is scraped")
        seen_s = time.time()
        wait_for(lambda: evaluated_s(prometheus) > seen_s, what="the rules are evaluated with it")
        assert not exporter.received
        exporter.xid = 79
        (alert,) = wait_for(lambda: exporter.notified("KoptGpuXidFatal", "firing"), what="the alert is notified")
        assert alert["labels"] == {
            "alertname": "KoptGpuXidFatal",
            "severity": "critical",
            "kind": "gpu",
            "node": "gpu-1",
            "gpu": "3",
            "team": "platform",
        }
        assert alert["annotations"]["summary"] == "GPU 3 of gpu-1 reported XID 79."
        assert "Drain the node" in alert["annotations"]["description"]
        exporter.xid = 0
        wait_for(lambda: exporter.notified("KoptGpuXidFatal", "resolved"), what="its end is notified")
    finally:
        prometheus.stop()
