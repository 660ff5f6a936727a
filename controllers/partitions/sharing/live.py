"""The state of now from the API server itself, one small list per node that has the plugin's label."""

from collections.abc import Mapping, Sequence

from kopt.cluster.checkpoints.draining import evict_pods
from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import CONFIG_MAPS, NODES, PODS, UNFINISHED_PODS, Key, Object
from kopt.cluster.holds.hold import HELD_LABEL, holder_of
from kopt.cluster.holds.node_sharing import SHARING
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.switches import Gate
from kopt.controllers.partitions.sharing.reading import PluginNode, read_offered, read_plugin_node
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.formats.sharing_terms import CONFIGURATION_LABEL, ReplicaSetting


class LiveNodes:
    """``where``: namespace and name of the plugin's configurations."""

    def __init__(self, kube: Kube, fence: Fence, gate: Gate, where: Key) -> None:
        self._kube, self._fence, self._gate, self._where = kube, fence, gate, where

    async def offered(self) -> Mapping[str, ReplicaSetting]:
        namespace, name = self._where
        listed = await self._kube.list(CONFIG_MAPS, namespace, field_selector=f"metadata.name={name}")
        return read_offered(next(iter(listed.items), None))

    async def nodes(self, offered: Mapping[str, ReplicaSetting]) -> Sequence[PluginNode]:
        named: dict[str, Object] = {}
        for selector in (CONFIGURATION_LABEL, f"{HELD_LABEL}={SHARING}"):
            listed = await self._kube.list(NODES, label_selector=selector)
            named |= {item["metadata"]["name"]: item for item in listed.items}
        result = []
        for name, node in named.items():
            setting = offered.get(text(node, "metadata", "labels", CONFIGURATION_LABEL))
            if holder_of(node) != SHARING and (setting is None or setting.replicas < 2):
                # A GPU for each is no sharing that could be contended.
                continue
            pods = await self._kube.list(PODS, field_selector=f"spec.nodeName={name},{UNFINISHED_PODS}")
            result.append(read_plugin_node(node, pods.items, offered))
        return result

    def mode(self, node: PluginNode, mode: Mode) -> Mode:
        return self._gate.mode(SHARING, Owner.of(NODES.plural, "", node.name), mode)

    async def patch_node(self, node: PluginNode, changes: Object) -> None:
        await self._fence.patch(NODES, node.document, changes)

    async def evict(self, node: PluginNode, *, dry_run: bool = False) -> Sequence[str]:
        return await evict_pods(self._kube, node.pods, dry_run=dry_run)
