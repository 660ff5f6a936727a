"""The extender's books of a cluster, read once: for people who ask where a job would fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.client.resources import NODE_BANDWIDTHS, NODE_HEALTHS, NODE_TOPOLOGIES, NODES, PODS, Object, Resource
from kopt.controllers.extender.books.fleet import Fleet
from kopt.controllers.extender.books.node_capacity import offers_of
from kopt.controllers.extender.books.node_health import of_bandwidth, of_health
from kopt.controllers.extender.books.topologies import report_of
from kopt.controllers.extender.books.views import pod_state_of
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.state import FleetNode
from kopt.topology.sets.across_nodes import NodeOffer

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
T = TypeVar("T")


async def read_fleet(kube: Kube) -> Fleet:
    """Nodes that pods may be sent to, what is told of them, and what pods hold. Raises ApiError; kinds that the cluster
    does not know count as empty, and objects that cannot be read are left out."""
    fleet = Fleet()
    for name, offers in readable(await _all(kube, NODES), _open_offers):
        fleet.set_node(name, offers)
    for name, report in readable(await _all(kube, NODE_TOPOLOGIES), report_of):
        fleet.set_links(name, report.links)
        fleet.set_complaint(name, "topology", report.complaint)
    for name, complaint in readable(await _all(kube, NODE_BANDWIDTHS), of_bandwidth):
        fleet.set_complaint(name, "pairs", complaint)
    for name, complaint in readable(await _all(kube, NODE_HEALTHS), of_health):
        fleet.set_complaint(name, "health", complaint)
    for _, pod in readable(await _all(kube, PODS, UNFINISHED), lambda pod: pod_state_of(pod, None, {})):
        if pod.node and pod.ask.uses_gpus:
            fleet.bound(pod.uid, pod.key, pod.node, pod.ask, pod.gpus)
    return fleet


def node_offers(fleet: Fleet) -> tuple[list[NodeOffer], list[str]]:
    """The nodes whose links are known with their free GPUs, by the indexes of the tool; and the names of the others."""
    offers, unknown = [], []
    for resource, pool in sorted(fleet.pools.items()):
        for name, row in sorted(pool.state.index.items()):
            links = fleet.links(name, resource)
            if links is None or links.machine is None:
                unknown.append(name)
                continue
            indexes = sorted(links.machine.node.gpus)
            slots = np.flatnonzero(pool.state.gpu_free_milli[row] >= WHOLE_GPU).tolist()
            offers.append(NodeOffer(name, links.machine, tuple(indexes[slot] for slot in slots), fleet.domains(name)))
    return offers, sorted(set(unknown) - {node_offer.name for node_offer in offers})


async def _all(kube: Kube, resource: Resource, fields: str = "") -> Iterable[Object]:
    try:
        return (await kube.list(resource, field_selector=fields)).items
    except NotFound:
        return ()


def readable(documents: Iterable[Object], keep: Callable[[Object], T | None]) -> Iterator[tuple[str, T]]:
    """The name and the view of each document; those that cannot be understood, or have none, are left out."""
    for document in documents:
        try:
            value = keep(document)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if value is not None:
            yield document["metadata"]["name"], value


def _open_offers(node: Object) -> Mapping[str, FleetNode] | None:
    """None for a node that is cordoned or not ready; taints are ignored, as some pods tolerate them."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = all(condition.get("status") == "True" for condition in conditions if condition.get("type") == "Ready")
    return offers_of(node) if ready and not (node.get("spec") or {}).get("unschedulable") else None
