"""Everything from a GPU's driver to whoever is notified: the telemetry agent over the stand-in for NVML, the rules as
``kopt alerts rules`` writes them, a real Prometheus, a real Alertmanager and a webhook.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from controlplane.processes import Server, free_port
from controlplane.warm import KOPT
from nvml_standin.devices import Devices
from prometheus_server import RunningPrometheus

from kopt.core.alerts.catalogue import rule_groups
from kopt.core.hardware.gpu_telemetry import FAULTS
from tests.alerts.alertmanager_server import Webhook, running_alertmanager

NODE = "gpu-7"
AT_ONCE: Mapping[str, Any] = {"group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
"""A route on which every alert is a group of its own, and none waits for others."""


@dataclass(frozen=True)
class AlertPath:
    devices: Devices
    webhook: Webhook
    prometheus_url: str
    metrics_url: str

    def metrics(self) -> str:
        """What the agent shows."""
        return httpx.get(self.metrics_url, trust_env=False).text


@contextmanager
def running_path(
    folder: Path,
    *,
    gpus: int = 2,
    read_s: float = 2,
    fault_read_s: float = 2,
    scrape_s: int = 2,
    fault_scrape_s: int = 0,
    evaluate_s: int = 2,
    window_s: float = 3600,
    route: Mapping[str, Any] = AT_ONCE,
) -> Iterator[AlertPath]:
    """Seconds between readings of the GPUs, scrapes and evaluations (rules with an interval of their own keep it), and
    between those of faults, which are scraped with the rest where that is 0; ``window_s``: for how long an XID is
    recent."""
    with ExitStack() as running:
        webhook = Webhook()
        running.callback(webhook.close)
        devices = Devices(folder / "gpus", gpus=gpus)
        port = free_port()
        options = [f"--node={NODE}", f"--port={port}", f"--interval={read_s}", f"--xid-window={window_s}"]
        options += [f"--fault-interval={fault_read_s}"]
        agent = Server("telemetry", [*KOPT, "agent", "telemetry", *options], folder, devices.environment)
        running.callback(agent.stop)
        alertmanager = running.enter_context(running_alertmanager(folder, webhook, route))
        own = folder / "prometheus"
        own.mkdir()
        (own / "kopt.yaml").write_text(yaml.safe_dump({"groups": rule_groups(labels={"team": "platform"})}))
        labels = {"namespace": "kopt-agents", "pod": "kopt-telemetry-x"}
        targets = [{"targets": [f"127.0.0.1:{port}"], "labels": labels}]
        configuration = {
            "global": {"scrape_interval": f"{scrape_s}s", "evaluation_interval": f"{evaluate_s}s"},
            "rule_files": ["kopt.yaml"],
            "scrape_configs": _scrapes(targets, fault_scrape_s),
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        }
        prometheus = RunningPrometheus(own, configuration=yaml.safe_dump(configuration))
        running.callback(prometheus.stop)
        yield AlertPath(devices, webhook, prometheus.url, f"http://127.0.0.1:{port}/metrics")


def _scrapes(targets: list[dict[str, Any]], fault_scrape_s: int) -> list[dict[str, Any]]:
    """As the operator makes them of the chart's monitor: both paths are one job."""
    every: dict[str, Any] = {"job_name": "telemetry", "honor_labels": True, "static_configs": targets}
    if not fault_scrape_s:
        return [every]
    faults = every | {
        "job_name": "faults",
        "metrics_path": "/metrics/faults",
        "scrape_interval": f"{fault_scrape_s}s",
        "relabel_configs": [
            {"target_label": "job", "replacement": "telemetry"},
            {"source_labels": ["__metrics_path__"], "target_label": "metrics_path"},
        ],
    }
    left_out = {"action": "drop", "source_labels": ["__name__"], "regex": "|".join(FAULTS)}
    return [every | {"metric_relabel_configs": [left_out]}, faults]
