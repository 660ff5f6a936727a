"""``NodeTopology`` objects, as node agents write them, to what placement ranks by."""

from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_topology import topology_of
from kopt.cluster.workloads.placement.node_complaints import of_topology
from kopt.core.hardware.complaint import Complaint
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import GpuLinks


@dataclass(frozen=True)
class TopologyReport:
    """How a node's GPUs are linked, and what its agent says is worse than it was."""

    links: GpuLinks
    complaint: Complaint | None = None


def report_of(document: Object) -> TopologyReport:
    """Raises TopologyError, a ValueError, for a topology that contradicts itself, and KeyError or TypeError for a
    status that no agent writes."""
    topology = topology_of(document)
    return TopologyReport(links_of(topology), of_topology(document, topology))
