"""ResourceSlices and allocated ResourceClaims by the nodes whose devices they are about."""

from collections import defaultdict
from collections.abc import Iterable

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.fields import items, mapping, text

Pool = tuple[str, str]
"""A driver, and the name of its pool."""


def allocated_devices(document: Object) -> Object:
    """Of a ResourceClaim who it is reserved for and which devices it has: its configuration is nobody's business."""
    status, metadata = mapping(document, "status"), mapping(document, "metadata")
    return {
        "metadata": {name: metadata[name] for name in ("name", "namespace", "uid") if name in metadata},
        "status": {name: status[name] for name in ("allocation", "reservedFor") if name in status},
    }


class DevicesByNode:
    """Slices and claims as last heard. Changes answer with the nodes that they are about."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[Key, Object]] = defaultdict(dict)
        self._claims: dict[Pool, dict[Key, Object]] = defaultdict(dict)
        self._node_of: dict[Key, str] = {}
        self._pools_of: dict[Key, set[Pool]] = {}
        self._nodes_of: dict[Pool, dict[Key, str]] = defaultdict(dict)

    def slice(self, key: Key, document: Object | None) -> set[str]:
        """A slice as it is now; None for one that is no more."""
        before = self._node_of.pop(key, None)
        if before is not None:
            self._nodes_of[_pool(self._slices[before].pop(key))].pop(key)
        changed = set[str]() if before is None else {before}
        if document is not None:
            pool = _pool(document)
            node = text(document, "spec", "nodeName") or pool[1]
            self._node_of[key], self._slices[node][key], self._nodes_of[pool][key] = node, document, node
            changed.add(node)
        return changed

    def claim(self, key: Key, document: Object | None) -> set[str]:
        """A claim as it is now; None for one that is no more."""
        before = self._pools_of.pop(key, set())
        for pool in before:
            self._claims[pool].pop(key, None)
        now = set() if document is None else set(_allocated(document))
        if document is not None and now:
            self._pools_of[key] = now
            for pool in now:
                self._claims[pool][key] = document
        return {node for pool in before | now for node in self._nodes_of[pool].values()}

    def of(self, nodes: Iterable[str]) -> tuple[list[Object], list[Object]]:
        """The slices of these nodes, and the claims that have devices of them."""
        slices = [item for node in nodes for item in self._slices.get(node, {}).values()]
        claims = {key: claim for pool in map(_pool, slices) for key, claim in self._claims.get(pool, {}).items()}
        return slices, list(claims.values())


def _pool(document: Object) -> Pool:
    return text(document, "spec", "driver"), text(document, "spec", "pool", "name")


def _allocated(claim: Object) -> Iterable[Pool]:
    for _, result in items(claim, "status", "allocation", "devices", "results"):
        yield text(result, "driver"), text(result, "pool")
