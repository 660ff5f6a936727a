"""The way from each GPU to each network card, from the bridges above them, where no tool tells it."""

from collections.abc import Mapping
from dataclasses import replace

from kopt.core.hardware.node_topology import LinkType, NicAffinity, NodeTopology, TopologyGpu, TopologyNic


def with_affinity(topology: NodeTopology, paths: Mapping[str, tuple[str, ...]]) -> NodeTopology:
    """Unchanged if a tool reported it already, or if the bridges are unknown."""
    if topology.nic_affinity:
        return topology
    nic_affinities = [
        NicAffinity(gpu.index, nic.name, way_between(gpu, nic, paths))
        for gpu in topology.gpus
        for nic in topology.nics
        if gpu.pci in paths and nic.pci in paths
    ]
    return replace(topology, nic_affinity=tuple(nic_affinities))


def way_between(gpu: TopologyGpu, nic: TopologyNic, paths: Mapping[str, tuple[str, ...]]) -> LinkType:
    """As ``nvidia-smi topo -m`` names it: PIX over one bridge, PXB over several, PHB through the processor's host
    bridge, NODE between host bridges of one NUMA node, SYS else."""
    a, b = paths[gpu.pci][:-1], paths[nic.pci][:-1]
    shared = len(_common(a, b))
    if shared:
        return LinkType.PIX if max(len(a), len(b)) - shared <= 1 else LinkType.PXB
    if _bus(paths[gpu.pci][0]) == _bus(paths[nic.pci][0]):
        return LinkType.PHB
    near = gpu.numa is not None and gpu.numa == nic.numa
    return LinkType.NODE if near else LinkType.SYS


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> list[str]:
    result = []
    for name, other in zip(a, b, strict=False):
        if name != other:
            break
        result.append(name)
    return result


def _bus(address: str) -> str:
    return address.rpartition(":")[0]
