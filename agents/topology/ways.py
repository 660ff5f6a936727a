"""The way from each GPU to each network card, from the bridges above them, where no tool tells it."""

from collections.abc import Mapping
from dataclasses import replace

from kopt.core.topology import LinkType, NicAffinity, NodeTopology, TopologyGpu, TopologyNic


def with_affinity(topology: NodeTopology, paths: Mapping[str, tuple[str, ...]]) -> NodeTopology:
    """The same where a tool told of it already, or where nothing is known of the bridges."""
    if topology.nic_affinity:
        return topology
    found = [
        NicAffinity(gpu.index, nic.name, way_between(gpu, nic, paths))
        for gpu in topology.gpus for nic in topology.nics if gpu.pci in paths and nic.pci in paths
    ]  # fmt: skip
    return replace(topology, nic_affinity=tuple(found))


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
    found = []
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        found.append(one)
    return found


def _bus(address: str) -> str:
    return address.rpartition(":")[0]
