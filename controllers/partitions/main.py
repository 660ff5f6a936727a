"""``kopt controller partitions``: one replica, from start to the end."""

import asyncio
from dataclasses import dataclass, field

from kopt.cluster.client.api import Kube, KubeSettings, connect
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
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import OPEN, Gate, LiveSwitches
from kopt.cluster.workloads.requests.devices import PublishedSlice, read_slice
from kopt.cluster.workloads.requests.external import CLAIMS, DEVICE_CLASSES, RESOURCE_SLICES
from kopt.controllers.partitions.demand import PartitionClaim, read_partition_claim
from kopt.controllers.partitions.options import DEFAULT_CONFIGURATIONS, DEFAULT_PROFILES
from kopt.controllers.partitions.reading import busy_pods
from kopt.controllers.partitions.reconciler import ControllerSettings, Reconciler
from kopt.controllers.partitions.reports import Observed
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
_WHERE, _PROFILES = (tuple(name.split("/")) for name in (DEFAULT_CONFIGURATIONS, DEFAULT_PROFILES))


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica. ``configurations``, ``profiles``: namespace and name of the ConfigMaps of mig-manager
    and of AMD's device config manager."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    configurations: Key = (_WHERE[0], _WHERE[1])
    profiles: Key = (_PROFILES[0], _PROFILES[1])
    port: int = 9464


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-partitions")) as kube:
        await run_until(ending, Replica(kube, settings))


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

    def __init__(self, kube: Kube, settings: ProcessSettings) -> None:
        self._settings = settings.controller
        switches = LiveSwitches(kube, NAME)
        self.cluster = LiveCluster(kube, settings, switches)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches)
        self.gauge_of_stepper("cutting", "Nodes that are being cut.")
        self.gauge_of_stepper("planned", "Idle nodes that are to be cut.")
        self.gauge_of_stepper("waiting_requests", "Instances that wait, by pods and claims.", "pending")
        self.gauge_of_stepper("undone", "What MIGStrategies ask for and is not done.")
        self.gauge("errors", "Writes that failed and are retried.", lambda: self.errors)

    async def lead(self, fence: Fence) -> None:
        self.cluster.begin(fence)
        reconciler = Reconciler(self.cluster, self._settings, self.emit_event, isolation=self.isolation)
        await self.step_through(reconciler, self.cluster.changed, _GATHER_S)
