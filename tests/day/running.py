"""Everything that answers about a replayed day: a real API server, kube-state-metrics, Prometheus with the shipped
rules, the agents of all nodes, the meter and the pages.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from controlplane import build
from controlplane.kwok import Kwok
from controlplane.plane import Cluster
from controlplane.processes import PATIENCE_S, Server, free_port, wait_for
from prometheus_server import RunningPrometheus
from replicas import ControllerProcess

from kopt.core.alerts.catalogue import rule_groups
from tests.day.agents import Agents, Node
from tests.day.plan import GPUS, TEAMS, Plan
from tests.day.player import Player
from tests.day.truth import Truth

PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "kaiwo.ai/provider": "lambda"}
_OF_AN_HOUR = "kopt:gpu:busy_ratio[1h]"
_HOUR = re.compile(r"\[1h\]|offset 55m")


@dataclass(frozen=True)
class Times:
    """Seconds. ``span_s``: how long the day lasts; the others as configurations have them."""

    span_s: float
    read_s: float = 2
    scrape_s: float = 4
    evaluate_s: float = 4
    reconcile_s: float = 5
    """Between two comparisons of what the meter has of pods and of nodes: an hour elsewhere."""

    @property
    def faster(self) -> float:
        """How many times faster than it was the day goes by."""
        return 86_400 / self.span_s

    @property
    def hour_s(self) -> float:
        return 3600 / self.faster

    @property
    def late_s(self) -> float:
        """By so much what Prometheus says may be older than it is."""
        return self.read_s + self.scrape_s + 2 * self.evaluate_s


@dataclass(frozen=True)
class Day:
    """What is running, and the truth about it."""

    player: Player
    truth: Truth
    times: Times
    prometheus: str
    pages: str
    kubeconfig: Path
    home: Path
    agents: Agents
    meter: ControllerProcess


@contextmanager
def running_day(cluster: Cluster, kwok: Kwok, folder: Path, plan: Plan, times: Times) -> Iterator[Day]:
    """``KOPT_HOME`` of this process has to be ``folder``: commands and the meter share a database there."""
    api, patience_s = cluster.api, PATIENCE_S + 0.2 * plan.nodes
    with ExitStack() as running:
        names = running.enter_context(kwok.nodes(plan.nodes, GPUS, labels=PRODUCT))
        spaces = {team: api.space(team, {"kaiwo.ai/team": team}) for team in TEAMS}
        running.callback(lambda: [api.delete("v1", "Namespace", space) for space in spaces.values()])
        meter_space = api.space("meter")
        truth = Truth(plan.nodes, GPUS, 0.0)
        nodes = [Node(name, GPUS, lambda at=at: truth.holders(at)) for at, name in enumerate(names)]  # type: ignore[misc]
        agents = Agents(nodes, free_port(), times.read_s)
        running.callback(agents.stop)
        state = running.enter_context(kube_state_metrics(cluster, folder))
        options = f"--namespace={meter_space}", f"--reconcile={times.reconcile_s:g}s"
        meter = ControllerProcess(cluster, "meter", *options)  # type: ignore[arg-type]
        running.callback(meter.server.kill)
        meter.server.wait_until(lambda: meter.leads, patience_s, "the meter leads")
        own = folder / "prometheus"
        own.mkdir()
        (own / "kopt.yaml").write_text(yaml.safe_dump({"groups": rules(times)}))
        configuration = _configuration(times, agents, names, state, f"127.0.0.1:{meter.port}")
        prometheus = RunningPrometheus(own, configuration=configuration)
        running.callback(prometheus.stop)
        port = free_port()
        environment = {
            "KOPT_PAGES_PORT": str(port),
            "KOPT_PAGES_PROMETHEUS": prometheus.url,
            "KUBECONFIG": str(cluster.kubeconfig),
            "KOPT_ENDPOINT": "http://127.0.0.1:9",
        }
        pages = Server("pages", [sys.executable, "-P", "-m", "kopt.cli.local.pages"], folder, environment)
        running.callback(pages.stop)
        address = f"http://127.0.0.1:{port}"
        pages.wait_until(lambda: httpx.get(f"{address}/gpus", trust_env=False).is_success, patience_s)
        truth.began_s = wait_for(
            lambda: meter.metric("kopt_cost_metered_until_seconds"), patience_s, what="it is metered"
        )
        player = Player(api, plan, truth, nodes, spaces, times.span_s)
        yield Day(player, truth, times, prometheus.url, address, cluster.kubeconfig, folder, agents, meter)


def rules(times: Times) -> list[dict[str, Any]]:
    """As shipped, but for what looks back an hour at how busy GPUs were: an hour of the day passes in less."""
    groups = rule_groups()
    for group in groups:
        for rule in group["rules"]:
            if _OF_AN_HOUR in rule["expr"]:
                rule["expr"] = _HOUR.sub(lambda match: _shorter(match[0], times), rule["expr"])
                if "for" in rule:
                    rule["for"] = f"{600_000 / times.faster:.0f}ms"
                if "interval" in group:
                    group["interval"] = f"{times.evaluate_s:g}s"
    return groups


def _shorter(span: str, times: Times) -> str:
    if span == "[1h]":
        return f"[{3_600_000 / times.faster:.0f}ms]"
    return f"offset {3_300_000 / times.faster:.0f}ms"


@contextmanager
def kube_state_metrics(cluster: Cluster, folder: Path) -> Iterator[str]:
    """A real one; the address of its metrics."""
    port = free_port()
    command: Sequence[str | Path] = [
        build.binaries("kubestate") / "kube-state-metrics",
        f"--kubeconfig={cluster.kubeconfig}",
        "--resources=nodes,pods",
        "--host=127.0.0.1",
        f"--port={port}",
        "--telemetry-host=127.0.0.1",
        f"--telemetry-port={free_port()}",
    ]
    server = Server("kube-state-metrics", command, folder)
    try:
        server.wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).is_success)
        yield f"127.0.0.1:{port}"
    finally:
        server.stop()


def _configuration(times: Times, agents: Agents, names: Sequence[str], state: str, meter: str) -> str:
    interval = {"scrape_interval": f"{times.scrape_s:g}s", "evaluation_interval": f"{times.evaluate_s:g}s"}
    own = [{"targets": [agents.address], "labels": {"__metrics_path__": f"/{name}/metrics"}} for name in names]
    # All have one address here; as the operator does, each has its own instance.
    relabel = [{"source_labels": ["__metrics_path__"], "target_label": "instance"}]
    jobs = [
        {"job_name": "telemetry", "honor_labels": True, "static_configs": own, "relabel_configs": relabel},
        # As kube-prometheus-stack does: of a large cluster it is one text of many megabytes.
        {"job_name": "kube-state-metrics", "honor_labels": True, "static_configs": [{"targets": [state]}]}
        | {"scrape_timeout": interval["scrape_interval"]},
        {"job_name": "kopt-meter", "static_configs": [{"targets": [meter]}]},
    ]
    return yaml.safe_dump({"global": interval, "rule_files": ["kopt.yaml"], "scrape_configs": jobs})


def home_of(folder: Path) -> dict[str, str]:
    """The environment of whoever runs commands about a day."""
    # Processes run in folders of their own.
    paths = [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    nowhere = dict.fromkeys(("KOPT_DATABASE_URL", "KOPT_STATE_DIR"), "")
    return {"KOPT_HOME": str(folder), "PYTHONPATH": os.pathsep.join(paths), **nowhere}
