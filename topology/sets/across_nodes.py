"""The nodes, and the GPUs in each, for a job that may need more than one of them.

One node where it fits into one. Else the same number of GPUs in each of a few nodes, tried from the innermost domain
(rack, block) that holds enough of them to the whole cluster: what is predicted to run fastest, within a domain the
nodes that would be filled best, so that empty nodes stay whole. Pairs of nodes that were measured slow together are
kept apart where others would do. Nodes of one make with the same GPUs free are judged once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.pairwise import Pair
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.reason import Reason
from kopt.topology.graph import Machine
from kopt.topology.sets.best import SetChoice
from kopt.topology.sets.within_node import GIB, bus_gbps, choose_gpus
from kopt.topology.traffic import slower_by_uplinks, uplink_shares

Domain = tuple[str, ...]
"""Names of network levels, outermost first."""
Choose = Callable[[Machine, Sequence[int], int, Collective, int], SetChoice | None]
"""As ``choose_gpus``."""
_AS_FAST = 0.99
_MOST_SPLITS = 4


@dataclass(frozen=True)
class NodeOffer:
    """A node with its free GPUs. ``domains`` are the names of the network levels that it is in, outermost first."""

    name: str
    machine: Machine
    free: tuple[int, ...]
    domains: Domain = ()


@dataclass(frozen=True)
class NodeShare:
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class ClusterChoice:
    """``gbps`` of bus bandwidth is what all of them together are predicted to reach; ``domains`` those they share.

    ``wider`` is what the best way that shares less would reach, None where that is as much or none was compared.
    """

    shares: tuple[NodeShare, ...]
    gbps: float
    domains: Domain = ()
    considered: int = 0
    exact: bool = True
    wider: float | None = None

    def reason(self) -> Reason:
        """Why these."""
        where = "; ".join(f"{share.node}: {', '.join(map(str, share.gpus))}" for share in self.shares)
        within = f" within {'/'.join(self.domains)}" if len(self.shares) > 1 and self.domains else ""
        wider = f"; further apart they would reach {self.wider:.3g}" if self.wider is not None else ""
        best = f"the most of {self.considered} ways that were compared" if self.considered > 1 else "the only way"
        return Reason("BEST_NODES", f"GPUs {where}{within} reach {self.gbps:.3g} GB/s, {best}{wider}.")


@dataclass(frozen=True)
class _Way:
    picked: tuple[tuple[NodeOffer, SetChoice], ...]
    gbps: float

    @property
    def shared(self) -> Domain:
        return shared([offer.domains for offer, _ in self.picked])

    @property
    def unused(self) -> int:
        return sum(len(offer.free) - len(choice.gpus) for offer, choice in self.picked)

    def rank(self) -> tuple[float, ...]:
        rest = min((choice.rest_gbps for _, choice in self.picked), default=0.0)
        return (len(self.picked), -len(self.shared), self.unused, -round(rest, 3))


@dataclass
class _Question:
    """One job, and what was worked out for it so far."""

    kind: Collective
    size_bytes: int
    slow: Mapping[Pair, float]
    choose: Choose
    traffic: Sequence[LinkTraffic] = ()
    _sets: dict[tuple[int, tuple[int, ...], int], SetChoice | None] = field(default_factory=dict)
    _speeds: dict[tuple[int, tuple[int, ...], int], float] = field(default_factory=dict)

    def set_of(self, offer: NodeOffer, each: int) -> SetChoice | None:
        if len(offer.free) < each:
            return None
        alike = id(offer.machine), offer.free, each
        if alike not in self._sets:
            self._sets[alike] = self.choose(offer.machine, offer.free, each, self.kind, self.size_bytes)
        return self._sets[alike]

    def speed(self, offer: NodeOffer, gpus: tuple[int, ...], nodes: int) -> float:
        alike = id(offer.machine), gpus, nodes
        if alike not in self._speeds:
            self._speeds[alike] = bus_gbps(offer.machine, gpus, nodes, kind=self.kind, size_bytes=self.size_bytes)
        return self._speeds[alike]

    def way(self, picked: Sequence[tuple[NodeOffer, SetChoice]]) -> _Way:
        """No faster than its slowest node, nor than a pair that was measured slow."""
        way = _Way(tuple(picked), min(self.speed(offer, choice.gpus, len(picked)) for offer, choice in picked))
        way = self._under_uplinks(way) if self.traffic else way
        reached = [self.slow[pair] for pair in self.slow.keys() & _pairs(way)] if self.slow else []
        return replace(way, gbps=min(way.gbps, *reached)) if reached else way

    def _under_uplinks(self, way: _Way) -> _Way:
        uplinks = uplink_shares(self.traffic, [offer.domains for offer, _ in way.picked])
        if not uplinks:
            return way
        slower = max(
            slower_by_uplinks(offer.machine, choice.gpus, len(way.picked), self.kind, self.size_bytes, uplinks)
            for offer, choice in way.picked
        )
        return replace(way, gbps=way.gbps / slower)


def choose_nodes(
    offers: Sequence[NodeOffer],
    count: int,
    kind: Collective = Collective.ALL_REDUCE,
    size_bytes: int = GIB,
    *,
    multiple: int = 1,
    slow: Mapping[Pair, float] | None = None,
    choose: Choose = choose_gpus,
    traffic: Sequence[LinkTraffic] = (),
) -> ClusterChoice | None:
    """``count`` GPUs for one job; None where the nodes have not so many that equal shares of them would do.

    Shares are a ``multiple`` of so many GPUs, those of one pod. ``slow`` is the bus bandwidth (GB/s) of pairs of
    nodes that were measured to reach less than such pairs do, 0 where the test failed. Of ``traffic`` that of uplinks
    counts; machines are given as that on their own links leaves them. Raises ValueError for a count below one.
    """
    if count < 1 or multiple < 1:
        raise ValueError(f"a job of {count} GPUs in shares of {multiple}")
    question = _Question(kind, size_bytes, slow or {}, choose, [item for item in traffic if item.uplink])
    ways = list(_alone(offers, count, question)) or list(_splits(offers, count, multiple, question))
    if not ways:
        return None
    best = _best(ways)
    further = max((way.gbps for way in ways if len(way.shared) < len(best.shared)), default=best.gbps)
    shares = tuple(NodeShare(offer.name, choice.gpus) for offer, choice in best.picked)
    return ClusterChoice(
        shares,
        best.gbps,
        best.shared,
        len(ways),
        all(choice.exact for _, choice in best.picked),
        further if len(shares) > 1 and further < _AS_FAST * best.gbps else None,
    )


def shared(domains: Sequence[Domain]) -> Domain:
    """The levels that all of them are in."""
    result = domains[0] if domains else ()
    for domain in domains:
        same = (number for number, (a, b) in enumerate(zip(result, domain, strict=False)) if a != b)
        result = result[: next(same, min(len(result), len(domain)))]
    return result


def _best(ways: Sequence[_Way]) -> _Way:
    fastest = max(way.gbps for way in ways)
    near = [way for way in ways if way.gbps >= _AS_FAST * fastest]
    return min(near, key=lambda way: (way.rank(), [offer.name for offer, _ in way.picked]))


def _alone(offers: Sequence[NodeOffer], count: int, question: _Question) -> Iterator[_Way]:
    for offer in offers:
        choice = question.set_of(offer, count)
        if choice is not None:
            yield _Way(((offer, choice),), choice.gbps)


def _splits(offers: Sequence[NodeOffer], count: int, multiple: int, question: _Question) -> Iterator[_Way]:
    """Equal shares, of the most GPUs per node first, in every domain that has room for them."""
    most = max((len(offer.free) for offer in offers), default=0)
    sizes = [each for each in range(min(most, count), 0, -1) if count % each == 0 and each % multiple == 0]
    room = [each for each in sizes if sum(len(offer.free) >= each for offer in offers) >= count // each]
    for each in room[:_MOST_SPLITS]:
        for inside in domains_of(offers).values():
            fitting = [offer for offer in inside if len(offer.free) >= each]
            if len(fitting) >= count // each:
                yield _filled(fitting, each, count // each, question)


def domains_of(offers: Sequence[NodeOffer]) -> Mapping[Domain, Sequence[NodeOffer]]:
    """Every domain with the nodes in it, the innermost first, and at last all nodes."""
    node_offers: dict[Domain, list[NodeOffer]] = defaultdict(list)
    for offer in offers:
        for depth in range(len(offer.domains) + 1):
            node_offers[offer.domains[:depth]].append(offer)
    return {domain: node_offers[domain] for domain in sorted(node_offers, key=lambda item: (-len(item), item))}


def _filled(fitting: Sequence[NodeOffer], each: int, nodes: int, question: _Question) -> _Way:
    """The nodes of a domain whose sets are fast and which would be filled best, none of them slow with another one as
    far as there are others."""
    candidates = [(offer, choice) for offer in fitting if (choice := question.set_of(offer, each)) is not None]
    speeds = {offer.name: question.speed(offer, choice.gpus, nodes) for offer, choice in candidates}
    fastest = max(speeds.values())
    candidates.sort(
        key=lambda item: (speeds[item[0].name] < _AS_FAST * fastest, len(item[0].free), -item[1].gbps, item[0].name)
    )
    way = question.way(candidates[:nodes])
    if not question.slow or not question.slow.keys() & _pairs(way):
        return way
    return max((way, *_apart(candidates, nodes, question)), key=lambda item: item.gbps)


def _apart(candidates: Sequence[tuple[NodeOffer, SetChoice]], nodes: int, question: _Question) -> Iterator[_Way]:
    """Ways that begin with each of the first few nodes and pass over whoever is slow with those taken."""
    slow = question.slow.keys()
    for first in candidates[: nodes + _MOST_SPLITS]:
        picked = [first]
        for item in candidates:
            names = [offer.name for offer, _ in picked]
            if len(picked) < nodes and item is not first and not slow & {_pair(item[0].name, name) for name in names}:
                picked.append(item)
        if len(picked) == nodes:
            yield question.way(picked)


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def _pairs(way: _Way) -> set[Pair]:
    return set(combinations(sorted(offer.name for offer, _ in way.picked), 2))
