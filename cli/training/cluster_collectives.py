"""Collectives between pairs of nodes that a cluster has measured, beside what its nodes look like."""

import math
import re
from typing import TYPE_CHECKING

from kopt.cli.training.from_cluster import Imported
from kopt.core.hardware.bandwidth import MAX_BYTES, BandwidthError
from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint
from kopt.models.bandwidth.rows import MeasuredRow, QueryRow
from kopt.topology.in_words import in_words

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object, Resource

Rows = Imported[MeasuredRow]
SOURCE = "NodeBandwidth"


async def collectives(kube: "Kube") -> Rows:
    """A row for each size of each pair whose nodes are known and well. Raises ApiError."""
    from kopt.cluster.client.resources import NODE_BANDWIDTHS, NODE_TOPOLOGIES
    from kopt.cluster.objects.custom.node_bandwidth import bandwidth_of
    from kopt.cluster.objects.custom.node_topology import topology_of

    result, topologies = Rows(), dict[str, NodeTopology]()
    for document in await _all(kube, NODE_TOPOLOGIES, result):
        name = str(document["metadata"]["name"])
        try:
            topologies[name] = topology_of(document)
        except (ValueError, AttributeError) as error:
            result.leave_out(f"NodeTopology {name}", f"it cannot be read ({error})")
    for document in await _all(kube, NODE_BANDWIDTHS, result):
        for number, peer in enumerate((document.get("status") or {}).get("peers") or ()):
            try:
                # Each of them by itself: one that cannot be read takes no other with it.
                (pair,) = bandwidth_of({**document, "status": {"peers": [peer]}}).pairs
            except BandwidthError as error:
                result.leave_out(f"{document['metadata']['name']}, pair {number + 1}", error)
                continue
            _add(result, pair, topologies)
    return result


async def _all(kube: "Kube", resource: "Resource", result: Rows) -> "list[Object]":
    from kopt.cluster.client.api import NotFound

    try:
        return list((await kube.list(resource)).items)
    except NotFound:
        result.leave_out(f"{resource.kind}s", "the cluster has no such objects")
        return []


def _add(result: Rows, pair: MeasuredPair, topologies: dict[str, NodeTopology]) -> None:
    name = f"{' and '.join(pair.nodes)} ({pair.collective.value}, {pair.gpus_per_node} GPUs each)"
    unknown = [node for node in pair.nodes if node not in topologies]
    if pair.health is not Health.HEALTHY:
        result.leave_out(name, f"it is {pair.health.value.lower()}: a fault, and not what such hardware reaches")
        return
    if unknown:
        result.leave_out(name, f"what {' and '.join(unknown)} looks like is not known (no NodeTopology)")
        return
    try:
        first, second = (in_words(topologies[node], 2, pair.gpus_per_node, pair.software) for node in pair.nodes)
    except TopologyError as error:
        result.leave_out(name, error)
        return
    if first != second:
        result.leave_out(name, "its nodes are of different hardware")
        return
    label = re.sub(r"[^a-z0-9]+", "-", f"{first.gpu} {first.intra_link} {first.nic_config}".lower()).strip("-")
    for point in pair.points:
        if not _is_possible(point):
            result.leave_out(name, f"{point.bytes:,} bytes in {point.latency_us:g} µs are no measurement")
            continue
        query = QueryRow(first, tuple(range(pair.gpus_per_node)), pair.collective, point.bytes)
        result.rows.append(MeasuredRow(query, point.latency_us, "+".join(pair.nodes), label, SOURCE))


def _is_possible(point: MeasuredPoint) -> bool:
    return 1 <= point.bytes <= MAX_BYTES and math.isfinite(point.latency_us) and point.latency_us > 0
