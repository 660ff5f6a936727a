"""``kopt controller rightsizing``: one replica, from start to the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.prometheus import PrometheusAddress, server_at
from kopt.cluster.objects.resize_history import RESIZING
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.workloads.resizing.use import Use, read_use
from kopt.controllers.rightsizing.reconciler import ReadUse, Reconciler, RightsizingSettings
from kopt.controllers.rightsizing.state import FEATURE, LiveCluster

NAME = FEATURE
_GATHER_S = 1.0
"""Changes within this time are handled together."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. ``since_s``: how far back use is read."""

    controller: RightsizingSettings = field(default_factory=RightsizingSettings)
    prometheus: str = ""
    token_file: Path | None = None
    certificate_authority: Path | None = None
    since_s: int = 86_400
    port: int = 9469


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-rightsizing")) as kube,
        _reading(settings) as read,
    ):
        await run_until(ending, Replica(kube, settings, read))


async def _nothing() -> Use:
    """Without a Prometheus nothing is known of use, and nothing is proposed."""
    return {}


@contextlib.asynccontextmanager
async def _reading(settings: ProcessSettings) -> AsyncIterator[ReadUse]:
    address = PrometheusAddress(settings.prometheus, settings.token_file, settings.certificate_authority)
    async with server_at(address, _TIMEOUT_S) as server:
        if server is None:
            yield _nothing
            return

        async def read() -> Use:
            return await read_use(server, "", settings.since_s)

        yield read


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader writes."""

    action = "Rightsizing"
    reads_seals = True
    annotation_checks = checks(RESIZING)

    def __init__(self, kube: Kube, settings: ProcessSettings, read: ReadUse = _nothing) -> None:
        self._settings, self._read = settings.controller, read
        switches = LiveSwitches(kube, NAME)
        controller = settings.controller
        self.cluster = LiveCluster(kube, controller.keep_s, controller.mode, controller.workload_may_lower, switches)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches)
        self.gauge_of_stepper("open", "Changes that are being watched.")
        self.gauge_of_stepper("proposed", "Workloads that would be changed.")
        self.gauge_of_stepper("measured", "1 while Prometheus says what containers used.")
        self.gauge("errors", "Looks and writes that failed and are retried.", lambda: self.errors)

    async def lead(self, fence: Fence) -> None:
        self.cluster.begin(fence)
        reconciler = Reconciler(self.cluster, self._settings, self._read, self.emit_event, isolation=self.isolation)
        await self.step_through(reconciler, self.cluster.changed, _GATHER_S)
