"""``NodeTopology`` objects, as node agents write them, as core types."""

import re
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.core.hardware.node_topology import DegradedPart, NodeTopology


def topology_of(document: Object) -> NodeTopology:
    """Raises TopologyError, a ValueError, for a topology that contradicts itself."""
    return NodeTopology.from_dict(_snake(document.get("spec") or {}) | {"node": document["metadata"]["name"]})


def degraded_of(document: Object) -> tuple[DegradedPart, ...]:
    """What the object's status says is worse than it was."""
    result = (document.get("status") or {}).get("degraded") or ()
    return tuple(DegradedPart(str(item["part"]), float(item["was"]), float(item["now"])) for item in result)


def _snake(value: Any) -> Any:
    """Kubernetes' field names (``memoryBytes``) to those of ``kopt topology parse`` (``memory_bytes``)."""
    if isinstance(value, dict):
        return {
            re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", name): _snake(item) for name, item in value.items()
        }
    return [_snake(item) for item in value] if isinstance(value, list) else value
