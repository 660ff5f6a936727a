"""A discovered node topology as the table that placement ranks GPU sets by."""

import math

from kopt.core.hardware.node_topology import LinkType, NodeTopology
from kopt.policies.placement.topology import GpuLinks
from kopt.topology.from_node import machine_from

# Per link and direction, where a tool counts links without their speed: the oldest generation in use, as only the order
# within one node matters (NVLink 2: NVIDIA V100 whitepaper; xGMI 2: AMD CDNA 2 whitepaper). MetaX
# publishes none: taken as xGMI's.
_GBPS_PER_LINK = {LinkType.NVLINK: 25.0, LinkType.XGMI: 50.0, LinkType.C2C: 450.0, LinkType.METAXLINK: 50.0}


def links_of(topology: NodeTopology) -> GpuLinks:
    """Slots are the GPUs in the order of their indexes. GPUs share a switch when the topology says so, or when PCIe
    leads from one to the other over a single bridge (PIX); one whose NUMA node is unknown has one of its own."""
    gpus = sorted(topology.gpus, key=lambda gpu: gpu.index)
    slot = {gpu.index: index for index, gpu in enumerate(gpus)}
    gbps = [[0.0] * len(gpus) for _ in gpus]
    for link in topology.links:
        if link.type.direct:
            speed = link.gigabytes_per_s or (link.count or 1) * _GBPS_PER_LINK[link.type]
            a, b = slot[link.a], slot[link.b]
            gbps[a][b] = gbps[b][a] = speed if math.isfinite(speed) and speed > 0 else 0.0
    numa = tuple(gpu.numa if gpu.numa is not None and gpu.numa >= 0 else -1 - slot[gpu.index] for gpu in gpus)
    return GpuLinks(tuple(map(tuple, gbps)), _switches(topology, slot), numa, machine_from(topology))


def _switches(topology: NodeTopology, slot: dict[int, int]) -> tuple[int, ...]:
    """The number of each slot's switch: that of the first slot behind it."""
    together = [set(switch.gpus) for switch in topology.switches]
    together += [{link.a, link.b} for link in topology.links if link.type is LinkType.PIX]
    behind = list(range(len(slot)))
    for group in together:
        joined = {behind[slot[gpu]] for gpu in group}
        behind = [min(joined) if number in joined else number for number in behind]
    return tuple(behind)
