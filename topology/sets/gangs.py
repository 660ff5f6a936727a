"""Where a gang should be: the nodes for pods that are placed one by one and work together.

The home is chosen with the first pod, for all of them: by `choose_nodes` where it is known how the GPUs of every node
are linked, else the innermost domain (rack, block) with room, its fullest nodes first. Later pods stay with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.hardware.pairwise import Pair
from kopt.topology.graph import Machine
from kopt.topology.sets.across_nodes import Domain, NodeOffer, choose_nodes, shared


@dataclass(frozen=True)
class GangOffer:
    """A node with the GPUs that are free for pods of a gang: no more than they have CPU and memory for.

    ``free`` are slots, which are the GPUs of ``machine`` in ascending order (None: nobody knows how they are linked).
    """

    name: str
    free: tuple[int, ...]
    domains: Domain = ()
    machine: Machine | None = None


@dataclass(frozen=True)
class Home:
    """``nodes`` for ``pods`` pods, all within ``domain``; ``gbps`` is the bus bandwidth that they are predicted to
    reach together, and ``wider_gbps`` what they would further apart; 0 where that is unknown."""

    domain: Domain
    nodes: tuple[str, ...]
    pods: int
    gbps: float = 0.0
    wider_gbps: float = 0.0
    busy_nodes: int = 0
    """Of the nodes that were compared, those whose cards carry other jobs' traffic."""


def choose_home(
    offers: Sequence[GangOffer], pods: int, each: int, slow: Mapping[Pair, float], near: Domain | None = None
) -> Home | None:
    """For ``pods`` pods on ``each`` GPUs; None where the nodes have no room for all of them.

    ``near`` are the levels that pods placed before share: only those and what is around them is looked at then.
    """
    linked = [
        NodeOffer(offer.name, offer.machine, _gpus(offer.machine, offer.free), offer.domains)
        for offer in offers
        if offer.machine is not None
    ]
    if near is None and len(linked) == len(offers):
        cluster_choice = choose_nodes(linked, pods * each, slow=slow, multiple=each)
        if cluster_choice is not None:
            nodes = tuple(share.node for share in cluster_choice.shares)
            return Home(cluster_choice.domains, nodes, pods, cluster_choice.gbps, cluster_choice.wider or 0.0)
    return _by_room(offers, pods, each, near)


def _gpus(machine: Machine, slots: Sequence[int]) -> tuple[int, ...]:
    indexes = sorted(machine.node.gpus)
    return tuple(indexes[slot] for slot in slots if slot < len(indexes))


def _by_room(offers: Sequence[GangOffer], pods: int, each: int, near: Domain | None) -> Home | None:
    """The innermost domain that holds all pods, and of those the one with the least room."""
    best: tuple[tuple[int, int, Domain], list[GangOffer]] | None = None
    for domain, inside in _inside(offers).items():
        room = sum(len(gang_offer.free) // each for gang_offer in inside)
        if room >= pods and (near is None or near[: len(domain)] == domain):
            rank = (-len(domain), room, domain)
            best = min(best, (rank, inside), key=lambda item: item[0]) if best is not None else (rank, inside)
    if best is None:
        return None
    nodes, missing = [], pods
    for gang_offer in sorted(
        best[1], key=lambda gang_offer: (len(gang_offer.free) // each < missing, len(gang_offer.free), gang_offer.name)
    ):
        if missing > 0 and len(gang_offer.free) >= each:
            nodes.append(gang_offer)
            missing -= len(gang_offer.free) // each
    return Home(
        shared([gang_offer.domains for gang_offer in nodes]), tuple(gang_offer.name for gang_offer in nodes), pods
    )


def _inside(offers: Sequence[GangOffer]) -> Mapping[Domain, list[GangOffer]]:
    gang_offers: dict[Domain, list[GangOffer]] = {}
    for offer in offers:
        for depth in range(len(offer.domains) + 1):
            gang_offers.setdefault(offer.domains[:depth], []).append(offer)
    return gang_offers
