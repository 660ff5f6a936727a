"""What is wrong with a node, from the objects that others write about it: ``NodeTopology``, ``NodeBandwidth`` and
``NodeHealth``."""

from collections.abc import Mapping

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_bandwidth import bandwidth_of
from kopt.cluster.objects.custom.node_health import record_of
from kopt.cluster.objects.custom.node_topology import degraded_of
from kopt.core.decision import Mode
from kopt.core.hardware.complaint import Complaint
from kopt.core.hardware.health import NODE, Grade
from kopt.core.hardware.node_topology import DegradedPart, NodeTopology
from kopt.core.hardware.pairwise import Health, slow_pairs

_MOST_LISTED = 3
_MOST_TEXT = 300
_OF_A_LINK = frozenset({"link", "nic"})
"""Parts that do not belong to one GPU alone."""


def of_topology(document: Object, topology: NodeTopology) -> Complaint | None:
    """What a node's agent found worse than the best that it has seen; None for nothing.

    Raises KeyError, TypeError or ValueError for a status that no agent writes.
    """
    parts = degraded_of(document)
    if not parts:
        return None
    slots = {
        name: slot
        for slot, gpu in enumerate(sorted(topology.gpus, key=lambda gpu: gpu.index))
        for name in (gpu.pci, f"GPU{gpu.index}")
        if name
    }
    own = {slots[name] for part in parts if part.kind not in _OF_A_LINK for name in part.names if name in slots}
    return Complaint(_shortened([_part_text(part, slots) for part in parts]), tuple(sorted(own)), len(topology.gpus))


def of_bandwidth(document: Object) -> Complaint | None:
    """The result of tests with other nodes, and the slow pairs in its object; None for a healthy node.

    Raises BandwidthError, a ValueError, for what the benchmark does not write.
    """
    node_bandwidth = bandwidth_of(document)
    slow = {other: gbps for (_, other), gbps in slow_pairs(node_bandwidth.pairs).items()}
    if node_bandwidth.health is Health.HEALTHY:
        return Complaint("", slow=slow, degraded=False) if slow else None
    why = node_bandwidth.reason[:_MOST_TEXT] or f"its tests with other nodes are {node_bandwidth.health.value}"
    texts = [f"with {name} {f'{gbps:.3g} GB/s' if gbps else 'failed'}" for name, gbps in sorted(slow.items())]
    return Complaint(f"{why} ({_shortened(texts)})" if texts else why, slow=slow)


def of_health(document: Object) -> Complaint | None:
    """The verdict on a node and its GPUs; None for a healthy one, and where nobody is to go by it (mode observe)."""
    return None if record_of(document).mode is Mode.OBSERVE else complaint_in_any_mode(document)


def complaint_in_any_mode(document: Object) -> Complaint | None:
    """As ``of_health``, in any mode: for people."""
    record = record_of(document)
    if record.health.score >= 1.0:
        return None
    ill = {gpu for gpu, grade in record.health.gpus.items() if grade is not Grade.HEALTHY}
    slots = () if NODE in ill else tuple(sorted(int(gpu) for gpu in ill if gpu.isdigit()))
    why = record.reason[:_MOST_TEXT] or f"its health is {record.health.score:.2f}"
    return Complaint(
        why, slots, record.gpu_count, degraded=record.health.grade is not Grade.HEALTHY, score=record.health.score
    )


def _part_text(part: DegradedPart, slots: Mapping[str, int]) -> str:
    gpus = [f"GPU {slots[name]}" for name in part.names if name in slots and not name.startswith("GPU")]
    which = f" ({', '.join(gpus)})" if gpus else ""
    now = f"has {part.now:.4g}" if part.now < part.was else "has recovered only recently"
    return f"{part.part[:_MOST_TEXT]}{which} had {part.was:.4g}, {now}"


def _shortened(texts: list[str]) -> str:
    more = f" and {len(texts) - _MOST_LISTED} more" if len(texts) > _MOST_LISTED else ""
    return "; ".join(texts[:_MOST_LISTED]) + more
