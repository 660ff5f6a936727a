"""``kopt extender``: one replica, from start to the end of its draining."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopt.cluster.client.api import ApiError, Kube, KubeSettings, NotFound, connect
from kopt.cluster.client.prometheus import PrometheusAddress, Query, asking
from kopt.cluster.client.resources import (
    GPU_WORKLOADS,
    NAMESPACES,
    NODE_ALLOCATIONS,
    NODE_BANDWIDTHS,
    NODE_HEALTHS,
    NODE_SELECTION_POLICIES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    UNFINISHED_PODS,
    Key,
    Object,
)
from kopt.cluster.objects.custom.node_selection_policy import StoredPolicy, stored_of
from kopt.cluster.runtime.events import WARNING, EventRecorder, EventSettings
from kopt.cluster.runtime.fall_back import FailureRate, FallBack
from kopt.cluster.runtime.http.tls_files import TlsFiles
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.signals import end_signals, run_until, settle_memory
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.workloads.placement.allocations import Followed, NodeReport, allocation_report_of
from kopt.cluster.workloads.placement.node_capacity import offers_of
from kopt.cluster.workloads.placement.node_complaints import of_bandwidth, of_health
from kopt.cluster.workloads.placement.pod_state import PodState, mode_of_namespace
from kopt.controllers.extender.binding.corrections import correct_annotations
from kopt.controllers.extender.binding.request import Binder
from kopt.controllers.extender.books.gpu_workloads import GpuWorkload, PlacedPod, Statuses, workload_of
from kopt.controllers.extender.books.topologies import TopologyReport, report_of
from kopt.controllers.extender.calls.server import ExtenderServer, ServerSettings
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.decision_log import PodDecision
from kopt.controllers.extender.leadership import Leadership, LeadershipSettings
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.selection.live import LiveSelection
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.controllers.extender.traces import Spans, tracer
from kopt.core.hardware.complaint import Complaint
from kopt.core.scheduling.placement import FleetNode
from kopt.core.switches import AlarmKind
from kopt.policies.placement.fleet import Fleet, Holding

_LOG = logging.getLogger(__name__)
_CONFIRM_S = 0.01
_ADVICE_S = 5.0
OFFERED_ANNOTATION = "kaiwo.ai/offered-at"
"""Written on a refused pod when room has appeared: the scheduler retries a pod that changes."""


@dataclass(frozen=True)
class ProcessSettings:
    """Everything of one replica. Times in seconds."""

    extender: ExtenderSettings = ExtenderSettings()
    server: ServerSettings = ServerSettings()
    leadership: LeadershipSettings = field(default_factory=LeadershipSettings)
    kubeconfig: Path | None = None
    stale_s: float = 120.0
    """Without a sign of life from the API server for so long, the books are not trusted any more."""
    upkeep_s: float = 1.0
    nudges_per_s: int = 10
    prometheus: PrometheusAddress = PrometheusAddress()
    """Where the use of nodes is recorded, for NodeSelectionPolicies that weigh it."""
    events: EventSettings = EventSettings(per_second=5.0, burst=25)
    """In a burst /explain covers every pod, events some of them: writing all would slow the binding down."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-extender")) as kube,
        asking(settings.prometheus) as query,
    ):
        replica = Replica(kube, settings, query)
        try:
            await run_until(ending, replica)
        finally:
            replica.close()


