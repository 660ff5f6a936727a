"""``kopt controller reservations``: one replica, from start to the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.errors import NotFound
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    HOLDS_COMPONENT,
    JOBS,
    KAIWO_RESERVATIONS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NAMESPACES,
    NODES,
    PODS,
    Object,
    Resource,
)
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import OPEN, Gate, LiveSwitches
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor
from kopt.cluster.workloads.kueue.queues import read_cluster_queue, read_flavor
from kopt.cluster.workloads.kueue.reading import local_queue_target
from kopt.controllers.reservations.observed import Observed
from kopt.controllers.reservations.pod_engines import POD_ENGINES, PodQueue, flavors_of, read_queue
from kopt.controllers.reservations.reconciler import ControllerSettings, Reconciler
from kopt.controllers.reservations.run_times import Ask, RunTimes, RunTimesUnknown
from kopt.controllers.reservations.views import (
    HOLDER,
    HoldJob,
    ObservedNode,
    ObservedPod,
    ObservedWorkload,
    Reserved,
    read_hold_job,
    read_node,
    read_pod,
    read_reserved,
    read_workload,
)
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.core.workload.run_time import RunTimeQuantiles, RunTimeQuestion
from kopt.policies.admission.mode import mode_in

NAME = "reservations"
_GATHER_S = 0.1
"""Changes within this time are handled together."""
_ASK_S = 2.0


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. Without ``predictions`` only Kueue's own limits say when jobs end."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    predictions: str = ""
    cluster: str = ""
    port: int = 9463


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        endpoint(settings.predictions, settings.cluster) as ask,
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-reservations")) as kube,
    ):
        await run_until(ending, Replica(kube, settings, ask, await kube.served(KUEUE_WORKLOADS)))


@contextlib.asynccontextmanager
async def endpoint(url: str, cluster: str = "") -> AsyncIterator[Ask | None]:
    """What asks the prediction endpoint for run times; None without one."""
    if not url:
        yield None
        return
    # Not before it is needed: every `kopt` reads the list of controllers.
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.client.run_times import remaining_run_times
    from kopt.serving.client.transport import EndpointFailure, RequestRefused
    from kopt.serving.contract.common import AnswerError

    async with AsyncPredictionClient(url, deadline_s=_ASK_S) as client:

        async def ask(questions: Mapping[str, RunTimeQuestion]) -> Mapping[str, RunTimeQuantiles]:
            try:
                return await remaining_run_times(client, questions, cluster)
            except (EndpointFailure, RequestRefused, AnswerError) as error:
                raise RunTimesUnknown(f"{url} gives no run times ({error})") from error

        yield ask


class LiveCluster(LiveState):
    """The state observed by informers, with our own writes. ``changed`` is set by every change."""

    def __init__(
        self, kube: Kube, settings: ControllerSettings, workloads: Resource = KUEUE_WORKLOADS, gate: Gate = OPEN
    ) -> None:
        self._kube, self._settings, self._gate, self._served = kube, settings, gate, workloads
        self._engine = settings.holds.engine
        super().__init__()
        self._reservations: ObjectCache[Reserved] = ObjectCache(
            Informer(kube, KAIWO_RESERVATIONS, keep=read_reserved, required=True)
        )
        self._workloads: ObjectCache[ObservedWorkload] = ObjectCache(Informer(kube, workloads, keep=read_workload))
        self._pods: ObjectCache[ObservedPod] = ObjectCache(Informer(kube, PODS, keep=read_pod, required=True))
        ours = f"{COMPONENT_LABEL}={HOLDS_COMPONENT}"
        self._jobs: ObjectCache[HoldJob] = ObjectCache(Informer(kube, JOBS, label_selector=ours, keep=read_hold_job))
        self._nodes: Informer[ObservedNode] = Informer(kube, NODES, keep=read_node, required=True)
        self._spaces: Informer[NamespaceSettings] = Informer(kube, NAMESPACES, keep=read_namespace)
        self._local: Informer[str] = Informer(kube, KUEUE_LOCAL_QUEUES, keep=local_queue_target)
        self._queues: Informer[ClusterQueue] = Informer(kube, KUEUE_CLUSTER_QUEUES, keep=read_cluster_queue)
        self._flavors: Informer[Flavor] = Informer(kube, KUEUE_FLAVORS, keep=read_flavor)
        self._pod_queues: Informer[PodQueue] | None = None
        of_engine: list[Informer[Any]] = [self._workloads.informer, self._local, self._queues, self._flavors]
        if (each := POD_ENGINES.get(self._engine)) is not None:
            keep = partial(read_queue, engine=self._engine, gpu_resource=settings.gpu_resource)
            self._pod_queues = Informer(kube, each.queues, keep=keep, required=True)
            of_engine = [self._pod_queues]
        caches: list[ObjectCache[Any]] = [self._reservations, self._pods, self._jobs]
        self._observe(*(cache.informer for cache in caches), self._nodes, self._spaces, *of_engine)

    def observed(self, now_s: float) -> Observed:
        return Observed(
            now_s,
            sorted(self._reservations.objects.values(), key=lambda each: each.key),
            list(self._workloads.objects.values()),
            list(self._pods.objects.values()),
            list(self._nodes.objects.values()),
            list(self._jobs.objects.values()),
            dict(self._local.objects),
            *self._books(),
            {name: space for (_, name), space in self._spaces.objects.items()},
            {},
            self._mode,
            self.reservation_mode,
            self._engine,
        )

    def _books(self) -> tuple[dict[str, ClusterQueue], dict[str, Flavor]]:
        if self._pod_queues is not None:
            queues = list(self._pod_queues.objects.values())
            return {each.queue.name: each.queue for each in queues}, flavors_of(queues)
        return (
            {name: queue for (_, name), queue in self._queues.objects.items()},
            {name: flavor for (_, name), flavor in self._flavors.objects.items()},
        )

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None:
        if resource == PODS:
            self._pods.record(await self._fence.patch(PODS, document, changes))
        else:
            self._workloads.record(await self._fence.patch(self._served, document, changes))

    async def create_job(self, body: Object) -> None:
        self._jobs.record(await self._fence.create(JOBS, body))

    async def delete_job(self, job: HoldJob) -> None:
        await self._fence.delete(JOBS, job.document)
        self._jobs.record_deletion(job.document)

    async def write_status(self, document: Object) -> None:
        self._reservations.record(await self._fence.replace(KAIWO_RESERVATIONS, document, subresource="status"))

    async def read_pod(self, pod: ObservedPod) -> ObservedPod | None:
        try:
            return read_pod(await self._kube.get(PODS, pod.key[1], pod.key[0]))
        except NotFound:
            return None

    def _mode(self, each: ObservedWorkload) -> Mode:
        return self._mode_in(each.key[0], each.workload.mode)

    def reservation_mode(self, each: Reserved) -> Mode:
        """By its own annotation, its namespace, and the switch."""
        owner = Owner.of(KAIWO_RESERVATIONS.plural, *each.key)
        return self._gate.mode(NAME, owner, self._mode_in(each.key[0], each.mode))

    def _mode_in(self, namespace: str, own: str) -> Mode:
        space = self._spaces.objects.get(("", namespace))
        return mode_in(space, own, self._settings.mode, self._settings.workload_may_lower)


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader writes."""

    action = "Reserving"
    reads_seals = True
    annotation_checks = checks(EVICTING_ANNOTATION, holder=HOLDER)

    def __init__(
        self, kube: Kube, settings: ProcessSettings, ask: Ask | None = None, workloads: Resource = KUEUE_WORKLOADS
    ) -> None:
        self._settings, self._ask = settings.controller, ask
        switches = LiveSwitches(kube, NAME)
        self.cluster = LiveCluster(kube, settings.controller, workloads, switches)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches)
        self.gauge_of_stepper("held_gpus", "Idle GPUs that are kept for reservations.", "held")
        self.gauge_of_stepper("blocked", "Workloads that are kept from reserved GPUs.")
        self.gauge_of_stepper("refused", "Reservations that cannot be kept.")
        self.gauge("errors", "Writes that failed and are retried.", lambda: self.errors)

    async def lead(self, fence: Fence) -> None:
        self.cluster.begin(fence)
        reconciler = Reconciler(
            self.cluster, self._settings, self.emit_event, RunTimes(self._ask), isolation=self.isolation
        )
        await self.step_through(reconciler, self.cluster.changed, _GATHER_S)
