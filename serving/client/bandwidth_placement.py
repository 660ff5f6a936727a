"""Which nodes, and which GPUs of each, for a job that may need more than one node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kopt.core.hardware.bandwidth import BandwidthError, BandwidthEstimate, Collective
from kopt.core.hardware.traffic import LinkLoad, TrafficError, nearest
from kopt.serving.contract.bandwidth.answers import BandwidthQuery, PlacementOut, SetOut, ShareOut, WrongQuestion, meets
from kopt.topology.graph import Machine
from kopt.topology.sets.across_nodes import ClusterChoice, NodeOffer, choose_nodes
from kopt.topology.sets.best import SetChoice
from kopt.topology.sets.within_node import choose_gpus
from kopt.topology.traffic import loaded, node_loads, slowest, stale_links, under_traffic, uplink_shares

EstimateOn = Callable[[Machine, tuple[int, ...], int], BandwidthEstimate]
"""Of these GPUs of each of so many nodes like the machine. Raises BandwidthError."""


@dataclass(frozen=True)
class NodeTraffic:
    """What other jobs put on the links of one node."""

    machine: Machine
    loads: tuple[LinkLoad, ...] = ()
    stale: tuple[str, ...] = ()

    @classmethod
    def of(cls, query: BandwidthQuery, machine: Machine, node: str = "") -> "NodeTraffic":
        """Raises WrongQuestion for traffic that cannot be."""
        if not query.traffic:
            return cls(machine)
        try:
            loads = node_loads(machine, query.traffic, node)
        except TrafficError as error:
            raise WrongQuestion(f"traffic.{error.number}", str(error)) from None
        old = [item for item in query.traffic if not item.uplink and item.node in ("", node)]
        return cls(machine, loads, tuple(stale_links(old)))

    @classmethod
    def of_question(cls, query: BandwidthQuery, machine: Machine) -> "NodeTraffic":
        """Of the node of the question, which has no name."""
        if query.offers:
            return cls(machine)
        for number, item in enumerate(query.traffic):
            if item.uplink or item.node:
                what = "an uplink" if item.uplink else f"node {item.node[:60]!r}"
                text = f"{what} is of nodes that are offered by name; without offers only links of the node are known"
                raise WrongQuestion(f"traffic.{number}", text)
        return cls.of(query, machine)

    @property
    def loaded(self) -> Machine:
        return loaded(self.machine, self.loads)

    def on(self, estimate: BandwidthEstimate) -> BandwidthEstimate:
        """The estimate beside that traffic."""
        return under_traffic(estimate, self.machine, self.loads, stale=self.stale)


def answer_places(
    query: BandwidthQuery,
    machines: Sequence[Machine],
    estimate: EstimateOn,
    still: Callable[[], None],
    *,
    sure: bool = True,
) -> PlacementOut | None:
    """Where ``count`` GPUs go on the offered nodes, whose machines are given in their order; None without offers.

    Raises WrongQuestion with the field, TimeoutError of ``still``.
    """
    if not query.offers:
        return None
    traffic = _traffic(query, machines)
    choice = _choice(query, [node.loaded for node in traffic], still)
    of = {offer.name: machine for offer, machine in zip(query.offers, machines, strict=True)}
    beside = {offer.name: node for offer, node in zip(query.offers, traffic, strict=True)}
    nodes = len(choice.shares)
    if nodes > 1 and any(of[share.node].network is None for share in choice.shares):
        raise WrongQuestion("nics", "several nodes, but no network card is known; say which, like 8x NDR400 IB")
    kinds = {(beside[share.node], share.gpus) for share in choice.shares}
    domains = {offer.name: tuple(offer.domains) for offer in query.offers}
    uplinks = uplink_shares(query.traffic, [domains[share.node] for share in choice.shares])
    used = {share.node for share in choice.shares}
    stale = stale_links([item for item in query.traffic if item.uplink or item.node in ("", *used)])
    try:
        estimates = [
            under_traffic(estimate(node.machine, gpus, nodes), node.machine, node.loads, uplinks, stale)
            for node, gpus in sorted(kinds, key=lambda kind: kind[1])
        ]
    except BandwidthError as error:
        raise WrongQuestion("count", str(error)) from None
    result = slowest(estimates) if query.traffic else min(estimates, key=lambda item: item.bus_gigabytes_per_s)
    reached = SetOut.of(result, meets(result, query.minimum_gigabytes_per_s, query.of, sure=sure), choice.reason())
    return PlacementOut(
        **vars(reached),
        shares=tuple(ShareOut(share.node, share.gpus) for share in choice.shares),
        domains=choice.domains,
        wider_gigabytes_per_s=choice.wider,
        considered=choice.considered,
        exact=choice.exact,
    )


def _traffic(query: BandwidthQuery, machines: Sequence[Machine]) -> list[NodeTraffic]:
    """Of each offered node. Raises WrongQuestion for traffic of no such node, level or link."""
    names = {offer.name for offer in query.offers}
    levels = {level for offer in query.offers for level in offer.domains}
    for number, item in enumerate(query.traffic):
        if item.node and item.node not in names:
            raise WrongQuestion(f"traffic.{number}.node", nearest("offered node", item.node, names))
        if item.uplink and item.uplink not in levels:
            raise WrongQuestion(f"traffic.{number}.link", nearest("level of the network", item.uplink, levels))
    try:
        uplink_shares(query.traffic, [(level,) for level in levels])
    except TrafficError as error:
        raise WrongQuestion("traffic", str(error)) from None
    if not any(item.node for item in query.traffic):
        of = {machine: NodeTraffic.of(query, machine) for machine in set(machines)}
        return [of[machine] for machine in machines]
    return [NodeTraffic.of(query, machine, offer.name) for offer, machine in zip(query.offers, machines, strict=True)]


def _choice(query: BandwidthQuery, machines: Sequence[Machine], still: Callable[[], None]) -> ClusterChoice:
    count = query.count
    if count is None:
        raise WrongQuestion("count", "say how many of the free GPUs are to be chosen")
    if count < 2:
        raise WrongQuestion("count", "a collective needs two GPUs at least")
    if query.nodes != 1 or query.free is not None:
        field = "free" if query.free is not None else "nodes"
        raise WrongQuestion(field, "is of nodes that are all alike; each offer says what is free on it")
    if len({offered_node.name for offered_node in query.offers}) < len(query.offers):
        raise WrongQuestion("offers", "two of them have the same name")

    def choose(machine: Machine, free: Sequence[int], each: int, kind: Collective, size: int) -> SetChoice | None:
        still()
        return choose_gpus(machine, free, each, kind, size)

    offers = [_offer(number, query, machine) for number, machine in enumerate(machines)]
    cluster_choice = choose_nodes(
        offers, count, query.collective, query.bytes, slow=_slow(query), choose=choose, traffic=query.traffic
    )
    if cluster_choice is None:
        free = sum(len(offer.free) for offer in offers)
        raise WrongQuestion("count", f"{count} GPUs in equal shares are asked for, and {free} are free on these nodes")
    return cluster_choice


def _offer(number: int, query: BandwidthQuery, machine: Machine) -> NodeOffer:
    offered_node, present = query.offers[number], machine.node.gpus
    free = tuple(sorted(set(present if offered_node.free is None else offered_node.free)))
    missing = sorted(set(free) - set(present))
    if missing:
        text = f"GPU {missing[0]} is not there; the node has {', '.join(map(str, present))}"
        raise WrongQuestion(f"offers.{number}.free", text)
    return NodeOffer(offered_node.name, machine, free, tuple(offered_node.domains))


def _slow(query: BandwidthQuery) -> Mapping[tuple[str, str], float]:
    return {(min(a, b), max(a, b)): gbps for (a, b), gbps in query.slow.items()}