class Replica:
    """The parts of one process, put together."""

    def __init__(self, kube: Kube, settings: ProcessSettings, query: Query | None = None) -> None:
        self._kube, self._settings = kube, settings
        self._leadership = Leadership(kube, settings.leadership, lambda: self._pods.version)
        self._tls = TlsFiles(settings.server.tls) if settings.server.tls is not None else None
        self.metrics = ExtenderMetrics()
        self.switches = LiveSwitches(kube, "extender")
        self.switches.register(self.metrics.registry)
        failures = FailureRate("bindings", self.metrics.outcomes, kind=AlarmKind.ERROR_BUDGET)
        self._fall_back = FallBack(kube, self.switches, "placement", [failures], self._announce_fall_back)
        self._events = EventRecorder(kube, "kaiwo.ai/extender", settings.leadership.identity, settings.events)
        self._event_times_s: deque[float] = deque(maxlen=settings.events.burst)
        result, self._provider = tracer()
        self._binder = Binder(kube, self._leadership.leader)
        self.extender = Extender(
            Fleet(),
            self._binder,
            settings.extender,
            self.metrics,
            spans=Spans(result),
            announce=self._announce,
            changed=self._pod_of_workload_changed,
            gate=self.switches,
        )
        self._pods: Informer[PodState] = Informer(
            kube, PODS, field_selector=UNFINISHED_PODS, keep=self.extender.pod_state
        )
        self._nodes: Informer[Mapping[str, FleetNode]] = Informer(kube, NODES, keep=offers_of)
        self._namespaces: Informer[str] = Informer(kube, NAMESPACES, keep=mode_of_namespace)
        self._workloads: Informer[GpuWorkload] = Informer(kube, GPU_WORKLOADS, keep=workload_of)
        self._topologies: Informer[TopologyReport] = Informer(kube, NODE_TOPOLOGIES, keep=report_of)
        self._bandwidths: Informer[Complaint] = Informer(kube, NODE_BANDWIDTHS, keep=of_bandwidth)
        self._healths: Informer[Complaint] = Informer(kube, NODE_HEALTHS, keep=of_health)
        self._allocations: Informer[NodeReport] = Informer(kube, NODE_ALLOCATIONS, keep=allocation_report_of)
        self._policies: Informer[StoredPolicy] = Informer(kube, NODE_SELECTION_POLICIES, keep=stored_of)
        self._isolation = Isolation("extender", self._warn)
        for informer in self._informers:
            informer.isolation = self._isolation
        self._statuses = Statuses(kube, self._workloads.objects, self._placed, self._reports, self._isolation)
        self._selection = LiveSelection(
            kube,
            self.extender.fleet,
            self._policies.objects,
            query=query,
            leading=lambda: self.serves,
            isolation=self._isolation,
        )
        self._of_workload: dict[Key, dict[str, PodState]] = {}
        # Nodes and wishes first: pods are put on them.
        self._namespaces.subscribe(self.extender.namespace_changed)
        self._policies.subscribe(self._selection.changed)
        self._nodes.subscribe(self.extender.node_changed)
        self._topologies.subscribe(self.extender.topology_changed)
        self._bandwidths.subscribe(self.extender.bandwidth_changed)
        self._healths.subscribe(self.extender.health_changed)
        self._allocations.subscribe(self.extender.allocation_changed)
        self._workloads.subscribe(self._workload_changed)
        self._pods.subscribe(self.extender.pod_changed)
        self.server = ExtenderServer(
            self.extender,
            self.metrics,
            settings.server,
            ready=lambda: self.synced,
            serves=lambda: self._leadership.serves,
            tls=self._tls.context if self._tls is not None else None,
        )

    @property
    def _informers(self) -> tuple[Informer[Any], ...]:
        return (
            self.switches.informer,
            self._namespaces,
            self._nodes,
            self._topologies,
            self._bandwidths,
            self._healths,
            self._policies,
            self._allocations,
            self._workloads,
            self._pods,
        )

    @property
    def synced(self) -> bool:
        """Whether the books are of now."""
        needed = (self.switches.informer, self._nodes, self._pods, self._namespaces)
        return all(item.synced.is_set() and item.age_s() < self._settings.stale_s for item in needed)

    @property
    def serves(self) -> bool:
        """Whether this replica may answer: it leads, has caught up, and its books are of now."""
        return self.synced and self._leadership.serves

    def _announce_fall_back(self, regarding: Object, reason: str, sentence: str) -> None:
        self._events.record(regarding, reason, "Switching", sentence, kind=WARNING)

    def _reports(self) -> bool:
        """Whether GPUWorkloads are told where their pods are."""
        return self.serves and not self.switches.is_off("placement")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            group.create_task(self._statuses.run())
            group.create_task(self._selection.run())
            group.create_task(self._events.run())
            group.create_task(self._upkeep())
            group.create_task(self._fall_back.run())
            await self.server.start()
            if self._tls is not None:
                group.create_task(self._tls.run(self.server.end_connections))
            _LOG.info("listening on port %d", self.server.port)
            needed = (self.switches.informer, self._namespaces, self._nodes, self._pods)
            await asyncio.gather(*(item.synced.wait() for item in needed))
            # What makes decisions better and is not needed for them; one that may not be read must not hold them up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ADVICE_S):
                    await asyncio.gather(
                        *(
                            item.synced.wait()
                            for item in (
                                *(self._topologies, self._bandwidths, self._healths, self._workloads, self._policies),
                            )
                        )
                    )
            await self.extender.teach()
            settle_memory()
            group.create_task(self._leadership.run())

    async def stop(self) -> None:
        """Finish what is being bound, hand the Lease to the other replica, and only then drain."""
        self.server.leave()
        version = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.server.drain_s):
                await self.extender.binds.settle()
                while self.extender.fleet.assumed():
                    await asyncio.sleep(_CONFIRM_S)
                # This replica has seen its own bindings by now: a replica that has read as far knows them too.
                version = self._pods.version
        await self._leadership.hand_over(version)
        await self.server.stop()

    def close(self) -> None:
        """Send the last spans."""
        if self._provider is not None:
            self._provider.shutdown()

    async def _upkeep(self) -> None:
        """Between calls: expiry, learning, and pods that can go now."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.upkeep_s):
                    await self.extender.decider.freed.wait()
            self.extender.decider.freed.clear()
            with self._isolation.guard(self._isolation.itself):
                await self._keep_up()
            await asyncio.sleep(min(0.1, self._settings.upkeep_s))

    async def _keep_up(self) -> None:
        serves = self.serves
        self.metrics.leading.set(serves)
        for holding in self.extender.sweep():
            with self._isolation.guard(Subject(PODS.api_version, PODS.kind, *holding.pod, holding.uid)):
                await self._lookup(holding)
        await self.extender.teach()
        if serves and not self.switches.is_off("placement"):
            for pod in self.extender.decider.could_go_now(self._settings.nudges_per_s):
                await self._nudge(pod)
            await correct_annotations(self._kube, self.extender.allocated)

    def _warn(self, subject: Subject, reason: str, sentence: str) -> None:
        self.metrics.object_errors.labels("extender", subject.kind, reason).inc()
        if self.serves and subject.name:
            self._events.record(subject.reference, reason, "Isolating", sentence, kind=WARNING)

    async def _lookup(self, holding: Holding) -> None:
        try:
            pod: Object | None = await self._binder.pod(holding.pod)
        except NotFound:
            pod = None
        except ApiError as error:
            _LOG.info("pod %s/%s is looked up later: %s", *holding.pod, error)
            return
        self.extender.looked_up(holding, pod)

    async def _nudge(self, pod: Key) -> None:
        changes: Object = {"metadata": {"annotations": {OFFERED_ANNOTATION: f"{time.time():.3f}"}}}
        try:
            await self._kube.patch(PODS, pod[1], changes, pod[0])
            self.metrics.nudged.inc()
        except ApiError as error:
            _LOG.info("pod %s/%s cannot be annotated for the scheduler to retry it: %s", *pod, error)

    def _announce(self, decision: PodDecision) -> None:
        """Report where people look: on the pod."""
        # Wording it costs more than deciding: not for events that would be dropped.
        now_s, times_s = time.monotonic(), self._event_times_s
        if len(times_s) == times_s.maxlen and now_s - times_s[0] < len(times_s) / self._settings.events.per_second:
            return
        times_s.append(now_s)
        regarding = PODS.reference(*decision.pod, decision.uid)
        if decision.followed == Followed.DIFFERS:
            self._events.record(regarding, "OtherGPUs", "Allocating", decision.summary, kind=WARNING)
        elif decision.outcome == "bound":
            self._events.record(regarding, "NodeChosen", "Binding", decision.summary)
        else:
            self._events.record(regarding, "NoNodeChosen", "Filtering", decision.summary, kind=WARNING)

    def _workload_changed(self, change: Change[GpuWorkload]) -> None:
        if change.new is None:
            self.extender.wishes.pop(change.key, None)
            return
        self.extender.wishes[change.key] = change.new.wish
        if change.old is None or change.old.status != change.new.status or change.old.gpus != change.new.gpus:
            self._statuses.changed(change.key)

    def _pod_of_workload_changed(self, pod: PodState) -> None:
        key = (pod.key[0], pod.workload)
        pods = self._of_workload.setdefault(key, {})
        if pod.uid in self.extender.pods:
            pods[pod.uid] = pod
        else:
            pods.pop(pod.uid, None)
            if not pods:
                del self._of_workload[key]
        self._statuses.changed(key)

    def _placed(self, workload: Key) -> list[PlacedPod]:
        return list(self._each_placed(workload))

    def _each_placed(self, workload: Key) -> Iterator[PlacedPod]:
        for uid, pod in self._of_workload.get(workload, {}).items():
            holding = self.extender.fleet.holdings.get(uid)
            decision = self.extender.log.find(pod.key)
            scored = decision is not None and decision.uid == uid and decision.outcome == "bound"
            score = decision.placement.choice.score if decision is not None and scored else None
            yield PlacedPod(pod.key[1], pod.node, holding.gpus if holding is not None and pod.node else (), score)
