"""``NodeAllocation`` objects, as node agents write them: what kubelets have given to pods."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import NODE_ALLOCATIONS, NODES, Object
from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.core.times import seconds, stamp

MOST_ALLOCATIONS, MOST_DEVICES = 1_024, 256
"""Of one object; a node runs a hundred pods."""


@dataclass(frozen=True)
class NodeAllocation:
    """What the kubelet of ``node`` said at ``observed_at_s``, Unix seconds by that node's clock."""

    node: str
    observed_at_s: float
    allocations: tuple[DeviceAllocation, ...] = ()


def node_allocation_of(document: Object) -> NodeAllocation:
    """Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for what no agent writes."""
    status = document["status"]
    allocations = status.get("allocations") or ()
    if len(allocations) > MOST_ALLOCATIONS:
        raise ValueError(f"{len(allocations)} allocations; at most {MOST_ALLOCATIONS} are read")
    name, read = str(document["metadata"]["name"]), tuple([_allocation(item) for item in allocations])
    return NodeAllocation(name, seconds(status["observedAt"]), read)


def _allocation(item: Object) -> DeviceAllocation:
    gpus = item.get("gpus")
    return DeviceAllocation(
        str(item["namespace"]),
        str(item["pod"]),
        str(item["resource"]),
        tuple([str(device) for device in item["devices"]]),
        str(item.get("claim") or ""),
        None if gpus is None else tuple([int(gpu) for gpu in gpus]),
    )


def document_of(node: str, uid: str, allocations: Sequence[DeviceAllocation], at_s: float) -> Object:
    """The object of a node, owned by it."""
    owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node, "uid": uid}
    return {
        "apiVersion": NODE_ALLOCATIONS.api_version,
        "kind": NODE_ALLOCATIONS.kind,
        "metadata": {"name": node, "ownerReferences": [owner]},
        "status": {
            "observedAt": stamp(at_s),
            "allocations": [_written(allocation) for allocation in allocations[:MOST_ALLOCATIONS]],
        },
    }


def _written(allocation: DeviceAllocation) -> Object:
    written: Object = {
        "namespace": allocation.namespace,
        "pod": allocation.pod,
        "resource": allocation.resource,
        "devices": list(allocation.devices[:MOST_DEVICES]),
    }
    if allocation.claim:
        written["claim"] = allocation.claim
    return written | ({"gpus": list(allocation.gpus)} if allocation.gpus is not None else {})
