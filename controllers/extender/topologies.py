"""``NodeTopology`` objects, as node agents write them, to the links that placement ranks by."""

from kopt.cluster.node_topologies import topology_of
from kopt.cluster.resources import Object
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import GpuLinks


def links_of_object(document: Object) -> GpuLinks:
    """Raises TopologyError, a ValueError, for a topology that contradicts itself."""
    return links_of(topology_of(document))
