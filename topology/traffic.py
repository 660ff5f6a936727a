"""What other jobs' traffic leaves of a machine's wires, and what a collective then reaches.

A loaded machine is a machine with less on its wires, so that whatever answers for machines answers for it: GPUs' own
links and PCIe by edge, cards by the GPUs that use them, and what an uplink leaves to each node below it. The library is
taken to run the algorithm that it runs on the unloaded machine, as it chooses by links and not by what flows on them.

The ratio of the two analytic times scales a prediction. What is expected is what the link has left, or a fair share
between jobs, whichever is more; the low bound is what is left alone, the high one the unloaded machine's.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kopt.core.hardware.bandwidth import BandwidthEstimate, Collective
from kopt.core.hardware.traffic import LinkLoad, LinkTraffic, TrafficError, loads_of
from kopt.core.reason import Reason
from kopt.topology.collective_cost import analytic
from kopt.topology.graph import Card, Device, DeviceKind, Edge, EdgeKind, Machine
from kopt.topology.set_links import gpu_set

_MOST_LOADED, _STEPS = 1024, 20
Domain = tuple[str, ...]


@dataclass(frozen=True)
class UplinkShare:
    """An uplink that a set of nodes crosses, ``nodes`` of them from below it."""

    load: LinkLoad
    nodes: int


def cards_of(machine: Machine) -> tuple[Card, ...]:
    """The network's cards: as the tool names them, else NIC0 and so on. One per GPU belongs to it."""
    if machine.cards or machine.network is None:
        return machine.cards
    count, gpus = machine.network.cards, machine.node.gpus
    paired = count == len(gpus)
    return tuple(
        Card(f"NIC{number}", machine.network.card_gbps, (gpus[number],) if paired else None) for number in range(count)
    )


def capacities_gbps(machine: Machine) -> Mapping[str, float]:
    """GB/s per direction of every link of a node that may carry traffic, by name."""
    node, own = machine.node, dict(machine.node.switched)
    for (gpu, _), gbps in node.between.items():
        own[gpu] = own.get(gpu, 0.0) + gbps
    links = {f"GPU{gpu}": own[gpu] for gpu in node.gpus if own.get(gpu)}
    bus = {f"GPU{gpu}/PCIe": _pcie(machine, gpu) for gpu in node.gpus if _pcie(machine, gpu)}
    return {card.name: card.gbps for card in cards_of(machine)} | links | bus


def node_loads(machine: Machine, traffic: Sequence[LinkTraffic], node: str = "") -> tuple[LinkLoad, ...]:
    """The loads of a node's links: of traffic that names it, and of such that names no node.

    Raises TrafficError for links that are not there and for figures that cannot be.
    """
    capacities = capacities_gbps(machine)
    own = [(number, item) for number, item in enumerate(traffic) if not item.uplink and item.node in ("", node)]
    for number, item in enumerate(traffic):
        item.check(number)
    try:
        return loads_of([item for _, item in own], capacities)
    except TrafficError as error:
        raise TrafficError(own[error.number][0], str(error)) from None


def uplink_shares(traffic: Sequence[LinkTraffic], domains: Sequence[Domain]) -> tuple[UplinkShare, ...]:
    """The loaded uplinks that nodes in these ``domains`` cross together: of levels with some of them and not all."""
    uplinks = [item for item in traffic if item.uplink]
    if not uplinks:
        return ()
    capacities = {item.link: item.capacity_gigabytes_per_s or 0.0 for item in uplinks}
    shares = []
    for load in loads_of(uplinks, capacities):
        level = next(item.uplink for item in uplinks if item.link == load.link)
        below = sum(level in domain for domain in domains)
        if 0 < below < len(domains):
            shares.append(UplinkShare(load, below))
    return tuple(shares)


def loaded(machine: Machine, loads: Collection[LinkLoad], *, remaining: bool = False) -> Machine:
    """The machine with what is expected of its wires (``remaining``: what is left alone); itself without a load."""
    return _loaded(machine, tuple(loads), remaining) if loads else machine


def rounded(loads: Collection[LinkLoad]) -> tuple[LinkLoad, ...]:
    """To twentieths of each link, so that machines that are loaded alike are worked out once."""
    steps = [(load, round(_STEPS * load.gbps / load.capacity_gbps)) for load in loads]
    return tuple(replace(load, gbps=load.capacity_gbps * step / _STEPS) for load, step in steps if step)


