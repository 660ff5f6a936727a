"""A GPU reports an XID: a real Prometheus evaluates the rules, a real Alertmanager notifies, also of the end."""

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
from controlplane.processes import wait_for
from prometheus_server import RunningPrometheus

from kopt.core.alerts.catalogue import rule_groups
from tests.alerts.alertmanager_server import Webhook, running_alertmanager

pytestmark = pytest.mark.services


class Exporter:
    """Metrics of one GPU, as dcgm-exporter shows them."""

    def __init__(self) -> None:
        self.xid = 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = f'DCGM_FI_DEV_XID_ERRORS{{gpu="3",Hostname="gpu-1"}} {exporter.xid}\n'.encode()
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


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    server = Exporter()
    yield server
    server.close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    server = Webhook()
    yield server
    server.close()


@pytest.fixture
def alertmanager(webhook: Webhook, tmp_path: Path) -> Iterator[str]:
    route = {"group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    with running_alertmanager(tmp_path, webhook, route) as address:
        yield address


def asked(prometheus: RunningPrometheus, question: str) -> Any:
    answer = httpx.get(f"{prometheus.url}/api/v1/{question}", trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def evaluated_s(prometheus: RunningPrometheus) -> float:
    """When the rules about GPUs were evaluated last, Unix seconds."""
    groups = asked(prometheus, "rules")["groups"]
    (text,) = [group["lastEvaluation"] for group in groups if group["name"] == "kopt-gpu"]
    return datetime.fromisoformat(text[:19] + "+00:00").timestamp()


def test_from_an_xid_to_its_notification_and_back(
    exporter: Exporter, webhook: Webhook, alertmanager: str, tmp_path: Path
) -> None:
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
        assert not webhook.received
        exporter.xid = 79
        ((_, alert),) = wait_for(lambda: webhook.alerts("KoptGpuXidFatal", "firing"), what="the alert is notified")
        assert alert["labels"] == {
            "alertname": "KoptGpuXidFatal",
            "severity": "critical",
            "kind": "gpu",
            "node": "gpu-1",
            "gpu": "3",
            "xid": "79",
            "team": "platform",
        }
        assert alert["annotations"]["summary"] == "GPU 3 of gpu-1 reported XID 79."
        assert "Drain the node" in alert["annotations"]["description"]
        exporter.xid = 0
        wait_for(lambda: webhook.alerts("KoptGpuXidFatal", "resolved"), what="its end is notified")
    finally:
        prometheus.stop()
