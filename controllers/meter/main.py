"""``kopt controller meter``: one replica, from start to the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.prometheus import PrometheusAddress, server_at
from kopt.cluster.client.resources import KAIWO_BUDGETS, KUEUE_LOCAL_QUEUES, KUEUE_WORKLOADS, Object
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import Collected, LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.controllers.meter.budgets import EVERY_S, BudgetKeeper
from kopt.controllers.meter.busy_hours import BusyHours, BusyRecorder
from kopt.controllers.meter.clock import SteadyClock
from kopt.controllers.meter.reconciler import Metering, MeterSettings
from kopt.controllers.meter.state import LiveCluster, Resources
from kopt.controllers.meter.store import CostStore
from kopt.core.cost.metering import GPU_HOUR, Idle, idle_of
from kopt.core.cost.prices import PriceBook, shipped_prices
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.core.units import WHOLE_GPU
from kopt.serving.base.database.opening import Location

NAME = "meter"
_GATHER_S = 1.0
"""Changes within this time are stored together."""
_PROMETHEUS_S = 30.0
"""An hour of every node is one query."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. ``where`` the database is, and ``busy`` that of how busy GPUs were, which is recorded
    where a ``prometheus`` is named; ``mode``: whether budgets hold queues."""

    where: Location = Path("cost.db")
    busy: Location = Path("busy.db")
    prometheus: str = ""
    token_file: Path | None = None
    certificate_authority: Path | None = None
    book: PriceBook = field(default_factory=shipped_prices)
    meter: MeterSettings = field(default_factory=MeterSettings)
    mode: Mode = Mode.OBSERVE
    port: int = 9465


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    store = CostStore(settings.where)
    try:
        async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-meter")) as kube:
            resources = Resources(await kube.served(KUEUE_WORKLOADS), await kube.served(KUEUE_LOCAL_QUEUES))
            async with _recording(kube, settings) as recorder:
                await run_until(ending, Replica(kube, settings, store, resources, recorder))
    finally:
        store.close()


@contextlib.asynccontextmanager
async def _recording(kube: Kube, settings: ProcessSettings) -> AsyncIterator[BusyRecorder | None]:
    address = PrometheusAddress(settings.prometheus, settings.token_file, settings.certificate_authority)
    async with server_at(address, _PROMETHEUS_S) as server:
        if server is None:
            yield None
            return
        with contextlib.closing(BusyHours(settings.busy)) as hours:
            yield BusyRecorder(kube, hours, server)


class Writes:
    """Budgets and queues, and this term's writes to them."""

    def __init__(
        self, kube: Kube, cluster: LiveCluster, switches: LiveSwitches, settings: ProcessSettings, resources: Resources
    ) -> None:
        self._kube, self._cluster, self._switches = kube, cluster, switches
        self._mode, self._resources = settings.mode, resources
        self.fence: Fence | None = None

    def budget_documents(self) -> list[Object]:
        return list(self._cluster.budgets.objects.values())

    def queue_documents(self) -> list[Object]:
        return list(self._cluster.queues.objects.values())

    def mode(self, feature: str, owner: Owner) -> Mode:
        return self._switches.mode(feature, owner, self._mode)

    async def patch_queue(self, queue: Object, changes: Object) -> None:
        assert self.fence is not None, "only a leader writes"
        self._cluster.queues.record(await self.fence.patch(self._resources.local_queues, queue, changes))

    async def write_status(self, budget: Object, status: Object) -> None:
        metadata = budget["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        await self._kube.patch(KAIWO_BUDGETS, metadata["name"], body, subresource="status")


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader stores."""

    action = "Metering"

    def __init__(
        self,
        kube: Kube,
        settings: ProcessSettings,
        store: CostStore,
        resources: Resources | None = None,
        recorder: BusyRecorder | None = None,
    ) -> None:
        self._settings, self._store, clock = settings, store, SteadyClock()
        resources = resources or Resources()
        self.cluster = LiveCluster(kube, settings.meter.label_keys, clock, resources)
        switches = LiveSwitches(kube, NAME)
        self._writes = Writes(kube, self.cluster, switches, settings, resources)
        self._clock, self._recorder = clock, recorder
        self.metering: Metering | None = None
        self._keeper: BudgetKeeper | None = None
        super().__init__(kube, NAME, settings, self.cluster.informers, switches)
        self.gauge("errors", "Passes that failed and are retried.", lambda: self.errors)
        self.gauge("held_queues", "LocalQueues that spent budgets hold.", lambda: getattr(self._keeper, "held", 0))
        self.registry.register(Collected(self._costs))

    async def lead(self, fence: Fence) -> None:
        self._writes.fence = fence
        every_s = min(EVERY_S, self._settings.meter.reconcile_s)
        self._keeper = BudgetKeeper(
            self._writes, self._store, self._settings.book, self.emit_event, self.isolation, every_s
        )
        holder = f"{self._settings.identity}/{fence.term}"
        self.metering = Metering(
            self.cluster, self._store, self._settings.meter, self._clock, holder, self._keeper.step
        )
        async with self._recording():
            await self.step_through(self.metering, self.cluster.changed, _GATHER_S)

    @contextlib.asynccontextmanager
    async def _recording(self) -> AsyncIterator[None]:
        """How busy GPUs were is recorded beside the block: metering never waits for Prometheus."""
        if self._recorder is None:
            yield
            return
        task = asyncio.create_task(self.step_through(self._recorder, asyncio.Event(), 0.0))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _costs(self) -> Iterator[Metric]:
        metering = self.metering
        if metering is None:
            return
        # A kind of which there is none is 0: a series that comes and goes has a mean of the time when it was there.
        milli = dict.fromkeys(["charged", *(idle.value for idle in Idle)], 0)
        for meter in metering.meters.values():
            for subject, (_, share) in meter.open.items():
                idle = idle_of(subject)
                kind = "charged" if idle is None else idle.value
                milli[kind] += share
        gpus = GaugeMetricFamily("kopt_cost_gpus", "GPUs, by what they are charged as now.", labels=["kind"])
        for kind, share in sorted(milli.items()):
            gpus.add_metric([kind], share / WHOLE_GPU)
        yield gpus
        text = "Until when was metered, Unix seconds."
        yield GaugeMetricFamily("kopt_cost_metered_until_seconds", text, metering.metered_ms / 1000)
        if metering.last is not None:
            last = metering.last
            text = "GPU-hours by which pods and idleness differ from nodes, of the hour that was reconciled last."
            yield GaugeMetricFamily("kopt_cost_unreconciled_gpu_hours", text, last.unreconciled / GPU_HOUR)
            text = "Share of pods' time that is recorded otherwise than their objects say, of that hour."
            yield GaugeMetricFamily("kopt_cost_attribution_error_ratio", text, last.attribution_error)
