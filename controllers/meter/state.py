"""What informers have seen, as the policy takes it: pods and nodes with what they are of physical GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    KAIWO_BUDGETS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NAMESPACES,
    NODES,
    PODS,
    Object,
    Resource,
)
from kopt.cluster.objects.fields import slim
from kopt.cluster.runtime.index import Index
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.controllers.meter.claims import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ClaimedDevices,
    ObservedClaim,
    ObservedSlice,
    read_claim,
    read_slice,
)
from kopt.controllers.meter.clock import SteadyClock
from kopt.controllers.meter.views import (
    ObservedNode,
    ObservedPod,
    ObservedWorkload,
    namespace_reader,
    pod_reader,
    read_node,
    read_workload,
)
from kopt.core.cost.metering import Demand, MeteredNode, MeteredPod, Milliseconds
from kopt.policies.cost.devices import demand_of


@dataclass(frozen=True)
class Resources:
    """Kinds in the versions that the cluster serves."""

    workloads: Resource = KUEUE_WORKLOADS
    local_queues: Resource = KUEUE_LOCAL_QUEUES


class LiveCluster(LiveState):
    """``changed`` is set by every change that matters."""

    def __init__(self, kube: Kube, label_keys: tuple[str, ...], clock: SteadyClock, resources: Resources) -> None:
        super().__init__()
        self._clock = clock
        self._pods: Informer[ObservedPod] = Informer(kube, PODS, keep=pod_reader(label_keys), required=True)
        self._nodes: Informer[ObservedNode] = Informer(kube, NODES, keep=read_node, required=True)
        self._spaces: Informer[Mapping[str, str]] = Informer(kube, NAMESPACES, keep=namespace_reader(label_keys))
        self._workloads: Informer[ObservedWorkload] = Informer(kube, resources.workloads, keep=read_workload)
        self._by_owner: Index[str, ObservedWorkload] = Index(lambda workload: [workload.owner_uid])
        self._workloads.subscribe(self._by_owner.follow)
        self._slices: Informer[ObservedSlice] = Informer(kube, RESOURCE_SLICES, keep=read_slice)
        self._claims: Informer[ObservedClaim] = Informer(kube, RESOURCE_CLAIMS, keep=read_claim)
        self._claimed: dict[str, Demand] = {}
        """What pods had by claims, which are given up when they end."""
        self.budgets: Informer[Object] = Informer(kube, KAIWO_BUDGETS, keep=slim)
        self.queues: ObjectCache[Object] = ObjectCache(Informer(kube, resources.local_queues, keep=slim))
        self._departed: dict[str, Milliseconds] = {}
        self._ended_ms: dict[str, Milliseconds] = {}
        self._deleted: dict[str, ObservedPod] = {}
        self._pods.subscribe(self._pod_changes)
        self._nodes.subscribe(self._node_changes)
        self._observe(
            self._pods,
            self._nodes,
            self._spaces,
            self._workloads,
            self._slices,
            self._claims,
            self.budgets,
            self.queues.informer,
        )

    def nodes(self) -> Mapping[str, MeteredNode]:
        """With GPUs, by uid."""
        return {observed.node.uid: observed.node for observed in self._with_gpus(self._devices()).values()}

    def pods(self) -> list[MeteredPod]:
        """Those that are listed, and those that have gone since ``settled``."""
        devices = self._devices()
        by_name = self._with_gpus(devices)
        every = [*self._pods.objects.values(), *self._deleted.values()]
        self._claimed = {pod.uid: self._claimed[pod.uid] for pod in every if pod.uid in self._claimed}
        metered = [self._metered(pod, by_name.get(pod.node), devices) for pod in every]
        return [pod for pod in metered if pod is not None]

    @property
    def departed(self) -> Mapping[str, Milliseconds]:
        return dict(self._departed)

    def settled(self, departed: Mapping[str, Milliseconds]) -> None:
        """What is in ``departed`` is stored."""
        for uid in departed:
            self._departed.pop(uid, None)
            self._deleted.pop(uid, None)
            self._ended_ms.pop(uid, None)

    def _devices(self) -> ClaimedDevices:
        return ClaimedDevices(self._slices.objects.values(), self._claims.objects.values())

    def _with_gpus(self, devices: ClaimedDevices) -> dict[str, ObservedNode]:
        """By name."""
        result = {}
        for observed in self._nodes.objects.values():
            node, claimed = observed.node, devices.of_node(observed.node.name)
            if observed.devices is not None:
                result[node.name] = observed
            elif claimed is not None:
                offer = replace(node.offer, model=claimed.model)
                result[node.name] = ObservedNode(replace(node, gpus=claimed.gpus, offer=offer), claimed)
        return result

    def _demand(self, pod: ObservedPod, node: ObservedNode, devices: ClaimedDevices) -> Demand | None:
        if claimed := devices.of_pod(pod.uid):
            self._claimed[pod.uid] = claimed
        return self._claimed.get(pod.uid) or (demand_of(pod.request, node.devices) if node.devices else None)

    def _metered(self, pod: ObservedPod, node: ObservedNode | None, devices: ClaimedDevices) -> MeteredPod | None:
        demand = self._demand(pod, node, devices) if node is not None else None
        if demand is None:
            return None
        ended_ms = self._departed.get(pod.uid) if pod.uid in self._deleted else None
        if pod.ended:
            # Nothing says when: when it was first seen to have.
            ended_ms = pod.ended_ms or self._ended_ms.setdefault(pod.uid, self._clock.now_ms())
        its = pod.attributes
        workload = next(iter(self._by_owner.of(pod.owner_uid)), None) if pod.owner_uid else None
        queue = its.queue or (workload.queue if workload is not None else "")
        labels = {**self._spaces.objects.get(("", its.namespace), {}), **its.labels}
        return MeteredPod(pod.uid, pod.node, demand, pod.started_ms, ended_ms, replace(its, queue=queue, labels=labels))

    def _pod_changes(self, change: Change[ObservedPod]) -> None:
        if change.new is None and change.old is not None:
            self._departs(change.old.uid)
            self._deleted[change.old.uid] = change.old
        elif change.new is not None:
            self.settled({change.new.uid: 0})

    def _node_changes(self, change: Change[ObservedNode]) -> None:
        if change.new is None and change.old is not None:
            self._departs(change.old.node.uid)

    def _departs(self, uid: str) -> None:
        self._departed[uid] = self._clock.now_ms()
