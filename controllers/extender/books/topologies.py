"""``NodeTopology`` objects, as node agents write them, to what placement ranks by."""

import time
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_topology import topology_of
from kopt.cluster.objects.custom.node_traffic import traffic_of
from kopt.cluster.workloads.placement.node_complaints import of_topology
from kopt.core.hardware.complaint import Complaint
from kopt.core.hardware.traffic import LinkTraffic
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import GpuLinks


@dataclass(frozen=True)
class TopologyReport:
    """How a node's GPUs are linked, and what its agent says is worse than it was."""

    links: GpuLinks
    complaint: Complaint | None = None
    traffic: tuple[LinkTraffic, ...] = ()
    read_s: float = 0.0
    """When the ages of the traffic's rates were taken, in Unix seconds."""


def report_of(document: Object) -> TopologyReport:
    """Raises TopologyError, a ValueError, for a topology that contradicts itself, and KeyError or TypeError for a
    status that no agent writes."""
    topology, now_s = topology_of(document), time.time()
    traffic = traffic_of(document, now_s)
    return TopologyReport(links_of(topology), of_topology(document, topology), traffic, now_s)
