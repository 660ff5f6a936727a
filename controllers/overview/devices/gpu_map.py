"""The map of a cluster's GPUs, kept up to date node by node as objects change."""

from collections.abc import Mapping
from dataclasses import replace

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.node_standing import pool_of_rule, statements_of
from kopt.controllers.overview.devices.claims import DevicesByNode
from kopt.controllers.overview.devices.gpus import GpuDocuments, gpus_of_documents
from kopt.core.scheduling.devices import GpuDevice
from kopt.core.scheduling.gpu_map import GpuActivity, GpuMap, MapNode, NodeStanding, PodKey, map_node

Activity = Mapping[str, Mapping[str, GpuActivity]]
"""By node and index of the GPU."""
_REMEMBERED = 1_000
"""Nodes that went: of more, a reader reads the whole map again."""


class GpuMapKeeper:
    """Nodes and their pods as last heard. ``current`` renews what has changed since the last time, and nothing else."""

    def __init__(self) -> None:
        self._documents: dict[str, Object] = {}
        self._pods: dict[str, dict[PodKey, Object]] = {}
        self._devices = DevicesByNode()
        self._dirty, self._remeasured = set[str](), set[str]()
        self._gpus: dict[str, list[GpuDevice]] = {}
        self._nodes: dict[str, MapNode] = {}
        self._removed: dict[str, int] = {}
        self._activity: Activity = {}
        self._standings: dict[str, NodeStanding] = {}
        self._rules: dict[Key, Object] = {}
        self._version = self._forgotten = 0
        self._map = GpuMap(cluster=True)

    def node(self, name: str, document: Object | None) -> None:
        """A node as it is now; None for one that is no more."""
        if document is None:
            self._documents.pop(name, None)
        else:
            self._documents[name] = document
        self._dirty.add(name)

    def pod(self, key: PodKey, old: Object | None, new: Object | None) -> None:
        """A pod before and now, None where it was not there."""
        before, now = ("" if each is None else text(each, "spec", "nodeName") for each in (old, new))
        if before and before != now:
            self._pods.get(before, {}).pop(key, None)
            self._dirty.add(before)
        if now and new is not None:
            # In the order in which they came: a pod that changes keeps the GPUs that it was assumed to have.
            self._pods.setdefault(now, {})[key] = new
            self._dirty.add(now)

    def slice(self, key: Key, document: Object | None) -> None:
        """A ResourceSlice as it is now; None for one that is no more."""
        self._dirty |= self._devices.slice(key, document)

    def claim(self, key: Key, document: Object | None) -> None:
        """A ResourceClaim as it is now; None for one that is no more."""
        self._dirty |= self._devices.claim(key, document)

    def health(self, name: str, standing: NodeStanding | None) -> None:
        """What its NodeHealth says of a node; None where there is none."""
        if standing is None:
            self._standings.pop(name, None)
        else:
            self._standings[name] = standing
        self._remeasured.add(name)

    def device_taint(self, key: Key, rule: Object | None) -> None:
        """A DeviceTaintRule as it is now; None for one that is no more."""
        before = self._rules.pop(key, None)
        if rule is not None:
            self._rules[key] = rule
        self._remeasured |= {pool_of_rule(each) for each in (before, rule) if each is not None}

    def _standing(self, name: str) -> NodeStanding:
        rules = [rule for rule in self._rules.values() if pool_of_rule(rule) == name]
        statements = statements_of(self._documents.get(name, {}), rules)
        return replace(self._standings.get(name, NodeStanding()), statements=statements)

    def measured(self, activity: Activity) -> None:
        """How busy GPUs are now."""
        self._remeasured |= {
            name for name in {*activity, *self._activity} if activity.get(name) != self._activity.get(name)
        }
        self._activity = activity

    @property
    def is_behind(self) -> bool:
        return bool(self._dirty or self._remeasured)

    def current(self) -> GpuMap:
        """The map as of now. Nothing in the documents makes this raise."""
        if not self.is_behind:
            return self._map
        self._read()
        version, changed = self._version + 1, False
        for name in self._dirty | self._remeasured:
            changed |= self._renew(name, version)
        self._dirty.clear()
        self._remeasured.clear()
        if changed or self._map.is_measured != bool(self._activity):
            self._version = version
            while len(self._removed) > _REMEMBERED:
                self._forgotten = self._removed.pop(next(iter(self._removed)))
            self._map = GpuMap(
                cluster=True,
                version=version,
                nodes=dict(self._nodes),
                gone=dict(self._removed),
                complete_since=self._forgotten,
                is_measured=bool(self._activity),
            )
        return self._map

    def _read(self) -> None:
        """GPUs of the nodes that have changed, all at once: most of the work is for the first node."""
        for name in self._dirty:
            self._gpus.pop(name, None)
        names = [name for name in self._dirty if name in self._documents]
        pods = [pod for name in names for pod in self._pods.get(name, {}).values()]
        slices, claims = self._devices.of(names)
        documents = GpuDocuments([self._documents[name] for name in names], pods, (), (), slices, claims)
        for gpu in gpus_of_documents(documents).gpus:
            self._gpus.setdefault(gpu.node, []).append(gpu)

    def _renew(self, name: str, version: int) -> bool:
        """Whether a node shows something else than before."""
        gpus, before = self._gpus.get(name), self._nodes.get(name)
        if not gpus:
            if before is None:
                return False
            del self._nodes[name]
            self._removed[name] = version
            return True
        jobs = {_key(pod): _job(pod) for pod in self._pods.get(name, {}).values()}
        node = map_node(name, gpus, self._activity.get(name, {}), jobs, version, self._standing(name))
        if node.is_like(before):
            return False
        self._removed.pop(name, None)
        self._nodes[name] = node
        return True


def _key(pod: Object) -> PodKey:
    metadata = mapping(pod, "metadata")
    return text(metadata, "namespace"), text(metadata, "name")


def _job(pod: Object) -> tuple[str, str]:
    """Kind and name of its controller, as the page of queues calls its workload; its own where it has none."""
    for _, reference in items(pod, "metadata", "ownerReferences"):
        if at(reference, "controller") is True:
            return text(reference, "kind"), text(reference, "name")
    return "Pod", text(pod, "metadata", "name")
