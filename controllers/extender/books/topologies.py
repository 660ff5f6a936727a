"""``NodeTopology`` objects, as node agents write them, to what placement ranks by."""

from dataclasses import dataclass

from kopt.cluster.node_topologies import topology_of
from kopt.cluster.resources import Object
from kopt.controllers.extender.complaints import Complaint, of_topology
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import GpuLinks


@dataclass(frozen=True)
class NodeFacts:
    """How a node's GPUs are linked, and what its agent says is worse than it was."""

    links: GpuLinks
    complaint: Complaint | None = None


def facts_of(document: Object) -> NodeFacts:
    """Raises TopologyError, a ValueError, for a topology that contradicts itself, and KeyError or TypeError for a
    status that no agent writes."""
    topology = topology_of(document)
    return NodeFacts(links_of(topology), of_topology(document, topology))
