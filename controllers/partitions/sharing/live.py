"""The state of now from the API server itself: the nodes that share in one list, and of those on which something has
changed a small list of their pods each."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from kopt.cluster.checkpoints.draining import evict_pods
from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import CONFIG_MAPS, NODES, PODS, UNFINISHED_PODS, Key, Object
from kopt.cluster.holds.hold import HELD_LABEL, holder_of
from kopt.cluster.holds.node_sharing import CHANGING, SHARING
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.switches import Gate
from kopt.cluster.workloads.sharing.nodes import gpu_pod
from kopt.controllers.partitions.sharing.reading import PluginNode, read_offered, read_plugin_node
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.formats.sharing_terms import CONFIGURATION_LABEL, ReplicaSetting


class LiveNodes:
    """``where``: namespace and name of the plugin's configurations. ``pods_on``: which pods with GPUs are on a node, as
    far as an informer has come: another answer means that they are to be read anew."""

    def __init__(self, kube: Kube, fence: Fence, gate: Gate, where: Key, pods_on: Callable[[str], Hashable]) -> None:
        self._kube, self._fence, self._gate, self._where, self._pods_on = kube, fence, gate, where, pods_on
        self._quiet: dict[str, tuple[Hashable, PluginNode]] = {}
        """Nodes on which nothing is awaited, with what they were read at."""

    async def offered(self) -> Mapping[str, ReplicaSetting]:
        namespace, name = self._where
        listed = await self._kube.list(CONFIG_MAPS, namespace, field_selector=f"metadata.name={name}")
        return read_offered(next(iter(listed.items), None))

    async def nodes(self, offered: Mapping[str, ReplicaSetting]) -> Sequence[PluginNode]:
        named: dict[str, Object] = {}
        for selector in (CONFIGURATION_LABEL, f"{HELD_LABEL}={SHARING}"):
            listed = await self._kube.list(NODES, label_selector=selector)
            named |= {item["metadata"]["name"]: item for item in listed.items}
        before, self._quiet = self._quiet, {}
        result: list[PluginNode] = []
        for name, node in named.items():
            setting = offered.get(text(node, "metadata", "labels", CONFIGURATION_LABEL))
            if holder_of(node) != SHARING and (setting is None or setting.replicas < 2):
                # A GPU for each is no sharing that could be contended.
                continue
            seen = (node["metadata"]["resourceVersion"], self._pods_on(name), tuple(sorted(offered.items())))
            at, read = before.get(name, (None, None))
            if read is None or at != seen:
                pods = await self._kube.list(PODS, field_selector=f"spec.nodeName={name},{UNFINISHED_PODS}")
                read = read_plugin_node(node, pods.items, offered)
            if _is_quiet(read):
                self._quiet[name] = (seen, read)
            result.append(read)
        return result

    def mode(self, node: PluginNode, mode: Mode) -> Mode:
        return self._gate.mode(SHARING, Owner.of(NODES.plural, "", node.name), mode)

    async def has_gpu_pods(self, node: PluginNode) -> bool:
        selector = f"spec.nodeName={node.name},{UNFINISHED_PODS}"
        listed = await self._kube.list(PODS, field_selector=selector)
        return any(gpu_pod(pod) is not None for pod in listed.items)

    async def patch_node(self, node: PluginNode, changes: Object) -> None:
        await self._fence.patch(NODES, node.document, changes)

    async def evict(self, node: PluginNode, *, dry_run: bool = False) -> Sequence[str]:
        return await evict_pods(self._kube, node.pods, dry_run=dry_run)


def _is_quiet(node: PluginNode) -> bool:
    """Whether what is read of its pods stays so until a pod comes or goes: all have started, none ends, and neither a
    change of ours nor MPS's daemon is waited for."""
    changes = node.hold is not None and node.hold.phase in CHANGING
    settled = all(text(pod, "status", "startTime") and "deletionTimestamp" not in pod["metadata"] for pod in node.pods)
    return not changes and settled and node.state.offered > 0
