"""``kopt bandwidth place`` on several nodes: of a cluster, with what is free on them, or those that files tell of."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.edge import Refused, usage_error
from kopt.cli.output import Answer, Format, column, show
from kopt.core.bandwidth import BandwidthKind, Collective
from kopt.core.topology import NodeTopology

if TYPE_CHECKING:
    from kopt.policies.topology.nodes import ClusterChoice, NodeOffer

_MOST_NODES = 20_000


@dataclass(frozen=True)
class Places:
    """Nodes with their free GPUs. ``slow`` pairs were measured so, ``ill`` says what is wrong with degraded nodes."""

    offers: "Sequence[NodeOffer]"
    slow: Mapping[tuple[str, str], float] = field(default_factory=dict)
    ill: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class ShareRow:
    node: str = column("node")
    gpus: str = column("GPUs")
    within: str = column("in")


@dataclass(frozen=True)
class Asked:
    """``count`` GPUs for a collective, and the least that they have to reach."""

    count: int
    collective: Collective
    bytes: int
    minimum: float = 0.0
    of: BandwidthKind = BandwidthKind.BUS


def of_files(nodes: Sequence[NodeTopology], gpu: str) -> Places:
    """Every GPU is free, and nobody knows which nodes lie together. Raises Refused for a node without GPUs."""
    from kopt.core.topology import TopologyError
    from kopt.policies.bandwidth.topology import machine_from
    from kopt.policies.topology.nodes import NodeOffer

    if len({one.node for one in nodes}) < len(nodes):
        raise Refused("two of the nodes have the same name")
    try:
        # Nodes that differ in their names only are one machine, and are judged once.
        makes = {one: machine_from(one, gpu=gpu) for one in {replace(node, node="") for node in nodes}}
    except TopologyError as error:
        raise Refused(str(error)) from error
    machines = [(node.node, makes[replace(node, node="")]) for node in nodes]
    return Places([NodeOffer(name, one, tuple(one.node.gpus)) for name, one in machines])


def of_cluster(kubeconfig: Path | None) -> Places:
    """What is free now by the scheduler extender's own books. Raises Refused where there is no cluster."""
    from kopt.cluster.api import ApiError, NoCluster, connect
    from kopt.controllers.extender.snapshot import node_offers, read_fleet

    async def ask() -> Any:
        async with connect(kubeconfig) as kube:
            return await read_fleet(kube)

    try:
        fleet = asyncio.run(ask())
    except (NoCluster, ApiError) as error:
        raise Refused(f"the cluster cannot be read: {error}") from error
    offers, unknown = node_offers(fleet)
    if not offers:
        raise Refused("no node's topology is known; `kopt agent topology` publishes them")
    ill = {one.name: fleet.complaints.text(one.name) for one in offers if fleet.complaints.degraded(one.name)}
    notes = [f"{len(unknown)} nodes left out whose links are not known: {_few(unknown)}"] if unknown else []
    return Places(offers, fleet.complaints.slow_pairs(), ill, notes)


def place_on(places: Places, asked: Asked, output: Format) -> None:
    """Choose and show. Raises Refused where there is no room, or what there is does not reach the minimum."""
    if asked.of is BandwidthKind.LINK and asked.minimum:
        usage_error("links are of one node; across nodes --minimum is held against bus or algorithm", "--of")
    found = _chosen(places, asked)
    if found is None:
        free = sum(len(one.free) for one in places.offers)
        raise Refused(
            f"{asked.count} GPUs in equal shares are asked for; {free} are free on {len(places.offers)} nodes"
        )
    algorithm = found.gbps / asked.collective.bus_factor(max(2, asked.count))
    reached = algorithm if asked.of is BandwidthKind.ALGORITHM else found.gbps
    if reached < asked.minimum:
        raise Refused(f"they reach {reached:.3g} GB/s of {asked.of} bandwidth, {asked.minimum:.3g} are asked for")
    show(_answer(places, asked, found, algorithm), output)


def _chosen(places: Places, asked: Asked) -> "ClusterChoice | None":
    """On healthy nodes where they do."""
    from kopt.policies.topology.nodes import choose_nodes

    if len(places.offers) > _MOST_NODES:
        raise Refused(f"{len(places.offers)} nodes; at most {_MOST_NODES} are compared")
    well = [one for one in places.offers if one.name not in places.ill]
    tries = (choose_nodes(offers, asked.count, asked.collective, asked.bytes, slow=places.slow)
             for offers in ([well, places.offers] if places.ill else [well]))  # fmt: skip
    return next((one for one in tries if one is not None), None)


def _answer(places: Places, asked: Asked, found: "ClusterChoice", algorithm: float) -> Answer:
    domains = {one.name: "/".join(one.domains) for one in places.offers}
    rows = [ShareRow(one.node, ", ".join(map(str, one.gpus)), domains[one.node]) for one in found.shares]
    taken = {one.node for one in found.shares}
    ill = [f"{name} is degraded: {why}" for name, why in places.ill.items() if name in taken]
    if places.ill and not ill:
        ill = [f"degraded nodes left out: {_few(sorted(places.ill))}"]
    unknown = {what for one in places.offers if one.name in taken for what in one.machine.node.unknown}
    if len(taken) > 1 and any(one.machine.network is None for one in places.offers if one.name in taken):
        unknown.add("network cards: what these nodes reach together is not predicted")
    reason = found.reason()
    document = {
        "schema": "kopt/v1", "collective": asked.collective.value, "bytes": asked.bytes,
        "shares": [{"node": one.node, "gpus": list(one.gpus)} for one in found.shares],
        "domains": list(found.domains), "bus_gigabytes_per_s": found.gbps, "algorithm_gigabytes_per_s": algorithm,
        "wider_gigabytes_per_s": found.wider, "considered": found.considered, "exact": found.exact,
        "unknown": sorted(unknown), "degraded": {name: why for name, why in places.ill.items() if name in taken},
        "reasons": [reason.to_dict()],
    }  # fmt: skip
    notes = [reason.message, *(f"unknown: {one}" for one in sorted(unknown)), *ill, *places.notes]
    title = f"{asked.count} GPUs on {len(found.shares)} node{'s' * (len(found.shares) > 1)}"
    return Answer("shares", rows, title=title, notes=notes, document=document)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
