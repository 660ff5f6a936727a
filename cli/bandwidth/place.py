"""``kopt bandwidth place`` on several nodes: of a cluster, with what is free on them, or of files."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.errors import Refused, usage_error
from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import Answer, Format, column, show
from kopt.core.hardware.bandwidth import BandwidthKind, Collective
from kopt.core.hardware.node_topology import NodeTopology

if TYPE_CHECKING:
    from kopt.policies.placement.fleet import Fleet
    from kopt.topology.sets.across_nodes import ClusterChoice, NodeOffer

_MOST_NODES = 20_000


@dataclass(frozen=True)
class Places:
    """Nodes with their free GPUs. ``slow`` pairs were measured so, ``ill`` says what is wrong with degraded nodes."""

    offers: "Sequence[NodeOffer]"
    slow: Mapping[tuple[str, str], float] = field(default_factory=dict)
    ill: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class ShareRow:
    node: str = column("node")
    gpus: str = column("GPUs")
    within: str = column("in")


@dataclass(frozen=True)
class SetRequest:
    """``count`` GPUs for a collective, and the least that they have to reach."""

    count: int
    collective: Collective
    bytes: int
    minimum: float = 0.0
    of: BandwidthKind = BandwidthKind.BUS


def of_files(nodes: Sequence[NodeTopology], gpu: str) -> Places:
    """Every GPU is free, and it is unknown which nodes are near each other. Raises Refused for a node without GPUs."""
    from kopt.core.hardware.node_topology import TopologyError
    from kopt.topology.from_node import machine_from
    from kopt.topology.sets.across_nodes import NodeOffer

    if len({node_topology.node for node_topology in nodes}) < len(nodes):
        raise Refused("two of the nodes have the same name")
    try:
        # Nodes that differ in their names only are one machine, and are judged once.
        makes = {
            node_topology: machine_from(node_topology, gpu=gpu)
            for node_topology in {replace(node, node="") for node in nodes}
        }
    except TopologyError as error:
        raise Refused(str(error)) from error
    machines = [(node.node, makes[replace(node, node="")]) for node in nodes]
    return Places([NodeOffer(name, machine, tuple(machine.node.gpus)) for name, machine in machines])


def of_cluster(kubeconfig: Path | None) -> Places:
    """What is free now by the scheduler extender's own books. Raises Refused where there is no cluster."""
    from kopt.controllers.overview.devices.fleet import node_offers, read_fleet

    async def ask() -> Any:
        async with open_cluster(kubeconfig) as kube:
            return await read_fleet(kube)

    fleet = asyncio.run(ask())
    offers, unknown = node_offers(fleet)
    if not offers:
        raise Refused("no node's topology is known; `kopt agent topology` publishes them")
    ill = {offer.name: fleet.complaints.text(offer.name) for offer in offers if fleet.complaints.degraded(offer.name)}
    remarks = [f"{len(unknown)} nodes left out whose links are not known: {_few(unknown)}"] if unknown else []
    remarks += _traffic_remarks(fleet, [offer.name for offer in offers])
    return Places(offers, fleet.complaints.slow_bandwidths(), ill, remarks)


def _traffic_remarks(fleet: "Fleet", nodes: Sequence[str]) -> list[str]:
    """How much traffic was counted, and of which nodes the rates are too old."""
    traffic = [item for node in nodes for item in fleet.traffic(node, time.time())]
    fresh = [item for item in traffic if not item.stale]
    stale = sorted({item.node for item in traffic if item.stale})
    gbps, busy = sum(item.gigabytes_per_s for item in fresh), len({item.node for item in fresh})
    remarks = [f"{gbps:.3g} GB/s of traffic on {len(fresh)} cards of {busy} nodes were counted"] if fresh else []
    return remarks + ([f"traffic measured too long ago counts as none: {_few(stale)}"] if stale else [])


def show_best_across_nodes(places: Places, request: SetRequest, output: Format) -> None:
    """Choose and show. Raises Refused where there is no room, or what there is does not reach the minimum."""
    if request.of is BandwidthKind.LINK and request.minimum:
        usage_error("links are of one node; across nodes --minimum is held against bus or algorithm", "--of")
    cluster_choice = _select(places, request)
    if cluster_choice is None:
        free = sum(len(offer.free) for offer in places.offers)
        raise Refused(
            f"{request.count} GPUs in equal shares are asked for; {free} are free on {len(places.offers)} nodes"
        )
    algorithm = cluster_choice.gbps / request.collective.bus_factor(max(2, request.count))
    reached = algorithm if request.of is BandwidthKind.ALGORITHM else cluster_choice.gbps
    if reached < request.minimum:
        raise Refused(f"they reach {reached:.3g} GB/s of {request.of} bandwidth, {request.minimum:.3g} are asked for")
    show(_answer(places, request, cluster_choice, algorithm), output)


def _select(places: Places, request: SetRequest) -> "ClusterChoice | None":
    """On healthy nodes where they do."""
    from kopt.topology.sets.across_nodes import choose_nodes

    if len(places.offers) > _MOST_NODES:
        raise Refused(f"{len(places.offers)} nodes; at most {_MOST_NODES} are compared")
    well = [offer for offer in places.offers if offer.name not in places.ill]
    choices = (
        choose_nodes(offers, request.count, request.collective, request.bytes, slow=places.slow)
        for offers in ([well, places.offers] if places.ill else [well])
    )
    return next((cluster_choice for cluster_choice in choices if cluster_choice is not None), None)


def _answer(places: Places, request: SetRequest, cluster_choice: "ClusterChoice", algorithm: float) -> Answer:
    domains = {offer.name: "/".join(offer.domains) for offer in places.offers}
    rows = [
        ShareRow(share.node, ", ".join(map(str, share.gpus)), domains[share.node]) for share in cluster_choice.shares
    ]
    used = {share.node for share in cluster_choice.shares}
    ill = [f"{name} is degraded: {why}" for name, why in places.ill.items() if name in used]
    if places.ill and not ill:
        ill = [f"degraded nodes left out: {_few(sorted(places.ill))}"]
    unknown = {what for offer in places.offers if offer.name in used for what in offer.machine.node.unknown}
    if len(used) > 1 and any(offer.machine.network is None for offer in places.offers if offer.name in used):
        unknown.add("network cards: what these nodes reach together is not predicted")
    reason = cluster_choice.reason()
    document = {
        "schema": "kopt/v1",
        "collective": request.collective.value,
        "bytes": request.bytes,
        "shares": [{"node": share.node, "gpus": list(share.gpus)} for share in cluster_choice.shares],
        "domains": list(cluster_choice.domains),
        "bus_gigabytes_per_s": cluster_choice.gbps,
        "algorithm_gigabytes_per_s": algorithm,
        "wider_gigabytes_per_s": cluster_choice.wider,
        "considered": cluster_choice.considered,
        "exact": cluster_choice.exact,
        "unknown": sorted(unknown),
        "degraded": {name: why for name, why in places.ill.items() if name in used},
        "reasons": [reason.to_dict()],
    }
    remarks = [reason.message, *(f"unknown: {item}" for item in sorted(unknown)), *ill, *places.remarks]
    title = f"{request.count} GPUs on {len(cluster_choice.shares)} node{'s' * (len(cluster_choice.shares) > 1)}"
    return Answer("shares", rows, title=title, remarks=remarks, document=document)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
