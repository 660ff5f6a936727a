"""``NodeTopology`` objects, as node agents write them, to the links that placement ranks by."""

import re
from typing import Any

from kopt.cluster.resources import Object
from kopt.core.topology import NodeTopology
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import GpuLinks


def links_of_object(document: Object) -> GpuLinks:
    """Raises TopologyError, a ValueError, for a topology that contradicts itself."""
    return links_of(NodeTopology.from_dict(_snake(document["spec"]) | {"node": document["metadata"]["name"]}))


def _snake(value: Any) -> Any:
    """Kubernetes' field names (``memoryBytes``) to those of ``kopt topology parse`` (``memory_bytes``)."""
    if isinstance(value, dict):
        return {re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", name): _snake(one) for name, one in value.items()}
    return [_snake(one) for one in value] if isinstance(value, list) else value
