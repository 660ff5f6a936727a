"""``kopt controller queues``: one replica, from start to the end."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.resources import KAIWO_POOLS, KAIWO_QUEUES, KUEUE_LOCAL_QUEUES, KUEUE_WORKLOADS, Object
from kopt.cluster.objects.fields import at, count, items, slim, text
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.workloads.kueue.reading import local_queue_target
from kopt.cluster.workloads.queue_trees.live import KINDS
from kopt.controllers.queues.demand import QueueDemand, QueuedGpus, queued_gpus
from kopt.controllers.queues.reconciler import Carrying, Reconciler
from kopt.core.scheduling.queue_tree import MANAGED_LABEL, Engine

NAME = "queues"
_GATHER_S = 0.2
"""Changes within this time are handled together: a tree is applied by many requests."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    carrying: Carrying = field(default_factory=Carrying)
    port: int = 9461


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-queues-status")) as kube:
        await run_until(ending, Replica(kube, settings))


class Replica(LedReplica):
    """The parts of one process, put together."""

    action = "Applying"
    reads_seals = True

    def __init__(self, kube: Kube, settings: ProcessSettings) -> None:
        self._kube, self._carrying = kube, settings.carrying
        self._changed = asyncio.Event()
        self._queues: Informer[Object] = Informer(kube, KAIWO_QUEUES, keep=slim, required=True)
        self._pools: Informer[Object] = Informer(kube, KAIWO_POOLS, keep=slim)
        # What others change in queues of ours is put right; of their status matters whether anything waits or runs.
        written: list[Informer[tuple[int, bool, bool]]] = [
            Informer(kube, kind, label_selector=MANAGED_LABEL, keep=_spec_and_use)
            for kind in KINDS[self._carrying.engine]
        ]
        demand = self._demand_informers(kube)
        informers: list[Informer[Any]] = [self._queues, self._pools, *written, *demand]
        deciding: list[Informer[Any]] = [self._queues, self._pools, *written]
        for informer in deciding:
            informer.subscribe(self._changes)
        self._switches = LiveSwitches(kube, NAME)
        super().__init__(kube, NAME, settings, informers, self._switches)
        self.gauge("declared", "KaiwoQueues.", lambda: len(self._queues.objects.values()))
        self.gauge("not_expressible", "Fields that the engine cannot carry out.", self._not_expressible)
        self.gauge("not_applied", "KaiwoQueues that are not carried out.", self._not_applied)
        if demand:
            self.registry.register(self._demand(*demand))
        self.gauge("errors", "Passes that failed and are retried.", lambda: self.errors)

    def _demand_informers(self, kube: Kube) -> "tuple[()] | tuple[Informer[QueuedGpus], Informer[str]]":
        """What waits and runs in Kueue's queues; only Kueue says of each workload that it waits."""
        if self._carrying.engine is not Engine.KUEUE:
            return ()
        workloads: Informer[QueuedGpus] = Informer(kube, KUEUE_WORKLOADS, keep=queued_gpus)
        local_queues: Informer[str] = Informer(kube, KUEUE_LOCAL_QUEUES, keep=local_queue_target)
        return workloads, local_queues

    def _demand(self, workloads: Informer[QueuedGpus], local_queues: Informer[str]) -> QueueDemand:
        return QueueDemand(
            lambda: list(self._queues.objects.values()),
            lambda: list(self._pools.objects.values()),
            lambda: list(workloads.objects.values()),
            lambda: dict(local_queues.objects),
            lambda: workloads.synced.is_set() and local_queues.synced.is_set() and self._queues.synced.is_set(),
        )

    async def lead(self, fence: Fence) -> None:
        reconciler = Reconciler(
            self._kube,
            fence,
            self._carrying,
            lambda: list(self._queues.objects.values()),
            lambda: list(self._pools.objects.values()),
            self.emit_event,
            time.time,
            self.isolation,
            self._switches,
        )
        await self.step_through(reconciler, self._changed, _GATHER_S)

    def _changes(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self._changed.set()

    def _not_expressible(self) -> int:
        return sum(len(at(item, "status", "notExpressible") or ()) for item in self._queues.objects.values())

    def _not_applied(self) -> int:
        return sum(
            text(condition, "status") == "False"
            for item in self._queues.objects.values()
            for _, condition in items(item, "status", "conditions")
        )


def _spec_and_use(document: Object) -> tuple[int, bool, bool]:
    waits, runs = (count(document, "status", f"{stage}Workloads", default=0) > 0 for stage in ("pending", "reserving"))
    return int(document["metadata"].get("generation") or 0), waits, runs
