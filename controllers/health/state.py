"""What informers have seen: nodes with what others say of them, links, devices, outcomes of pods, and our objects."""

from collections.abc import Iterable, Mapping

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import NODE_HEALTHS, NODE_TOPOLOGIES, NODES, PODS, Object
from kopt.cluster.objects.fields import slim
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.workloads.requests.external import RESOURCE_SLICES
from kopt.controllers.health.views import (
    ObservedLinks,
    ObservedNode,
    read_links,
    read_node,
    read_outcome,
    read_slice,
)
from kopt.core.hardware.health import Outcome

Slice = tuple[str, str, str, Mapping[str, str], tuple[tuple[str, str], ...]]


class LiveCluster(LiveState):
    """``changed`` is set by every change that matters. Outcomes outlive their pods until they are taken."""

    def __init__(self, kube: Kube) -> None:
        super().__init__()
        self._kube = kube
        self._nodes: ObjectCache[ObservedNode] = ObjectCache(Informer(kube, NODES, keep=read_node, required=True))
        self._pods: Informer[Outcome] = Informer(kube, PODS, keep=read_outcome, required=True)
        self._links: Informer[ObservedLinks] = Informer(kube, NODE_TOPOLOGIES, keep=read_links)
        self._slices: Informer[Slice] = Informer(kube, RESOURCE_SLICES, keep=read_slice)
        self._healths: ObjectCache[Object] = ObjectCache(Informer(kube, NODE_HEALTHS, keep=slim))
        self._ended: dict[tuple[str, str, float], Outcome] = {}
        self._pods.subscribe(self._on_pod)
        self._observe(
            self._nodes.informer,
            self._pods,
            self._links,
            self._slices,
            self._healths.informer,
        )

    def nodes(self) -> Mapping[str, ObservedNode]:
        """With GPUs, by name."""
        return {node.name: node for node in self._nodes.objects.values()}

    def healths(self) -> Mapping[str, Object]:
        return {key[1]: document for key, document in self._healths.objects.items()}

    def links(self, node: str) -> ObservedLinks | None:
        return self._links.objects.get(("", node))

    def slices(self) -> Iterable[Slice]:
        return self._slices.objects.values()

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

    async def create_health(self, body: Object) -> None:
        self._healths.record(await self._fence.create(NODE_HEALTHS, body))

    async def write_health(self, document: Object, status: Object) -> None:
        """PUT, as lists and mappings in it are to be as they are written."""
        self._healths.record(await self._fence.replace(NODE_HEALTHS, document | {"status": status}))

    def _on_pod(self, change: Change[Outcome]) -> None:
        outcome = change.new or change.old
        if outcome is not None:
            self._ended[outcome.node, outcome.job, outcome.at_s] = outcome
