"""What the webhook keeps of nodes and of ResourceSlices: one look at each, for shares and for hardware."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.workloads.hardware import NodeHardware, inventory, labelled, slice_hardware
from kopt.cluster.workloads.shares.offers import SharedGpus, SharingNode, shared_devices, sharing_node
from kopt.core.hardware.inventory import Hardware
from kopt.core.workload.share_offer import ShareOffer


@dataclass(frozen=True)
class NodeSummary:
    sharing: SharingNode
    hardware: NodeHardware


@dataclass(frozen=True)
class SliceSummary:
    sharing: tuple[tuple[str, ShareOffer], ...]
    hardware: tuple[Hardware, ...]


def node_summary(node: Object) -> NodeSummary:
    """Of a node of any shape."""
    return NodeSummary(sharing_node(node), labelled(node))


def slice_summary(resource_slice: Object) -> SliceSummary | None:
    """None for a slice without accelerators."""
    sharing, hardware = shared_devices(resource_slice), slice_hardware(resource_slice)
    return None if sharing is None and hardware is None else SliceSummary(sharing or (), hardware or ())


def shared_gpus(
    nodes: Mapping[Key, NodeSummary],
    slices: Mapping[Key, SliceSummary],
    classes: Mapping[Key, Object],
    configs: Mapping[Key, Any],
) -> SharedGpus:
    """By what they are shared; ``configs`` are those of KAI."""
    return SharedGpus(
        {key: node.sharing for key, node in nodes.items()},
        {key: part.sharing for key, part in slices.items() if part.sharing},
        classes,
        bool(configs),
    )


def accelerators(nodes: Iterable[NodeSummary], slices: Iterable[SliceSummary]) -> list[NodeHardware]:
    """Of nodes that have some."""
    devices = [device for part in slices for device in part.hardware]
    return [node for node in inventory((node.hardware for node in nodes), devices) if node.hardware]
