"""What informers have seen: nodes with what others say of them, links, devices, outcomes of pods, and our objects."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.cluster.client.api import Kube
from kopt.cluster.client.errors import Forbidden, NotFound
from kopt.cluster.client.resources import DEVICE_TAINT_RULES, NODE_HEALTHS, NODE_TOPOLOGIES, NODES, PODS, Object
from kopt.cluster.holds.device_taint import TaintedDevice, read_rule
from kopt.cluster.holds.node_taint import MARK_LABEL
from kopt.cluster.objects.fields import slim
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.workloads.requests.external import RESOURCE_SLICES
from kopt.controllers.health.devices import (
    UNKNOWN,
    DevicesByGpu,
    ObservedDevice,
    ObservedSlice,
    devices_by_gpu,
    read_slice,
)
from kopt.controllers.health.views import (
    ObservedLinks,
    ObservedNode,
    read_links,
    read_node,
    read_outcome,
)
from kopt.core.hardware.health import Outcome


class LiveCluster(LiveState):
    """``changed`` is set by every change that matters. Outcomes outlive their pods until they are taken."""

    def __init__(self, kube: Kube) -> None:
        super().__init__()
        self._kube = kube
        self._nodes: ObjectCache[ObservedNode] = ObjectCache(Informer(kube, NODES, keep=read_node, required=True))
        self._pods: Informer[Outcome] = Informer(kube, PODS, keep=read_outcome, required=True)
        self._links: Informer[ObservedLinks] = Informer(kube, NODE_TOPOLOGIES, keep=read_links)
        self._slices: Informer[ObservedSlice] = Informer(kube, RESOURCE_SLICES, keep=read_slice)
        rules = Informer(kube, DEVICE_TAINT_RULES, label_selector=MARK_LABEL, keep=read_rule)
        self._rules: ObjectCache[TaintedDevice] = ObjectCache(rules)
        self._healths: ObjectCache[Object] = ObjectCache(Informer(kube, NODE_HEALTHS, keep=slim))
        self._ended: dict[tuple[str, str, float], Outcome] = {}
        self._devices: dict[str, DevicesByGpu] | None = None
        self._pods.subscribe(self._on_pod)
        self._links.subscribe(self._on_devices)
        self._slices.subscribe(self._on_devices)
        self._observe(
            self._nodes.informer,
            self._pods,
            self._links,
            self._slices,
            self._rules.informer,
            self._healths.informer,
        )

    def nodes(self) -> Mapping[str, ObservedNode]:
        """With GPUs, by name."""
        devices, healths = self.devices(), self.healths()
        # A driver that starts anew publishes nothing for a moment, and its node is still one with GPUs.
        by_claims = devices.keys() | {rule.node for rule in self._rules.objects.values()}
        return {
            node.name: _of_claims(node, devices.get(node.name, {})) if node.name in by_claims else node
            for node in self._nodes.objects.values()
            if node.has_gpus or node.name in by_claims or node.name in healths
        }

    def devices(self) -> Mapping[str, DevicesByGpu]:
        """Of claims, by node and GPU."""
        if self._devices is None:
            by_node: dict[str, list[ObservedDevice]] = {}
            for item in self._slices.objects.values():
                by_node.setdefault(item.node, []).extend(item.devices)
            self._devices = {}
            for node, devices in by_node.items():
                links = self.links(node)
                self._devices[node] = devices_by_gpu(devices, links.gpus if links is not None else {})
        return self._devices

    def rules(self) -> list[TaintedDevice]:
        """DeviceTaintRules of ours."""
        return list(self._rules.objects.values())

    @property
    def serves_rules(self) -> bool:
        """Whether the API server has DeviceTaintRules and lets us have them."""
        informer = self._rules.informer
        return bool(informer.version) and not isinstance(informer.error, NotFound | Forbidden)

    def healths(self) -> Mapping[str, Object]:
        return {key[1]: document for key, document in self._healths.objects.items()}

    def links(self, node: str) -> ObservedLinks | None:
        return self._links.objects.get(("", node))

    def outcomes(self) -> list[Outcome]:
        """Of pods that are listed still, or have gone since the last call."""
        result = list(self._ended.values())
        self._ended = {}
        return [*result, *self._pods.objects.values()]

    async def write_node(self, node: ObservedNode, changes: Object) -> None:
        self._nodes.record(await self._fence.patch(NODES, node.document, changes))

    async def write_condition(self, node: ObservedNode, changes: Object) -> None:
        """``changes`` name the version of the node. Raises Conflict."""
        self._nodes.record(await self._fence.patch_status(NODES, node.document, changes))

    async def create_rule(self, body: Object) -> None:
        self._rules.record(await self._fence.create(DEVICE_TAINT_RULES, body))

    async def delete_rule(self, rule: TaintedDevice) -> None:
        await self._fence.delete(DEVICE_TAINT_RULES, rule.document)
        self._rules.record_deletion(rule.document)

    async def create_health(self, body: Object) -> None:
        self._healths.record(await self._fence.create(NODE_HEALTHS, body))

    async def write_health(self, document: Object, status: Object) -> None:
        """PUT, as lists and mappings in it are to be as they are written."""
        self._healths.record(await self._fence.replace(NODE_HEALTHS, document | {"status": status}))

    def _on_pod(self, change: Change[Outcome]) -> None:
        outcome = change.new or change.old
        if outcome is not None:
            self._ended[outcome.node, outcome.job, outcome.at_s] = outcome

    def _on_devices(self, _: Change[Any]) -> None:
        self._devices = None


def _of_claims(node: ObservedNode, devices: DevicesByGpu) -> ObservedNode:
    """What slices say of a node that no device plugin speaks of."""
    if node.gpus:
        return node
    models = [device.model for each in devices.values() for device in each if device.model]
    gpus = len(devices.keys() - {UNKNOWN})
    return replace(node, pool=node.pool or (models[0] if models else ""), gpus=gpus, by_claims=True)
