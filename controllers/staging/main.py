"""``kopt controller staging``: one replica, from start to the end."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.objects.custom.staged_data import STAGING_ANNOTATION
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.runtime.tracing import SpanExport
from kopt.controllers.staging.ports import StagingSettings
from kopt.controllers.staging.progress import LogProgress
from kopt.controllers.staging.reconciler import Reconciler
from kopt.controllers.staging.state import LiveCluster
from kopt.controllers.staging.views import HOLDER
from kopt.core.staging.staged_data import DataPhase

NAME = "staging"
_GATHER_S = 0.02
"""Changes within this time are handled together."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    staging: StagingSettings
    port: int = 9456
    reads_logs: bool = True
    """Follow the logs of our own pods, for how far they are."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-staging")) as kube:
        await run_until(ending, Replica(kube, settings))


class Replica(LedReplica):
    """The parts of one process, put together. The next leader goes on with what is held or under way at its end."""

    action = "Staging"
    annotation_checks = checks(STAGING_ANNOTATION, holder=HOLDER)

    def __init__(self, kube: Kube, settings: ProcessSettings) -> None:
        switches = LiveSwitches(kube, NAME)
        self._kube, self._staging = kube, replace(settings.staging, gate=switches)
        self._reads_logs, self._spans = settings.reads_logs, SpanExport("kopt-staging")
        self.cluster = LiveCluster(kube)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches)
        self.gauge(
            "held_workloads",
            "Workloads that wait for their data.",
            lambda: sum(workload.holder == HOLDER for workload in self.cluster.workloads()),
        )
        for phase in DataPhase:
            self.gauge(f"data_{phase.lower()}", f"StagedData that are {phase}.", partial(self._count, phase))
        self.gauge("bytes_per_second", "Of all downloads together.", self._bytes_per_second)
        self.gauge("errors", "Writes that failed and are retried.", lambda: self.errors)

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self._spans.close)

    async def lead(self, fence: Fence) -> None:
        changed = self.cluster.changed
        progress = LogProgress(self._kube, changed.set) if self._reads_logs else None
        reconciler = Reconciler(
            self.cluster,
            self._kube,
            fence,
            self._staging,
            self.emit_event,
            progress,
            isolation=self.isolation,
            trace=self._spans.record,
        )
        try:
            await self.step_through(reconciler, changed, _GATHER_S)
        finally:
            if progress is not None:
                await progress.close()

    def _count(self, phase: DataPhase) -> float:
        return sum(data.data.phase is phase for data in self.cluster.data())

    def _bytes_per_second(self) -> float:
        staged_datas = [data.data for data in self.cluster.data() if data.data.phase is DataPhase.STAGING]
        return sum(staged_data.amounts.bytes_per_second for staged_data in staged_datas if staged_data.amounts)
