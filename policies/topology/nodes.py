"""The nodes, and the GPUs in each, for a job that may need more than one of them.

One node where it fits into one. Else the same number of GPUs in each of a few nodes, tried from the innermost domain
(rack, block) that holds enough of them to the whole cluster: what is predicted to run fastest, within a domain the
nodes that would be filled best, so that empty nodes stay whole.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kopt.core.bandwidth import Collective
from kopt.core.reason import Reason
from kopt.policies.bandwidth.graph import Machine
from kopt.policies.topology.sets import SetChoice
from kopt.policies.topology.within import GIB, bus_gbps, choose_gpus

_AS_FAST = 0.99
_MOST_SPLITS = 4


@dataclass(frozen=True)
class NodeOffer:
    """A node with its free GPUs. ``domains`` are the names of the network levels that it is in, outermost first."""

    name: str
    machine: Machine
    free: tuple[int, ...]
    domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeShare:
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class ClusterChoice:
    """``gbps`` of bus bandwidth is what all of them together are predicted to reach; ``domains`` those they share."""

    shares: tuple[NodeShare, ...]
    gbps: float
    domains: tuple[str, ...] = ()
    considered: int = 0
    exact: bool = True

    def reason(self) -> Reason:
        """Why these."""
        where = "; ".join(f"{one.node}: {', '.join(map(str, one.gpus))}" for one in self.shares)
        within = f" within {'/'.join(self.domains)}" if len(self.shares) > 1 and self.domains else ""
        return Reason("BEST_NODES", f"GPUs {where}{within} reach {self.gbps:.3g} GB/s, the most of "
                                    f"{self.considered} ways that were compared.")  # fmt: skip


@dataclass(frozen=True)
class _Way:
    picked: tuple[tuple[NodeOffer, SetChoice], ...]
    gbps: float
    shared: tuple[str, ...]

    @property
    def left(self) -> int:
        return sum(len(offer.free) - len(choice.gpus) for offer, choice in self.picked)

    def rank(self) -> tuple[float, ...]:
        rest = min((choice.rest_gbps for _, choice in self.picked), default=0.0)
        return (len(self.picked), -len(self.shared), self.left, -round(rest, 3))


def choose_nodes(
    offers: Sequence[NodeOffer], count: int, kind: Collective = Collective.ALL_REDUCE, size_bytes: int = GIB
) -> ClusterChoice | None:
    """``count`` GPUs for one job; None where the nodes have not so many that equal shares of them would do.

    Raises ValueError for a count below one.
    """
    if count < 1:
        raise ValueError(f"a job of {count} GPUs")
    ways = list(_alone(offers, count, kind, size_bytes))
    if not ways:
        ways = list(islice(_splits(offers, count, kind, size_bytes), 1024))
    if not ways:
        return None
    fastest = max(way.gbps for way in ways)
    near = [way for way in ways if way.gbps >= _AS_FAST * fastest]
    best = min(near, key=lambda way: (way.rank(), [offer.name for offer, _ in way.picked]))
    shares = tuple(NodeShare(offer.name, choice.gpus) for offer, choice in best.picked)
    return ClusterChoice(shares, best.gbps, best.shared, len(ways), all(choice.exact for _, choice in best.picked))


def _alone(offers: Sequence[NodeOffer], count: int, kind: Collective, size_bytes: int) -> Iterator[_Way]:
    for offer in offers:
        choice = choose_gpus(offer.machine, offer.free, count, kind, size_bytes)
        if choice is not None:
            yield _Way(((offer, choice),), choice.gbps, offer.domains)


def _splits(offers: Sequence[NodeOffer], count: int, kind: Collective, size_bytes: int) -> Iterator[_Way]:
    """Equal shares, of the most GPUs per node first, in every domain that has room for them."""
    most = max((len(offer.free) for offer in offers), default=0)
    sizes = [each for each in range(min(most, count), 0, -1) if count % each == 0]
    room = (each for each in sizes if sum(len(offer.free) >= each for offer in offers) >= count // each)
    for each in islice(room, _MOST_SPLITS):
        for domain, inside in _domains(offers):
            fitting = [offer for offer in inside if len(offer.free) >= each]
            if len(fitting) >= count // each:
                yield _way(fitting, each, count // each, domain, kind, size_bytes)


def _domains(offers: Sequence[NodeOffer]) -> Iterator[tuple[tuple[str, ...], list[NodeOffer]]]:
    """Every domain with the nodes in it, the innermost first, and at last all nodes."""
    found: dict[tuple[str, ...], list[NodeOffer]] = defaultdict(list)
    for offer in offers:
        for depth in range(len(offer.domains) + 1):
            found[offer.domains[:depth]].append(offer)
    for domain in sorted(found, key=lambda one: (-len(one), one)):
        yield domain, found[domain]


def _way(
    fitting: Sequence[NodeOffer], each: int, nodes: int, domain: tuple[str, ...], kind: Collective, size_bytes: int
) -> _Way:
    """The nodes of a domain whose sets are fast and which would be filled best."""
    chosen = [(offer, choice) for offer in fitting
              if (choice := choose_gpus(offer.machine, offer.free, each, kind, size_bytes)) is not None]  # fmt: skip
    speeds = {id(offer): bus_gbps(offer.machine, choice.gpus, nodes, kind=kind, size_bytes=size_bytes)
              for offer, choice in chosen}  # fmt: skip
    fastest = max(speeds.values())
    chosen.sort(key=lambda one: (speeds[id(one[0])] < _AS_FAST * fastest, len(one[0].free), -one[1].gbps, one[0].name))
    picked = tuple(chosen[:nodes])
    return _Way(picked, min(speeds[id(offer)] for offer, _ in picked), domain)
