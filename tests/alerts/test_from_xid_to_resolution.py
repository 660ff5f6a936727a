"""A driver reports an XID, somebody is notified and looks after it, and it ends; only the driver is made up."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.processes import Server, free_port, wait_for
from typer.testing import CliRunner

from kopt.cli.main import app
from tests.alerts.alert_path import NODE, AlertPath, running_path

pytestmark = [
    pytest.mark.long,
    pytest.mark.services,
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the stand-in of NVML"),
]
ALERT, WINDOW_S = "KoptGpuXidFatal", 60
OUTLASTS_S = 300
"""By the rule, what it goes by."""
EVERY_S = 2


def kopt(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def episodes(prometheus: str) -> list[dict[str, Any]]:
    """As ``kopt alerts history`` lists them, of this alert."""
    listed = json.loads(kopt("alerts", "history", "--prometheus", prometheus, "--since=1h", "-o", "json"))
    return [row for row in listed["alerts"] if row["alert"] == ALERT]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[AlertPath]:
    with running_path(tmp_path, read_s=EVERY_S, scrape_s=EVERY_S, evaluate_s=EVERY_S, window_s=WINDOW_S) as path:
        yield path


@contextmanager
def pages(prometheus: str, home: Path) -> Iterator[str]:
    """The product's pages as a process of their own; their address."""
    port = free_port()
    environment = {
        "KOPT_HOME": str(home),
        "KOPT_PAGES_PORT": str(port),
        "KOPT_PAGES_PROMETHEUS": prometheus,
        "KOPT_ENDPOINT": "http://127.0.0.1:9",
        "KUBECONFIG": "",
    }
    server = Server("pages", [sys.executable, "-P", "-m", "kopt.cli.local.pages"], home, environment)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def page_says(address: str, holds: Callable[[str], bool], what: str) -> None:
    def looked() -> bool:
        reply = httpx.get(f"{address}/alerts?since=1d", trust_env=False)
        return reply.status_code == 200 and holds(reply.text)

    wait_for(looked, timeout_s=150, what=what)


def firing_part(text: str) -> str:
    """Of the page: what fires now."""
    return text.partition(">Now<")[2].partition("<h2")[0]


@pytest.mark.timeout(900)
def test_from_the_driver_to_a_notification_an_acknowledgement_and_the_end(
    path: AlertPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("KOPT_HOME", str(home))
    monkeypatch.delenv("KOPT_DATABASE_URL", raising=False)
    monkeypatch.delenv("KOPT_STATE_DIR", raising=False)
    wait_for(lambda: 'kopt_gpu_up{gpu="1"' in path.metrics(), what="the agent reads the GPUs")
    with pages(path.prometheus_url, home) as address:
        page_says(address, lambda text: "Alerts" in text, "the page is there")
        # One that applications cause is no reason to wake anybody; nor does it hide the one before it.
        path.devices.xid(0, 31)
        wait_for(lambda: 'xid="31"' in path.metrics(), what="the agent shows it")
        time.sleep(3 * EVERY_S)
        assert not path.webhook.received
        begin_s = time.time()
        path.devices.xid(1, 45, 79)
        ((notified_s, alert),) = wait_for(lambda: path.webhook.alerts(ALERT, "firing"), what="the alert is notified")
        labels = {"severity": "critical", "kind": "gpu", "node": NODE, "gpu": "1", "xid": "79", "team": "platform"}
        assert alert["labels"] == {"alertname": ALERT, **labels}
        assert alert["annotations"]["summary"] == f"GPU 1 of {NODE} reported XID 79."
        assert "Drain the node" in alert["annotations"]["description"]
        # The verbs know at once, without the Alertmanager.
        (row,) = episodes(path.prometheus_url)
        assert (row["severity"], row["resolved"], row["acknowledged"]) == ("critical", "", "")
        page_says(address, lambda text: ALERT in firing_part(text), "the page shows that it fires")
        kopt("alerts", "acknowledge", row["id"], "--prometheus", path.prometheus_url, "--by=ada", "--note=drained")
        page_says(address, lambda text: "drained" in firing_part(text), "the page shows who looks after it")
        ((resolved_s, end),) = wait_for(
            lambda: path.webhook.alerts(ALERT, "resolved"),
            timeout_s=WINDOW_S + OUTLASTS_S + 90,
            what="its end is notified",
        )
        assert end["fingerprint"] == alert["fingerprint"]
        page_says(
            address,
            lambda text: ALERT not in firing_part(text) and ALERT in text and "drained" in text,
            "the page shows its end",
        )
    (row,) = episodes(path.prometheus_url)
    assert row["acknowledged"] == "ada: drained"
    assert row["resolved"]
    # Right to a sample on either side.
    assert row["seconds"] == pytest.approx(resolved_s - notified_s, abs=120)
    assert resolved_s - begin_s > WINDOW_S + OUTLASTS_S
    assert notified_s - begin_s < 60


def test_a_gpu_that_falls_off_the_bus_still_says_why(path: AlertPath) -> None:
    wait_for(lambda: 'kopt_gpu_up{gpu="1"' in path.metrics(), what="the agent reads the GPUs")
    # Its last words and its end come between two readings.
    path.devices.xid(1, 79)
    path.devices.state.activity[1].lost = 1
    ((_, alert),) = wait_for(lambda: path.webhook.alerts(ALERT, "firing"), what="the alert is notified")
    assert (alert["labels"]["gpu"], alert["labels"]["xid"]) == ("1", "79")
    assert wait_for(lambda: path.webhook.alerts("KoptGpuLost", "firing"), timeout_s=150, what="so is its absence")
    path.devices.state.activity[1].lost = 0
    assert wait_for(lambda: path.webhook.alerts("KoptGpuLost", "resolved"), what="and that it is back")
