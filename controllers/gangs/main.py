"""``kopt controller gangs``: one replica, from start to the end."""

import asyncio
from dataclasses import dataclass, field

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, NAMESPACES, NODES, PODS, Object, Resource
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.eviction import evict_pod, nominate_node
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import OPEN, Gate, LiveSwitches
from kopt.controllers.gangs.reconciler import ControllerSettings, Reconciler
from kopt.controllers.gangs.snapshot import Observed
from kopt.controllers.gangs.views import (
    HOLDER,
    GangOwner,
    ObservedNode,
    ObservedPod,
    read_job,
    read_node,
    read_pod,
    read_workload,
)
from kopt.core.decision import Mode
from kopt.policies.admission.mode import mode_in

NAME = "gangs"
_GATHER_S = 0.5
"""Changes within this time are handled together."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    port: int = 9462


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-gangs")) as kube:
        workloads = await kube.served(KUEUE_WORKLOADS)
        await run_until(ending, Replica(kube, settings, workloads))


class LiveCluster(LiveState):
    """The state observed by informers, with our own writes. ``changed`` is set by every change."""

    def __init__(
        self, kube: Kube, settings: ControllerSettings, workloads: Resource = KUEUE_WORKLOADS, gate: Gate = OPEN
    ) -> None:
        super().__init__()
        self._settings, self._gate = settings, gate
        self._kube, self._served = kube, workloads
        self._pods: Informer[ObservedPod] = Informer(kube, PODS, keep=read_pod, required=True)
        self._nodes: Informer[ObservedNode] = Informer(kube, NODES, keep=read_node, required=True)
        self._spaces: Informer[NamespaceSettings] = Informer(kube, NAMESPACES, keep=read_namespace)
        self._jobs: ObjectCache[GangOwner] = ObjectCache(Informer(kube, JOBS, keep=read_job, required=True))
        self._workloads: ObjectCache[GangOwner] = ObjectCache(Informer(kube, workloads, keep=read_workload))
        self._observe(
            self._pods,
            self._nodes,
            self._spaces,
            self._jobs.informer,
            self._workloads.informer,
        )

    def observed(self, now_s: float) -> Observed:
        return Observed(
            now_s,
            list(self._pods.objects.values()),
            list(self._nodes.objects.values()),
            list(self._jobs.objects.values()),
            list(self._workloads.objects.values()),
            self._mode,
        )

    async def promise(self, pod: ObservedPod, node: str) -> None:
        self._fence.require_term()
        await nominate_node(self._kube, pod.key, pod.document["metadata"]["uid"], node)

    async def evict(self, pod: ObservedPod) -> None:
        self._fence.require_term()
        await evict_pod(self._kube, pod.key, pod.document["metadata"]["uid"])

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None:
        if resource == PODS:
            await self._fence.patch(PODS, document, changes)
            return
        cache = self._jobs if resource == JOBS else self._workloads
        cache.record(await self._fence.patch(JOBS if resource == JOBS else self._served, document, changes))

    def _mode(self, owner: GangOwner) -> Mode:
        space = self._spaces.objects.get(("", owner.key[0]))
        mode = mode_in(space, owner.mode, self._settings.mode, self._settings.workload_may_lower)
        return self._gate.mode(NAME, owner.whose, mode)


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader writes."""

    action = "Releasing"
    reads_seals = True
    annotation_checks = checks(EVICTING_ANNOTATION, holder=HOLDER)

    def __init__(self, kube: Kube, settings: ProcessSettings, workloads: Resource = KUEUE_WORKLOADS) -> None:
        self._settings = settings.controller
        switches = LiveSwitches(kube, NAME)
        self.cluster = LiveCluster(kube, settings.controller, workloads, switches)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches)
        self.gauge_of_stepper("half_placed", "Gangs that are half-placed for longer than the hold.", "half")
        self.gauge_of_stepper("deadlocked", "Gangs that wait for each other.")
        self.gauge("errors", "Writes that failed and are retried.", lambda: self.errors)

    async def lead(self, fence: Fence) -> None:
        self.cluster.begin(fence)
        reconciler = Reconciler(self.cluster, self._settings, self.emit_event, isolation=self.isolation)
        await self.step_through(reconciler, self.cluster.changed, _GATHER_S)