@lru_cache(maxsize=_MOST_LOADED)
def _loaded(machine: Machine, loads: tuple[LinkLoad, ...], remaining: bool) -> Machine:
    shares = {load.link: load.remaining_share if remaining else load.expected_share for load in loads}
    edges = tuple(_edge(machine, edge, loads, shares, remaining) for edge in machine.node.edges)
    return replace(machine, node=replace(machine.node, edges=edges), card_shares=_card_shares(machine, shares))


def _edge(
    machine: Machine, edge: Edge, loads: tuple[LinkLoad, ...], shares: Mapping[str, float], remaining: bool
) -> Edge:
    ends = [end.index for end in (edge.a, edge.b) if end.kind is DeviceKind.GPU]
    if edge.kind.direct:
        share = min((shares.get(f"GPU{gpu}", 1.0) for gpu in ends), default=1.0)
    elif edge.kind is EdgeKind.PCIE and ends:
        share = shares.get(f"GPU{ends[0]}/PCIe", 1.0)
    elif edge.kind is EdgeKind.PCIE:
        share = _above_switch(machine, edge, loads, remaining)
    else:
        share = 1.0
    return edge if share == 1.0 else replace(edge, gbps=edge.gbps * share)


def _above_switch(machine: Machine, edge: Edge, loads: tuple[LinkLoad, ...], remaining: bool) -> float:
    """What all GPUs below a PCIe switch leave of the way up from it."""
    below = {f"GPU{gpu}/PCIe" for gpu in machine.node.gpus if edge.a in _way_up(machine, gpu)[1:]}
    busy = [load for load in loads if load.link in below]
    if not busy:
        return 1.0
    total = LinkLoad("", edge.total_gbps, sum(load.gbps for load in busy), sum(load.flows for load in busy))
    return total.remaining_share if remaining else total.expected_share


def _card_shares(machine: Machine, shares: Mapping[str, float]) -> Mapping[int, float]:
    result = {}
    for gpu in machine.node.gpus:
        used = [card for card in cards_of(machine) if card.gpus is None or gpu in card.gpus]
        result[gpu] = min((shares.get(card.name, 1.0) for card in used), default=1.0)
    return result if min(result.values(), default=1.0) < 1 else {}


def under_traffic(
    estimate: BandwidthEstimate,
    machine: Machine,
    loads: Sequence[LinkLoad],
    uplinks: Sequence[UplinkShare] = (),
    stale: Sequence[str] = (),
) -> BandwidthEstimate:
    """The estimate of an unloaded machine as it would be beside that traffic; ``stale`` links count as unloaded.

    Without any traffic it is the same object. Latency and bandwidth fall by the ratio of the analytic times, the end
    that is worst by that with what is left alone, and the best end stays that of the unloaded machine.
    """
    if not loads and not uplinks and not stale:
        return estimate
    old = [Reason("TRAFFIC_STALE", _stale_text(stale), {"links": len(stale)})] if stale else []
    if not loads and not uplinks:
        return replace(estimate, reasons=(*estimate.reasons, *old))
    cost = _Cost(machine, estimate.gpus, estimate.nodes, estimate.collective, estimate.bytes)
    slow, slowest = cost.ratio(loads, uplinks), cost.ratio(loads, uplinks, remaining=True)
    gbps = math.fsum(load.gbps for load in (*loads, *(uplink.load for uplink in uplinks)))
    numbers: dict[str, float | int | str] = {
        "links": len(loads) + len(uplinks),
        "traffic_gigabytes_per_s": gbps,
        "slower": slow,
        "slowest": slowest,
    }
    if slowest <= 1.0:
        text = f"Traffic on {numbers['links']} link(s), {gbps:.3g} GB/s in all, leaves these GPUs what they need."
        return replace(estimate, reasons=(*estimate.reasons, Reason("TRAFFIC", text, numbers), *old))
    binding = cost.binding(loads, uplinks)
    text = (
        f"{binding.text}, so that this takes × {slow:.2f} as long as unloaded, and × {slowest:.2f} if the others give "
        f"nothing up; {gbps:.3g} GB/s of traffic on {numbers['links']} link(s) were counted."
    )
    reason = Reason("TRAFFIC", text, numbers | {"link": binding.link})
    return replace(
        estimate,
        latency_us=estimate.latency_us * slow,
        latency_high_us=estimate.latency_high_us * slowest,
        algorithm_gigabytes_per_s=estimate.algorithm_gigabytes_per_s / slow,
        bus_gigabytes_per_s=estimate.bus_gigabytes_per_s / slow,
        bus_low_gigabytes_per_s=estimate.bus_low_gigabytes_per_s / slowest,
        reasons=(*estimate.reasons, reason, *old),
    )


