"""Which nodes, and which GPUs of each, for a job that may need more than one node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kopt.core.bandwidth import BandwidthError, BandwidthEstimate, Collective
from kopt.policies.bandwidth.graph import Machine
from kopt.policies.topology.nodes import ClusterChoice, NodeOffer, choose_nodes
from kopt.policies.topology.sets import SetChoice
from kopt.policies.topology.within import choose_gpus
from kopt.serving.bandwidth_answers import BandwidthQuery, Placement, SetBandwidth, WrongQuestion, meets

EstimateOn = Callable[[Machine, tuple[int, ...], int], BandwidthEstimate]
"""Of these GPUs of each of so many nodes like the machine. Raises BandwidthError."""


def answer_places(
    query: BandwidthQuery, machines: Sequence[Machine], estimate: EstimateOn, still: Callable[[], None], *,
    sure: bool = True,
) -> Placement | None:  # fmt: skip
    """Where ``count`` GPUs go on the offered nodes, whose machines are given in their order; None without offers.

    Raises WrongQuestion with the field, TimeoutError of ``still``.
    """
    if not query.offers:
        return None
    choice = _chosen(query, machines, still)
    of = {offer.name: machine for offer, machine in zip(query.offers, machines, strict=True)}
    nodes = len(choice.shares)
    if nodes > 1 and any(of[one.node].network is None for one in choice.shares):
        raise WrongQuestion("nics", "several nodes, but no network card is known; say which, like 8x NDR400 IB")
    kinds = {(of[one.node], one.gpus) for one in choice.shares}
    try:
        found = min((estimate(machine, gpus, nodes) for machine, gpus in sorted(kinds, key=lambda one: one[1])),
                    key=lambda one: one.bus_gigabytes_per_s)  # fmt: skip
    except BandwidthError as error:
        raise WrongQuestion("count", str(error)) from None
    told = replace(found, reasons=(choice.reason(), *found.reasons))
    held = SetBandwidth(told, meets(found, query.minimum_gigabytes_per_s, query.of, sure=sure))
    shares = tuple((one.node, one.gpus) for one in choice.shares)
    return Placement(held, shares, choice.domains, choice.wider, choice.considered, choice.exact)


def _chosen(query: BandwidthQuery, machines: Sequence[Machine], still: Callable[[], None]) -> ClusterChoice:
    count = query.count
    if count is None:
        raise WrongQuestion("count", "say how many of the free GPUs are to be chosen")
    if count < 2:
        raise WrongQuestion("count", "a collective needs two GPUs at least")
    if query.nodes != 1 or query.free is not None:
        field = "free" if query.free is not None else "nodes"
        raise WrongQuestion(field, "is of nodes that are all alike; each offer says what is free on it")
    if len({one.name for one in query.offers}) < len(query.offers):
        raise WrongQuestion("offers", "two of them have the same name")

    def choose(machine: Machine, free: Sequence[int], each: int, kind: Collective, size: int) -> SetChoice | None:
        still()
        return choose_gpus(machine, free, each, kind, size)

    offers = [_offer(number, query, machine) for number, machine in enumerate(machines)]
    found = choose_nodes(offers, count, query.collective, query.bytes, slow=_slow(query), choose=choose)
    if found is None:
        free = sum(len(one.free) for one in offers)
        raise WrongQuestion("count", f"{count} GPUs in equal shares are asked for, and {free} are free on these nodes")
    return found


def _offer(number: int, query: BandwidthQuery, machine: Machine) -> NodeOffer:
    one, there = query.offers[number], machine.node.gpus
    free = tuple(sorted(set(there if one.free is None else one.free)))
    missing = sorted(set(free) - set(there))
    if missing:
        text = f"GPU {missing[0]} is not there; the node has {', '.join(map(str, there))}"
        raise WrongQuestion(f"offers.{number}.free", text)
    return NodeOffer(one.name, machine, free, tuple(one.domains))


def _slow(query: BandwidthQuery) -> Mapping[tuple[str, str], float]:
    return {(min(a, b), max(a, b)): gbps for (a, b), gbps in query.slow.items()}
