"""``kopt controller partitions``: one replica, from start to the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kopt.cluster.client.api import Kube, KubeSettings, connect
from kopt.cluster.client.prometheus import PrometheusAddress, server_at
from kopt.cluster.client.resources import (
    CONFIG_MAPS,
    MIG_STRATEGIES,
    NODE_PLANS,
    NODES,
    PARTITIONING_PLANS,
    PODS,
    Key,
    Object,
)
from kopt.cluster.runtime.eviction import evict_pod
from kopt.cluster.runtime.index import Index
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import OPEN, Gate, LiveSwitches
from kopt.cluster.workloads.requests.devices import PublishedSlice, read_slice
from kopt.cluster.workloads.requests.external import CLAIMS, DEVICE_CLASSES, RESOURCE_SLICES
from kopt.controllers.partitions.demand import PartitionClaim, read_partition_claim
from kopt.controllers.partitions.options import DEFAULT_CONFIGURATIONS, DEFAULT_PROFILES, DEFAULT_SHARING
from kopt.controllers.partitions.reading import busy_pods
from kopt.controllers.partitions.reconciler import ControllerSettings, Reconciler
from kopt.controllers.partitions.reports import Observed
from kopt.controllers.partitions.sharing.live import LiveNodes
from kopt.controllers.partitions.sharing.reading import Measure, read_measured
from kopt.controllers.partitions.sharing.reconciler import Reconciler as Sharing
from kopt.controllers.partitions.sharing.reconciler import SharingSettings
from kopt.controllers.partitions.views import (
    ObservedConfigurations,
    ObservedNode,
    ObservedPlan,
    ObservedPod,
    ObservedProfiles,
    ObservedStrategy,
    ReportedModes,
    read_config_map,
    read_node,
    read_observed_strategy,
    read_partitioning_plan,
    read_pod,
    read_profile_map,
    read_reported_modes,
)
from kopt.core.decision import Mode
from kopt.core.switches import Owner

NAME = "partitions"
_GATHER_S = 0.2
"""Changes within this time are handled together."""
_TIMEOUT_S = 60.0
_WHERE, _PROFILES, _SHARING = (
    tuple(name.split("/")) for name in (DEFAULT_CONFIGURATIONS, DEFAULT_PROFILES, DEFAULT_SHARING)
)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. ``configurations``, ``profiles``, ``sharing_configurations``: namespace and name of
    the ConfigMaps of mig-manager, of AMD's device config manager, and of NVIDIA's device plugin. ``sharing``: None
    where nobody watches how GPUs are shared; ``slowdown``: a query of the Prometheus at ``prometheus``."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    configurations: Key = (_WHERE[0], _WHERE[1])
    profiles: Key = (_PROFILES[0], _PROFILES[1])
    sharing: SharingSettings | None = None
    sharing_configurations: Key = (_SHARING[0], _SHARING[1])
    slowdown: str = ""
    prometheus: str = ""
    token_file: Path | None = None
    certificate_authority: Path | None = None
    port: int = 9464


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-partitions")) as kube,
        _measuring(settings) as measure,
    ):
        await run_until(ending, Replica(kube, settings, measure))


@contextlib.asynccontextmanager
async def _measuring(settings: ProcessSettings) -> AsyncIterator[Measure | None]:
    address = PrometheusAddress(settings.prometheus, settings.token_file, settings.certificate_authority)
    async with server_at(address, _TIMEOUT_S) as server:
        yield None if server is None else partial(read_measured, server, settings.slowdown)


class LiveCluster(LiveState):
    """The state observed by informers, with our own writes. ``changed`` is set by every change."""

    def __init__(self, kube: Kube, process: ProcessSettings, gate: Gate = OPEN) -> None:
        self._kube, self._settings, self._gate = kube, process.controller, gate
        self._where, self._profiles_at = process.configurations, process.profiles
        where = self._where
        super().__init__()
        self._strategies: ObjectCache[ObservedStrategy] = ObjectCache(
            Informer(kube, MIG_STRATEGIES, keep=read_observed_strategy, required=True)
        )
        self._nodes: ObjectCache[ObservedNode] = ObjectCache(Informer(kube, NODES, keep=read_node, required=True))
        self._pods: Informer[ObservedPod] = Informer(kube, PODS, keep=read_pod, required=True)
        self._by_node: Index[str, ObservedPod] = Index(lambda pod: [pod.node] if pod.node else [])
        self._pods.subscribe(self._by_node.follow)
        self._claims: Informer[PartitionClaim] = Informer(kube, CLAIMS, keep=read_partition_claim)
        self._classes: Informer[Object] = Informer(kube, DEVICE_CLASSES)
        self._slices: Informer[PublishedSlice] = Informer(kube, RESOURCE_SLICES, keep=read_slice)
        self._plans: Informer[ObservedPlan] = Informer(kube, PARTITIONING_PLANS, keep=read_partitioning_plan)
        self._configurations: Informer[ObservedConfigurations] = Informer(
            kube, CONFIG_MAPS, namespace=where[0], field_selector=f"metadata.name={where[1]}", keep=read_config_map
        )
        self._profiles: Informer[ObservedProfiles] = Informer(
            kube,
            CONFIG_MAPS,
            namespace=self._profiles_at[0],
            field_selector=f"metadata.name={self._profiles_at[1]}",
            keep=read_profile_map,
        )
        self._reported: Informer[ReportedModes] = Informer(kube, NODE_PLANS, keep=read_reported_modes)
        self._observe(
            self._strategies.informer,
            self._nodes.informer,
            self._pods,
            self._claims,
            self._classes,
            self._slices,
            self._plans,
            self._configurations,
            self._profiles,
            self._reported,
        )

    def observed(self, now_s: float) -> Observed:
        missing = ObservedConfigurations(error=f"there is no ConfigMap {'/'.join(self._where)} (--configurations)")
        no_profiles = ObservedProfiles(error=f"there is no ConfigMap {'/'.join(self._profiles_at)} (--profiles)")
        return Observed(
            now_s,
            list(self._strategies.objects.values()),
            list(self._nodes.objects.values()),
            list(self._pods.objects.values()),
            list(self._claims.objects.values()),
            {name: item for (_, name), item in self._classes.objects.items()},
            list(self._slices.objects.values()),
            list(self._plans.objects.values()),
            self._configurations.objects.get(self._where, missing),
            self._profiles.objects.get(self._profiles_at, no_profiles),
            list(self._reported.objects.values()),
        )

    def pods_on(self, node: str) -> frozenset[str]:
        """The uids of the pods with GPUs on a node."""
        return frozenset(pod.uid for pod in self._by_node.of(node))

    def mode(self, strategy: ObservedStrategy) -> Mode:
        owner = Owner.of(MIG_STRATEGIES.plural, "", strategy.name)
        return self._gate.mode(NAME, owner, self._settings.mode)

    async def is_idle(self, node: ObservedNode) -> bool:
        return not await busy_pods(self._kube, node.name)

    async def evict_pods(self, node: ObservedNode, *, dry_run: bool = False) -> None:
        for pod in await busy_pods(self._kube, node.name):
            await evict_pod(self._kube, pod.key, pod.uid, dry_run=dry_run)

    async def patch_node(self, node: ObservedNode, changes: Object) -> None:
        self._nodes.record(await self._fence.patch(NODES, node.document, changes))

    async def write_status(self, document: Object) -> None:
        self._strategies.record(await self._fence.replace(MIG_STRATEGIES, document, subresource="status"))


class Replica(LedReplica):
    """The parts of one process, put together. Every replica observes; the leader writes."""

    action = "Partitioning"

    def __init__(self, kube: Kube, settings: ProcessSettings, measure: Measure | None = None) -> None:
        self._kube, self._process, self._settings, self._measure = kube, settings, settings.controller, measure
        self._partitions: Reconciler | None = None
        self._sharing: Sharing | None = None
        self._switches = switches = LiveSwitches(kube, NAME)
        self.cluster = LiveCluster(kube, settings, switches)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches)
        for what, attribute, text in (
            ("cutting", "cutting", "Nodes that are being cut."),
            ("planned", "planned", "Idle nodes that are to be cut."),
            ("waiting_requests", "pending", "Instances that wait, by pods and claims."),
            ("undone", "undone", "What MIGStrategies ask for and is not done."),
        ):
            self.gauge(what, text, partial(self._of_partitions, attribute))
        for what, attribute, text in (
            ("sharing_changing", "changing", "Nodes whose device plugin is to share GPUs in another way, right now."),
            ("sharing_proposed", "proposed", "Nodes that should share GPUs in another way, and do not change now."),
            ("sharing_without_mps", "without_mps", "Nodes that offer no GPU as the daemon of MPS is away."),
            ("sharing_measured", "measured", "1 while Prometheus says how hard GPUs are used."),
        ):
            self.gauge(what, text, partial(self._of_sharing, attribute))
        self.gauge("errors", "Writes that failed and are retried.", lambda: self.errors)

    async def lead(self, fence: Fence) -> None:
        self.cluster.begin(fence)
        self._partitions = reconciler = Reconciler(
            self.cluster, self._settings, self.emit_event, isolation=self.isolation
        )
        work = [asyncio.create_task(self.step_through(reconciler, self.cluster.changed, _GATHER_S))]
        if self._process.sharing is not None:
            where, pods_on = self._process.sharing_configurations, self.cluster.pods_on
            nodes = LiveNodes(self._kube, fence, self._switches, where, pods_on)
            self._sharing = Sharing(
                nodes, self._process.sharing, self._measure, self.emit_event, isolation=self.isolation
            )
            # Nothing but time and switches wakes it.
            work.append(asyncio.create_task(self.step_through(self._sharing, asyncio.Event(), _GATHER_S)))
        try:
            await asyncio.gather(*work)
        finally:
            self._partitions = self._sharing = None
            for task in work:
                task.cancel()

    def _of_partitions(self, attribute: str) -> float:
        return float(getattr(self._partitions, attribute, 0))

    def _of_sharing(self, attribute: str) -> float:
        return float(getattr(self._sharing, attribute, 0))
