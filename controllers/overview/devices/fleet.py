"""The fleet of a cluster as the extender keeps it, read once: for people who ask where a job would fit."""

import time
from collections.abc import Callable, Iterable

import numpy as np

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.client.resources import (
    NODE_ALLOCATIONS,
    NODE_BANDWIDTHS,
    NODE_HEALTHS,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    UNFINISHED_PODS,
    Object,
    Resource,
)
from kopt.cluster.objects.custom.node_topology import topology_of
from kopt.cluster.objects.custom.node_traffic import traffic_of
from kopt.cluster.objects.fields import readable, text
from kopt.cluster.workloads.node_selection import why_closed
from kopt.cluster.workloads.placement.allocations import Allocations, allocation_report_of
from kopt.cluster.workloads.placement.node_capacity import offers_of
from kopt.cluster.workloads.placement.node_complaints import of_bandwidth, of_health, of_topology
from kopt.cluster.workloads.placement.pod_state import pod_state_of
from kopt.core.hardware.complaint import Complaint
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.fleet import Fleet
from kopt.policies.placement.links import links_of
from kopt.policies.placement.topology import GpuLinks
from kopt.topology.sets.across_nodes import NodeOffer


async def read_fleet(kube: Kube) -> Fleet:
    """Nodes that pods may be sent to, what is told of them, and what pods hold. Raises ApiError; kinds that the cluster
    does not know count as empty."""
    nodes = [node for node in await _all(kube, NODES) if why_closed(node) is None]
    topologies, bandwidths = await _all(kube, NODE_TOPOLOGIES), await _all(kube, NODE_BANDWIDTHS)
    pods, healths = await _all(kube, PODS, UNFINISHED_PODS), await _all(kube, NODE_HEALTHS)
    allocations = await _all(kube, NODE_ALLOCATIONS)
    return fleet_of(nodes, pods, topologies, bandwidths, healths, allocations=allocations)


def fleet_of(
    nodes: Iterable[Object],
    pods: Iterable[Object],
    topologies: Iterable[Object],
    bandwidths: Iterable[Object],
    healths: Iterable[Object],
    health: Callable[[Object], Complaint | None] = of_health,
    allocations: Iterable[Object] = (),
    *,
    packs: bool = False,
) -> Fleet:
    """From objects of all namespaces; those that cannot be read are left out. ``health`` reads a NodeHealth: what
    placement goes by, or what is known. ``allocations`` are what kubelets have given to pods. ``packs``: as ``Fleet``
    has it."""
    fleet = Fleet(packs=packs)
    for node, offers in readable(nodes, offers_of):
        fleet.set_node(text(node, "metadata", "name"), offers)
    now_s = time.time()
    for document, (links, complaint, traffic) in readable(topologies, lambda item: _links(item, now_s)):
        fleet.set_links(text(document, "metadata", "name"), links)
        fleet.set_traffic(text(document, "metadata", "name"), traffic, now_s)
        fleet.set_complaint(text(document, "metadata", "name"), "topology", complaint)
    for document, complaint in readable(bandwidths, of_bandwidth):
        fleet.set_complaint(text(document, "metadata", "name"), "pairs", complaint)
    for document, complaint in readable(healths, health):
        fleet.set_complaint(text(document, "metadata", "name"), "health", complaint)
    allocated = Allocations(fleet)
    for document, node_report in readable(allocations, allocation_report_of):
        allocated.report(text(document, "metadata", "name"), node_report)
    read = [pod for _, pod in readable(pods, lambda pod: pod_state_of(pod, None, {}))]
    bound = [pod for pod in read if pod.node and not pod.finished and pod.ask.uses_gpus]
    allocated.confirm(bound)
    # Those of which something says where they are; the others are assumed to be where room is left.
    for pod in sorted(bound, key=lambda pod: allocated.slots(pod) is None):
        fleet.bound(pod.uid, pod.key, pod.node, pod.ask, allocated.slots(pod))
    for pod in bound:
        allocated.make_room(pod)
    return fleet


def node_offers(fleet: Fleet) -> tuple[list[NodeOffer], list[str]]:
    """The nodes whose links are known with their free GPUs, by the indexes of the tool; and the names of the others.
    Machines are as traffic that was measured lately leaves them."""
    now_s = time.time()
    offers, unknown = [], []
    for resource, pool in sorted(fleet.pools.items()):
        for name, row in sorted(pool.state.index.items()):
            links = fleet.links(name, resource)
            if links is None or links.machine is None:
                unknown.append(name)
                continue
            indexes = sorted(links.machine.node.gpus)
            slots = np.flatnonzero(pool.state.gpu_free_milli[row] >= WHOLE_GPU).tolist()
            machine = fleet.machine(name, resource, now_s) or links.machine
            offers.append(NodeOffer(name, machine, tuple(indexes[slot] for slot in slots), fleet.domains(name)))
    return offers, sorted(set(unknown) - {node_offer.name for node_offer in offers})


def _links(document: Object, now_s: float) -> tuple[GpuLinks, Complaint | None, tuple[LinkTraffic, ...]]:
    topology = topology_of(document)
    return links_of(topology), of_topology(document, topology), traffic_of(document, now_s)


async def _all(kube: Kube, resource: Resource, fields: str = "") -> Iterable[Object]:
    try:
        return (await kube.list(resource, field_selector=fields)).items
    except NotFound:
        return ()