@dataclass(frozen=True)
class _Cost:
    """Analytic times of one question on a machine under several loads."""

    machine: Machine
    gpus: tuple[int, ...]
    nodes: int
    kind: Collective
    size_bytes: int

    def ratio(self, loads: Sequence[LinkLoad], uplinks: Sequence[UplinkShare], *, remaining: bool = False) -> float:
        """Times as long as unloaded, at least 1. What an uplink carries at all limits both."""
        before = self._limited(self.machine, uplinks, [1.0 for _ in uplinks])
        shares = [uplink.load.remaining_share if remaining else uplink.load.expected_share for uplink in uplinks]
        after = self._limited(loaded(self.machine, loads, remaining=remaining), uplinks, shares)
        algorithm, unloaded_us = self._time(before)
        return max(1.0, self._time(after, algorithm)[1] / unloaded_us)

    def binding(self, loads: Sequence[LinkLoad], uplinks: Sequence[UplinkShare]) -> LinkLoad:
        """The link that by itself slows the collective most."""
        alone = [(self.ratio([load], (), remaining=True), load) for load in loads]
        alone += [(self.ratio((), [uplink], remaining=True), uplink.load) for uplink in uplinks]
        return max(alone, key=lambda item: item[0])[1]

    def _limited(self, machine: Machine, uplinks: Sequence[UplinkShare], shares: Sequence[float]) -> Machine:
        if not uplinks:
            return machine
        each = [u.load.capacity_gbps * share / u.nodes for u, share in zip(uplinks, shares, strict=True)]
        return replace(machine, network_limit_gbps=min(each))

    def _time(self, machine: Machine, algorithm: str = "") -> tuple[str, float]:
        result = analytic(gpu_set(machine, self.gpus, self.nodes), self.kind, self.size_bytes, algorithm)
        return result.algorithm, result.latency_us


def slowest(estimates: Sequence[BandwidthEstimate]) -> BandwidthEstimate:
    """Of the nodes of one collective: what is expected of the slowest, and the worst end of any of them."""
    return replace(
        min(estimates, key=lambda estimate: estimate.bus_gigabytes_per_s),
        latency_high_us=max(estimate.latency_high_us for estimate in estimates),
        bus_low_gigabytes_per_s=min(estimate.bus_low_gigabytes_per_s for estimate in estimates),
    )


def slower_by_uplinks(
    machine: Machine,
    gpus: tuple[int, ...],
    nodes: int,
    kind: Collective,
    size_bytes: int,
    uplinks: Sequence[UplinkShare],
) -> float:
    """Times as long as a collective takes beside what others put on the uplinks that it crosses; 1 without any."""
    if not uplinks or machine.network is None:
        return 1.0
    return _Cost(machine, tuple(gpus), nodes, kind, size_bytes).ratio((), uplinks)


def stale_links(traffic: Sequence[LinkTraffic]) -> list[str]:
    """Links whose rates are too old to count."""
    return sorted({f"{item.link} of {item.node}" if item.node else item.link for item in traffic if item.stale})


def _stale_text(links: Sequence[str]) -> str:
    few = ", ".join(links[:3]) + (f" and {len(links) - 3} more" if len(links) > 3 else "")
    return f"Traffic on {few} was measured too long ago and counts as none."


def _pcie(machine: Machine, gpu: int) -> float:
    edge = machine.node.parents.get(Device(DeviceKind.GPU, gpu))
    return edge.total_gbps if edge is not None else 0.0


def _way_up(machine: Machine, gpu: int) -> list[Device]:
    return machine.node.way_up(Device(DeviceKind.GPU, gpu))
