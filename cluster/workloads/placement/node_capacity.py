"""What a node offers, read from its object: one `FleetNode` for each GPU resource it has."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping
from kopt.cluster.workloads.placement.topology_domains import domains_of_node
from kopt.cluster.workloads.requests.pods import PRODUCT_LABELS, is_gpu, quantity, quantity_or_zero
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.scheduling.placement import FleetNode
from kopt.core.units import MIB, Bytes

MOST_SLOTS = 128
"""More GPUs than any node has (64 partitions of 8 GPUs); bounds what a wrong number in a node's status can cost."""
CLASS_LABEL = "gpu.nvidia.com/class"
"""An older name of the product label."""
_MIG = re.compile(r"nvidia\.com/mig-\d+g\.(\d+)gb.*")
_PARTITION = re.compile(r"amd\.com/(spx|dpx|qpx|cpx)_nps\d")
_PARTS = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}


def offers_of(node: Object) -> dict[str, FleetNode]:
    """By GPU resource; empty for a node without GPUs.

    Whether pods may run there (taints, cordons, conditions) the scheduler has checked before it calls.
    """
    metadata = node["metadata"]
    amounts = (node.get("status") or {}).get("allocatable") or {}
    labels = metadata.get("labels") or {}
    model, domains = _model(labels), domains_of_node(labels)
    fleet_nodes = {}
    for resource, amount in amounts.items():
        if is_gpu(resource) and (count := min(quantity(amount), MOST_SLOTS)):
            fleet_nodes[resource] = FleetNode(
                metadata["name"],
                quantity(amounts.get("cpu", 0), milli=True),
                Bytes(quantity(amounts.get("memory", 0))),
                count,
                model,
                _unit_memory(resource, _memory(labels, model)),
                domains=domains,
            )
    return fleet_nodes


@dataclass(frozen=True)
class Shortfall:
    """``installed`` of a resource, of which the device plugin offers only ``offered``: the others are broken."""

    installed: int
    offered: int

    @property
    def broken(self) -> int:
        return self.installed - self.offered


def shortfalls_of(node: Object, counts: Callable[[str], bool] = is_gpu) -> dict[str, Shortfall]:
    """By resource, of those that ``counts``; what ``allocatable`` lacks is not offered. Nothing makes this raise."""
    capacity = mapping(node, "status", "capacity")
    # Where an object has no allocatable at all the API server answers with the capacity.
    offered = mapping(node, "status", "allocatable") or capacity
    read = {
        name: Shortfall(quantity_or_zero(amount), quantity_or_zero(offered.get(name, 0)))
        for name, amount in capacity.items()
        if counts(str(name))
    }
    return {name: shortfall for name, shortfall in read.items() if shortfall.broken > 0}


def _model(labels: Mapping[str, Any]) -> str:
    return next((str(labels[name]) for name in (*PRODUCT_LABELS, CLASS_LABEL) if labels.get(name)), "")


def _memory(labels: Mapping[str, Any], model: str) -> Bytes:
    """Bytes of one whole GPU from feature discovery's labels or the catalogue; 0 where neither knows."""
    try:
        if labels.get("nvidia.com/gpu.memory"):
            return Bytes(quantity(labels["nvidia.com/gpu.memory"]) * MIB)
        if vram := labels.get("amd.com/gpu.vram"):
            return Bytes(quantity(f"{vram}i" if str(vram).endswith("G") else vram))
        return find_gpu(model).memory_bytes if model else Bytes(0)
    except (UnknownGpuError, ValueError):
        return Bytes(0)


def _unit_memory(resource: str, whole: Bytes) -> Bytes:
    if mig := _MIG.fullmatch(resource):
        return Bytes(int(mig[1]) * 10**9)
    partition = _PARTITION.fullmatch(resource)
    return Bytes(whole // _PARTS[partition[1]]) if partition else whole
