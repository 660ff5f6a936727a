"""``kopt controller queues``: one replica, from start to the end."""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.prometheus import PrometheusAddress, server_at
from kopt.cluster.client.resources import (
    KAIWO_POOLS,
    KAIWO_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    Object,
)
from kopt.cluster.objects.custom.kaiwo_queue import pool_of, queue_of
from kopt.cluster.objects.fields import at, count, items, slim, text
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.object_cache import ObjectCache
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.workloads.kueue.order_rules import parent_cohort
from kopt.cluster.workloads.kueue.reading import local_queue_target
from kopt.cluster.workloads.queue_trees.live import KINDS
from kopt.controllers.queues.advising import GATHER_S, Advising, History
from kopt.controllers.queues.demand import QueueDemand, QueueGpus, gpus_of_workloads
from kopt.controllers.queues.ordering import (
    ROUND_S,
    ChangedWorkloads,
    Ordering,
    QueuedWorkload,
    SeenQueue,
    queued_workload,
    seen_queue,
)
from kopt.controllers.queues.pod_demand import PodQueues
from kopt.controllers.queues.reconciler import Carrying, Reconciler
from kopt.core.scheduling.queue_tree import MANAGED_LABEL, Engine
from kopt.policies.priority.queue_order import QueueOrder
from kopt.policies.queues import QueueTree

NAME = "queues"
_GATHER_S = 0.2
"""Changes within this time are handled together: a tree is applied by many requests."""
_ORDER_GAUGES = {
    "ordered": "Workloads whose rank in the order stands in their priority.",
    "unordered": "Workloads that wait for their rank in the order to be written.",
    "refused": "ClusterQueues whose order may not be written.",
}


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    carrying: Carrying = field(default_factory=Carrying)
    order: QueueOrder | None = None
    """By which the Workloads of Kueue's queues are ordered; None: as Kueue does it."""
    prometheus: str = ""
    """Whose history of queues' demand quotas are advised from; empty: none is."""
    token_file: Path | None = None
    certificate_authority: Path | None = None
    advise_since_s: int = 28 * 86_400
    port: int = 9461


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    address = PrometheusAddress(settings.prometheus, settings.token_file, settings.certificate_authority)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-queues-status")) as kube,
        server_at(address) as history,
    ):
        await run_until(ending, Replica(kube, settings, history))


