"""Where a gang should be: the nodes for pods that are placed one by one and work together.

The home is chosen with the first pod, for all of them: by `choose_nodes` where it is known how the GPUs of every node
are linked, else the innermost domain (rack, block) with room, its fullest nodes first. Later pods stay with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.pairs import Pair
from kopt.policies.bandwidth.graph import Machine
from kopt.policies.topology.nodes import Domain, NodeOffer, choose_nodes, shared


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


def choose_home(
    offers: Sequence[GangOffer], pods: int, each: int, slow: Mapping[Pair, float], near: Domain | None = None
) -> Home | None:
    """For ``pods`` pods on ``each`` GPUs; None where the nodes have no room for all of them.

    ``near`` are the levels that pods placed before share: only those and what is around them is looked at then.
    """
    known = [NodeOffer(one.name, one.machine, _gpus(one.machine, one.free), one.domains)
             for one in offers if one.machine is not None]  # fmt: skip
    if near is None and len(known) == len(offers):
        found = choose_nodes(known, pods * each, slow=slow, multiple=each)
        if found is not None:
            nodes = tuple(one.node for one in found.shares)
            return Home(found.domains, nodes, pods, found.gbps, found.wider or 0.0)
    return _by_room(offers, pods, each, near)


def _gpus(machine: Machine, slots: Sequence[int]) -> tuple[int, ...]:
    there = sorted(machine.node.gpus)
    return tuple(there[slot] for slot in slots if slot < len(there))


def _by_room(offers: Sequence[GangOffer], pods: int, each: int, near: Domain | None) -> Home | None:
    """The innermost domain that holds all pods, and of those the one with the least room."""
    best: tuple[tuple[int, int, Domain], list[GangOffer]] | None = None
    for domain, inside in _inside(offers).items():
        room = sum(len(one.free) // each for one in inside)
        if room >= pods and (near is None or near[: len(domain)] == domain):
            rank = (-len(domain), room, domain)
            best = min(best, (rank, inside), key=lambda one: one[0]) if best is not None else (rank, inside)
    if best is None:
        return None
    nodes, left = [], pods
    for one in sorted(best[1], key=lambda one: (len(one.free) // each < left, len(one.free), one.name)):
        if left > 0 and len(one.free) >= each:
            nodes.append(one)
            left -= len(one.free) // each
    return Home(shared([one.domains for one in nodes]), tuple(one.name for one in nodes), pods)


def _inside(offers: Sequence[GangOffer]) -> Mapping[Domain, list[GangOffer]]:
    found: dict[Domain, list[GangOffer]] = {}
    for offer in offers:
        for depth in range(len(offer.domains) + 1):
            found.setdefault(offer.domains[:depth], []).append(offer)
    return found
