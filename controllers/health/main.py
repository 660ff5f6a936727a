"""``kopt controller health``: one replica, from start to the end."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.prometheus import PrometheusAddress, asking
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import Collected, LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.controllers.health.reconciler import HealthSettings, Reconciler
from kopt.controllers.health.sources import Query
from kopt.controllers.health.state import LiveCluster
from kopt.core.decision import Mode
from kopt.core.hardware.health import Grade
from kopt.core.switches import Owner

NAME = "health"
_GATHER_S = 0.5
"""Changes within this time are handled together."""
_LARGEST_BYTES = 64 << 20
"""One series is 200 bytes, and a GPU has fifteen."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    health: HealthSettings = field(default_factory=HealthSettings)
    prometheus: str = ""
    token_file: Path | None = None
    certificate_authority: Path | None = None
    port: int = 9467

    @property
    def address(self) -> PrometheusAddress:
        return PrometheusAddress(self.prometheus, self.token_file, self.certificate_authority)


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-health")) as kube,
        asking(settings.address, _LARGEST_BYTES) as query,
    ):
        await run_until(ending, Replica(kube, settings, query))


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader writes."""

    action = "Judging"

    def __init__(self, kube: Kube, settings: ProcessSettings, query: Query | None = None) -> None:
        self._settings, self._query = settings.health, query
        self.cluster = LiveCluster(kube)
        self._switches = LiveSwitches(kube, NAME)
        self._reconciler: Reconciler | None = None
        super().__init__(kube, NAME, settings, self.cluster.informers, self._switches)
        self.gauge("errors", "Looks and writes that failed and are retried.", lambda: self.errors)
        self.gauge(
            "kept_free",
            "Nodes that a taint keeps free.",
            lambda: len(self._reconciler.closed) if self._reconciler else 0,
        )
        self.gauge("kept_free_gpus", "GPUs that DeviceTaintRules keep free of claims.", self._gpus_kept_free)
        self.gauge(
            "device_taint_rules_served",
            "1 while the API server has DeviceTaintRules; else whole nodes are kept free.",
            lambda: self.cluster.serves_rules,
        )
        self.gauge_of_stepper("measured", "1 while exporters' series are read.")
        self.registry.register(Collected(self._nodes_by_grade))

    async def lead(self, fence: Fence) -> None:
        self.cluster.begin(fence)
        self._reconciler = Reconciler(
            self.cluster, self._settings, self.emit_event, self._mode_of, self._query, isolation=self.isolation
        )
        await self.step_through(self._reconciler, self.cluster.changed, _GATHER_S)

    def _mode_of(self, owner: Owner) -> Mode:
        return self._switches.mode(NAME, owner, self._settings.mode)

    def _gpus_kept_free(self) -> int:
        return len(self._reconciler.device_taints.closed) if self._reconciler else 0

    def _nodes_by_grade(self) -> Iterator[Metric]:
        if self._reconciler is None:
            return
        nodes = GaugeMetricFamily("kopt_health_nodes", "Nodes with GPUs, by verdict.", labels=["verdict"])
        grades = [record.health.grade for record in self._reconciler.records.of.values()]
        for grade in Grade:
            nodes.add_metric([grade.text], grades.count(grade))
        yield nodes