class _KueueState:
    """What waits and runs in Kueue's queues, and how these stand; only Kueue says of each workload that it waits."""

    def __init__(self, kube: Kube) -> None:
        self.changed = asyncio.Event()
        self.informer: Informer[QueuedWorkload] = Informer(kube, KUEUE_WORKLOADS, keep=queued_workload)
        self.local_queues: Informer[str] = Informer(kube, KUEUE_LOCAL_QUEUES, keep=local_queue_target)
        self.cluster_queues: Informer[SeenQueue] = Informer(kube, KUEUE_CLUSTER_QUEUES, keep=seen_queue)
        self.cohorts: Informer[str] = Informer(kube, KUEUE_COHORTS, keep=parent_cohort)
        self.workloads = ObjectCache(self.informer)
        self.informers: tuple[Informer[Any], ...] = (
            self.informer,
            self.local_queues,
            self.cluster_queues,
            self.cohorts,
        )
        for informer in self.informers:
            informer.subscribe(self._changes)

    @property
    def counts(self) -> bool:
        """Whether GPUs can be counted."""
        return self.informer.synced.is_set() and self.local_queues.synced.is_set()

    def _changes(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self.changed.set()


class Replica(LedReplica):
    """The parts of one process, put together."""

    action = "Applying"
    reads_seals = True

    def __init__(self, kube: Kube, settings: ProcessSettings, history: History | None = None) -> None:
        self._history, self._advise_since_s = history, settings.advise_since_s
        self._advice_changed = asyncio.Event()
        self._kube, self._carrying, self._order = kube, settings.carrying, settings.order
        self._changed = asyncio.Event()
        self._queues: Informer[Object] = Informer(kube, KAIWO_QUEUES, keep=slim, required=True)
        self._pools: Informer[Object] = Informer(kube, KAIWO_POOLS, keep=slim)
        # What others change in queues of ours is put right; of their status matters whether anything waits or runs.
        written: list[Informer[tuple[int, bool, bool]]] = [
            Informer(kube, kind, label_selector=MANAGED_LABEL, keep=_spec_and_use)
            for kind in KINDS[self._carrying.engine]
        ]
        of_kueue = self._carrying.engine is Engine.KUEUE
        self._kueue = _KueueState(kube) if of_kueue else None
        self._pods = None if of_kueue else PodQueues(kube, self._carrying.engine)
        deciding: list[Informer[Any]] = [self._queues, self._pools, *written]
        for informer in deciding:
            informer.subscribe(self._changes)
        self._switches = LiveSwitches(kube, NAME)
        self._ordering: Ordering | None = None
        counted = self._kueue or self._pods
        informers = [*deciding, *(counted.informers if counted is not None else ())]
        super().__init__(kube, NAME, settings, informers, self._switches)
        self.gauge("declared", "KaiwoQueues.", lambda: len(self._queues.objects.values()))
        self.gauge("not_expressible", "Fields that the engine cannot carry out.", self._not_expressible)
        self.gauge("not_applied", "KaiwoQueues that are not carried out.", self._not_applied)
        self.gauge("errors", "Passes that failed and are retried.", lambda: self.errors)
        self.registry.register(self._demand())
        if self._kueue is not None:
            for what, meaning in _ORDER_GAUGES.items():
                self.gauge(what, meaning, partial(self._order_count, what))

    def _demand(self) -> QueueDemand:
        kueue, pods = self._kueue, self._pods

        def gpus(tree: QueueTree) -> Iterable[QueueGpus]:
            if pods is not None:
                return pods.gpus(tree)
            if kueue is None:
                return ()
            seen = [each.gpus for each in kueue.informer.objects.values() if each.gpus is not None]
            return gpus_of_workloads(seen, dict(kueue.local_queues.objects))

        def is_synced() -> bool:
            engine = (kueue is None or kueue.counts) and (pods is None or pods.synced)
            return engine and self._queues.synced.is_set()

        return QueueDemand(
            lambda: list(self._queues.objects.values()),
            lambda: list(self._pools.objects.values()),
            gpus,
            is_synced,
            single_pool=self._carrying.engine is Engine.VOLCANO,
        )

    async def lead(self, fence: Fence) -> None:
        advising = None if self._history is None else self._advising_of(self._history)
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
            lambda: None if advising is None else advising.latest,
        )
        work = [asyncio.create_task(self.step_through(reconciler, self._changed, _GATHER_S))]
        if advising is not None:
            work.append(asyncio.create_task(self.step_through(advising, self._advice_changed, GATHER_S)))
        term = contextlib.ExitStack()
        if self._kueue is not None:
            changed = ChangedWorkloads()
            term.callback(self._kueue.workloads.subscribe(changed.follow))
            self._ordering = self._ordering_of(self._kueue, changed, fence)
            work.append(asyncio.create_task(self.step_through(self._ordering, self._kueue.changed, ROUND_S)))
        try:
            await asyncio.gather(*work)
        finally:
            self._ordering = None
            term.close()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    def _advising_of(self, history: History) -> Advising:
        def tree() -> QueueTree:
            return QueueTree.of(
                map(queue_of, self._queues.objects.values()), map(pool_of, self._pools.objects.values())
            )

        return Advising(history, self._advise_since_s, tree, self._changed.set, time.time)

    def _ordering_of(self, kueue: _KueueState, changed: ChangedWorkloads, fence: Fence) -> Ordering:
        return Ordering(
            fence,
            self._order,
            self._carrying.mode,
            changed.drain,
            kueue.workloads.record,
            lambda: kueue.local_queues.objects,
            lambda: kueue.cluster_queues.objects.values(),
            lambda: {name: parent for (_, name), parent in kueue.cohorts.objects.items()},
            self.emit_event,
            self.isolation,
            self._switches,
        )

    def _changes(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self._changed.set()
            self._advice_changed.set()

    def _order_count(self, what: str) -> float:
        return float(getattr(self._ordering, what, 0))

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
