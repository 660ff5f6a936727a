"""The books: which pod holds which GPUs of which node, bound or about to be, per GPU resource.

Everything here happens between two awaits of one event loop: choosing and reserving are one step, so that no two
decisions see the same GPU free. Time comes in as an argument.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.complaint import Complaint
from kopt.core.hardware.node_selection import NodeSelectionPolicy, UtilisationHistory
from kopt.core.hardware.traffic import LinkTraffic, TrafficError
from kopt.core.scheduling.placement import ANY_POOL, Ask, FleetNode, PodRequest
from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.policies.placement.choose import Choice, choose
from kopt.policies.placement.complaints import Complaints
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.joint import Packing, pack
from kopt.policies.placement.pool import NamedNodes, Pool
from kopt.policies.placement.scores import WEIGHTS, weights_of
from kopt.policies.placement.state import FleetState, allocate, occupy, release
from kopt.policies.placement.topology import GpuLinks, Topologies
from kopt.topology.graph import Machine
from kopt.topology.traffic import loaded, node_loads, rounded

Ints = NDArray[np.int64]
Domain = tuple[str, ...]
Key = tuple[str, str]
"""Namespace and name."""
FOREVER_S = float("inf")


class Stage(IntEnum):
    """How certain a holding is. RESERVED: promised to the scheduler. ASSUMED: the Binding was sent. BOUND: seen."""

    RESERVED = 0
    ASSUMED = 1
    BOUND = 2


@dataclass(slots=True, eq=False)
class Holding:
    """What one pod holds of one node: ``slots`` (GPU indexes) per GPU resource, until ``until_s`` unless confirmed.

    ``requests`` is what was taken from the arrays of each resource, ``named`` the indexes that the pod's annotation
    names, None without one.
    """

    uid: str
    pod: Key
    node: str
    ask: Ask
    requests: Mapping[str, PodRequest]
    slots: Mapping[str, tuple[int, ...]]
    stage: Stage = Stage.BOUND
    until_s: float = FOREVER_S
    named: tuple[int, ...] | None = None

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPU indexes, of all resources together."""
        return tuple(slot for slots in self.slots.values() for slot in slots)

    def part(self, resource: str) -> tuple[PodRequest, tuple[int, ...]]:
        """What it takes from the arrays of one resource; CPU and memory from every one."""
        request, slots = self.requests.get(resource), self.slots.get(resource, ())
        if request is None or len(slots) != request.gpus.count:
            return _without_gpus(self.ask.request), ()
        return request, slots


class Nearness(Protocol):
    """Where the pods of a gang are, or should be."""

    def tiers(self, state: FleetState) -> NDArray[np.int8]:
        """How far away each row is; the lowest is taken that has room."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A choice and the resource whose GPUs it names; the pool is ``""`` when there is nothing to choose from."""

    pool: str
    choice: Choice


class Fleet:
    """Nodes, and what pods hold of them.

    Of shares of which nothing says on which GPU they are, decisions assume that they are spread; with ``packs`` they
    are assumed to be packed, as they are charged.
    """

    def __init__(self, weights: Mapping[str, float] = WEIGHTS, *, packs: bool = False) -> None:
        self._packs = packs
        self.pools: dict[str, Pool] = {}
        self.complaints = Complaints()
        self.inside: dict[Domain, set[str]] = {}
        """Nodes by every level of the network that they are in."""
        self.holdings: dict[str, Holding] = {}
        self._links: dict[str, GpuLinks] = {}
        self._make: dict[str, str] = {}
        self._traffic: dict[str, tuple[tuple[LinkTraffic, ...], float]] = {}
        self._topologies = Topologies(self._links)
        self._nodes: dict[str, dict[str, FleetNode]] = {}
        self._on_node: dict[str, dict[str, Holding]] = {}
        self._weights = self._default_weights = weights
        self.selection: NodeSelectionPolicy | None = None
        """The policy in force."""
        self.history = UtilisationHistory()

    @property
    def nodes(self) -> Mapping[str, Mapping[str, FleetNode]]:
        """What each node with GPUs offers, by resource."""
        return self._nodes

    def set_node(self, name: str, offers: Mapping[str, FleetNode]) -> bool:
        """Make a node offer this (nothing: it is gone or has no GPUs); what pods hold of it stays taken.

        Returns whether anything changed.
        """
        offers = {resource: self._annotated(offer) for resource, offer in offers.items()}
        before = self._nodes.get(name, {})
        if before == offers:
            return False
        resized = {key for key in before.keys() & offers.keys() if before[key].gpus != offers[key].gpus}
        for resource in resized:
            for holding in self._on_node.get(name, {}).values():
                request, slots = holding.part(resource)
                release(self.pools[resource].state, name, slots, request)
        for resource in before.keys() - offers.keys():
            pool = self.pools[resource]
            pool.state.remove_node(name)
            pool.members += 1
        self._move(name, before, offers)
        if offers:
            self._nodes[name] = offers
        else:
            self._nodes.pop(name, None)
        for resource, offer in offers.items():
            pool = self.pools.setdefault(resource, Pool(resource))
            pool.state.set_node(offer)
            if resource not in before:
                pool.members += 1
            if resource not in before or resource in resized:
                for holding in list(self._on_node.get(name, {}).values()):
                    self._occupy(pool, holding)
        return True

    def set_links(self, node: str, links: GpuLinks | None) -> None:
        """How a node's GPUs are linked; None when that is not known any more."""
        if links is None:
            self._make.pop(node, None)
        else:
            # Nodes of one make share their links, and what was worked out about them.
            cards = links.machine.cards if links.machine is not None else ()
            make = hashlib.sha256(repr((links, cards)).encode()).hexdigest()[:16]
            self._links.setdefault(make, links)
            self._make[node] = make
        if node in self._nodes:
            self.set_node(node, self._nodes[node])

    def set_traffic(self, node: str, traffic: Sequence[LinkTraffic], at_s: float) -> None:
        """What its agent measured on a node's links; ``at_s`` is when the ages of the rates were taken."""
        if traffic:
            self._traffic[node] = tuple(traffic), at_s
        else:
            self._traffic.pop(node, None)

    def traffic(self, node: str, now_s: float) -> tuple[LinkTraffic, ...]:
        """With the ages that the rates have now."""
        traffic, at_s = self._traffic.get(node, ((), now_s))
        return tuple(replace(item, age_s=item.age_s + max(0.0, now_s - at_s)) for item in traffic)

    def machine(self, node: str, resource: str, now_s: float) -> Machine | None:
        """The node's machine as traffic that was measured lately leaves it; None where its links are unknown."""
        links = self.links(node, resource)
        if links is None or links.machine is None or node not in self._traffic:
            return links.machine if links is not None else None
        try:
            return loaded(links.machine, rounded(node_loads(links.machine, self.traffic(node, now_s), node)))
        except TrafficError:
            # Another card than the topology has, or faster than it is: the two were read at different times.
            return links.machine

    def set_complaint(self, node: str, source: str, complaint: Complaint | None) -> None:
        """What a source says is wrong with a node; None for nothing."""
        self.complaints.set(node, source, complaint)
        if node in self._nodes:
            self.set_node(node, self._nodes[node])

    def select_by(self, policy: NodeSelectionPolicy | None) -> None:
        """Weigh as a policy says, from the next choice on; None for the weights from before any."""
        self.selection = policy
        self._weights = self._default_weights if policy is None else weights_of(policy.weights)

    def set_history(self, history: UtilisationHistory) -> None:
        """How much of each node's GPUs was in use. Written into the columns: nothing that is cached depends on it."""
        self.history, usual = history, history.usual
        for pool in self.pools.values():
            for name, row in pool.state.index.items():
                pool.state.utilisation[row] = history.of.get(name, usual)

    def domains(self, node: str) -> Domain:
        """The levels of the network that a node is in, outermost first."""
        return next((offer.domains for offer in self._nodes.get(node, {}).values()), ())

    def links(self, node: str, resource: str) -> GpuLinks | None:
        """How a node's GPUs are linked; None where that is unknown or of other units than the resource counts."""
        offer = self._nodes.get(node, {}).get(resource)
        return self._links.get(offer.topology) if offer is not None else None

    def choose(
        self, ask: Ask, names: NamedNodes | None, near: Nearness | None = None, apart: Collection[str] = ()
    ) -> Placement:
        """The best of the named nodes (None: of all) for a pod that asks for GPUs of one pool; nothing is taken yet.

        ``near`` says where the pods of its gang are, ``apart`` which nodes have another replica of its service.
        """
        if near is not None and names is not None:
            placement = self._choose(ask, names, near, apart)
            return _with_unknown(placement, names.count - placement.choice.considered)
        if names is None or names.count == self._with_room(ask):
            # As many are named as have room by these books: the scheduler and we see the same nodes, and the others are
            # refused for the same reasons. The best of all is the best of those named, if it is among them.
            overall = self._choose(ask, None, apart=apart)
            if names is None or (overall.choice.node is not None and names.has(overall.choice.node)):
                return overall
        placement = self._choose(ask, names, apart=apart)
        return _with_unknown(placement, names.count - placement.choice.considered)

    def _with_room(self, ask: Ask) -> int:
        """How many nodes could take a pod, however their free GPUs lie; -1 where that is not one look."""
        pool = self.pools.get(ask.pool)
        if pool is None or ask.share_bytes:
            return -1
        refusal = pool.cache.outlook(pool.state, ask.request).refusal
        return int(np.count_nonzero((refusal == Refusal.NONE) & pool.state.ready))

    def _choose(
        self, ask: Ask, names: NamedNodes | None, near: Nearness | None = None, apart: Collection[str] = ()
    ) -> Placement:
        best = Placement("", Choice(ask.request, None))
        for pool in self._pools_for(ask):
            rows = pool.rows(names) if names is not None else np.flatnonzero(pool.state.ready)
            for request, candidates in self._requests(pool, ask, rows):
                choice = choose(
                    pool.state,
                    request,
                    candidates,
                    cache=pool.cache,
                    weights=self._weights,
                    topologies=self._topologies,
                    tiers=near.tiers(pool.state) if near is not None else None,
                    apart=tuple(pool.state.index[node] for node in apart if node in pool.state.index),
                )
                best = _better(best, Placement(pool.resource, choice))
        return best

    def refusals(self, ask: Ask, names: NamedNodes) -> dict[str, int]:
        """Why each of the named nodes cannot take a pod that none can take: `Refusal` codes as plain numbers."""
        refusals = dict.fromkeys(names.names, int(Refusal.NO_SUCH_NODE))
        for pool in self._pools_for(ask):
            for request, rows in self._requests(pool, ask, pool.rows(names)):
                codes = pool.cache.outlook(pool.state, request).refusal[rows]
                # A node that could take it was refused for how its free GPUs lie.
                codes = np.where(codes == Refusal.NONE, int(Refusal.TOPOLOGY), codes)
                refusals.update(zip(map(pool.state.names.__getitem__, rows.tolist()), codes.tolist(), strict=True))
        return refusals

    def plan(self, requests: Sequence[Ask], names: NamedNodes) -> tuple[Pool, Packing] | None:
        """Places for pods of one pool on the named nodes, all at once; None where shares depend on the GPU."""
        pool = self.pools.get(requests[0].pool)
        if pool is None or any(ask.share_bytes or ask.pool != requests[0].pool for ask in requests):
            return None
        return pool, pack(pool.state, [ask.request for ask in requests], cache=pool.cache, candidates=pool.rows(names))

    def choose_row(self, pool: Pool, ask: Ask, row: int) -> Placement:
        """The choice of one node, with what it scores."""
        return Placement(
            pool.resource,
            choose(
                pool.state,
                ask.request,
                np.array([row]),
                cache=pool.cache,
                weights=self._weights,
                topologies=self._topologies,
            ),
        )

    def reserve(self, uid: str, pod: Key, ask: Ask, placement: Placement, until_s: float) -> Holding:
        """Take what a choice names. Raises PlacementError, with nothing changed, where it is not there."""
        choice = placement.choice
        assert choice.node is not None, "nothing was chosen"
        pool = self.pools[placement.pool]
        allocate(pool.state, choice.node, choice.gpus, choice.request)
        holding = Holding(
            uid,
            pod,
            choice.node,
            ask,
            {placement.pool: choice.request},
            {placement.pool: choice.gpus},
            Stage.RESERVED,
            until_s,
        )
        for resource in self._nodes[choice.node].keys() - {placement.pool}:
            occupy(self.pools[resource].state, choice.node, (), _without_gpus(choice.request))
        self._book(holding)
        return holding

    def advance(self, uid: str, stage: Stage, until_s: float = FOREVER_S) -> None:
        """Note that a holding became more certain; it never becomes less so."""
        holding = self.holdings.get(uid)
        if holding is not None and holding.stage < stage:
            holding.stage, holding.until_s = stage, until_s

    def extend(self, uid: str, until_s: float) -> None:
        """Keep a holding for longer."""
        holding = self.holdings.get(uid)
        if holding is not None and holding.stage < Stage.BOUND:
            holding.until_s = until_s

    def bound(self, uid: str, pod: Key, node: str, ask: Ask, gpus: tuple[int, ...] | None) -> Holding:
        """A pod is on a node. ``gpus`` are the indexes its annotation names; without them, and without a reservation
        on that node, the first that have room are assumed to be its."""
        held = self.holdings.get(uid)
        if held is not None and held.node == node and (gpus is None or gpus == held.gpus) and held.ask == ask:
            self.advance(uid, Stage.BOUND)
            return held
        kept = held.slots if held is not None and held.node == node and gpus is None else {}
        self.release(uid)
        holding = Holding(uid, pod, node, ask, {}, kept, named=gpus)
        self._book(holding)
        for resource in self._nodes.get(node, {}):
            self._occupy(self.pools[resource], holding)
        return holding

    def release(self, uid: str) -> Holding | None:
        """Give back what a pod holds; None when it holds nothing."""
        holding = self.holdings.pop(uid, None)
        if holding is None:
            return None
        del self._on_node[holding.node][uid]
        if not self._on_node[holding.node]:
            del self._on_node[holding.node]
        for resource in self._nodes.get(holding.node, {}):
            request, slots = holding.part(resource)
            release(self.pools[resource].state, holding.node, slots, request)
        return holding

    def on_node(self, node: str) -> list[Holding]:
        """What pods hold of a node."""
        return list(self._on_node.get(node, {}).values())

    def reseat(self, uid: str) -> None:
        """Book what a pod holds on those GPUs of its node that have most room: those that it was booked on are
        another's."""
        held = self.release(uid)
        assert held is not None, "nothing is held"
        holding = Holding(uid, held.pod, held.node, held.ask, {}, {}, held.stage, held.until_s)
        self._book(holding)
        for resource in self._nodes.get(held.node, {}):
            self._occupy(self.pools[resource], holding)

    def expired(self, now_s: float) -> list[Holding]:
        """Holdings that were not confirmed in time; they go on being held until released."""
        return [holding for holding in self.holdings.values() if holding.until_s <= now_s]

    def unconfirmed(self) -> int:
        return sum(holding.stage < Stage.BOUND for holding in self.holdings.values())

    def assumed(self) -> int:
        """Pods whose Binding was sent and is not seen yet."""
        return sum(holding.stage is Stage.ASSUMED for holding in self.holdings.values())

    def _move(self, name: str, before: Mapping[str, FleetNode], offers: Mapping[str, FleetNode]) -> None:
        """Keep `inside`: where a node was, and where it is."""
        for change, levels in ((set.discard, before), (set.add, offers)):
            for domains in {offer.domains for offer in levels.values()}:
                for depth in range(1, len(domains) + 1):
                    change(self.inside.setdefault(domains[:depth], set()), name)
        for domains in {offer.domains for offer in before.values()}:
            for depth in range(1, len(domains) + 1):
                if not self.inside[domains[:depth]]:
                    del self.inside[domains[:depth]]

    def _annotated(self, offer: FleetNode) -> FleetNode:
        """The offer with what other objects say of its node."""
        make = self._make.get(offer.name, "")
        has_topology = make and len(self._links[make].gbps) == offer.gpus
        return replace(
            offer,
            topology=make if has_topology else "",
            health=self.complaints.score(offer.name),
            utilisation=self.history.get(offer.name),
            degraded=self.complaints.degraded(offer.name),
            poor=self.complaints.poor(offer.name, offer.gpus),
        )

    def _book(self, holding: Holding) -> None:
        self.holdings[holding.uid] = holding
        self._on_node.setdefault(holding.node, {})[holding.uid] = holding

    def _occupy(self, pool: Pool, holding: Holding) -> None:
        """Book what a pod holds of a resource: its slots, or as many others as there are where some are gone."""
        wanted = dict(self._shares(holding.node, holding.ask)).get(pool.resource)
        if wanted is not None:
            named = holding.slots.get(pool.resource, holding.named)
            slots = self._slots(pool, holding.node, wanted, named)
            holding.requests = {**holding.requests, pool.resource: _counting(wanted, len(slots))}
            holding.slots = {**holding.slots, pool.resource: slots}
        request, slots = holding.part(pool.resource)
        occupy(pool.state, holding.node, slots, request)

    def _pools_for(self, ask: Ask) -> Iterable[Pool]:
        if ask.pool == ANY_POOL:
            return [pool for name, pool in self.pools.items() if name.endswith("/gpu")]
        return [self.pools[ask.pool]] if ask.pool in self.pools else []

    def _requests(self, pool: Pool, ask: Ask, rows: Ints) -> Iterable[tuple[PodRequest, Ints]]:
        """The request, or one for each size of GPU memory where the share depends on it."""
        if not ask.share_bytes:
            return [(ask.request, rows)]
        sizes = pool.state.gpu_memory_bytes[rows]
        return [(_share_of(ask, int(size)), rows[sizes == size]) for size in np.unique(sizes)]

    def _shares(self, node: str, ask: Ask) -> list[tuple[str, PodRequest]]:
        """What a pod takes of each resource of a node."""
        if ask.units:
            return [(resource, _counting(ask.request, count)) for resource, count in ask.units.items()]
        if not ask.request.gpus.count:
            return []
        offers = self._nodes.get(node, {})
        resource = next((name for name in offers if name.endswith("/gpu")), "")
        if not resource:
            return []
        memory_bytes = int(offers[resource].gpu_memory_bytes)
        return [(resource, _share_of(ask, memory_bytes) if ask.share_bytes else ask.request)]

    def _slots(self, pool: Pool, node: str, request: PodRequest, named: tuple[int, ...] | None) -> tuple[int, ...]:
        """The named slots if they can be, else those with most room, or with least where shares are packed; the first
        among equal ones."""
        count = request.gpus.count
        if (
            named is not None
            and len(named) == count == len(set(named))
            and all(0 <= slot < pool.state.slots for slot in named)
        ):
            return named
        free = pool.state.gpu_free_milli[pool.state.index[node]]
        if self._packs and request.gpus.share < WHOLE_GPU and np.count_nonzero(free >= request.gpus.share) >= count:
            free = np.where(free >= request.gpus.share, WHOLE_GPU - free, -1)
        return tuple(sorted(int(slot) for slot in np.argsort(-free, kind="stable")[:count]))


def _without_gpus(request: PodRequest) -> PodRequest:
    return PodRequest(request.cpu_milli, request.memory_bytes)


def _counting(request: PodRequest, count: int) -> PodRequest:
    return request if request.gpus.count == count else replace(request, gpus=replace(request.gpus, count=count))


def _share_of(ask: Ask, memory_bytes: int) -> PodRequest:
    """The request on a GPU with this much memory; one with too little is refused for it."""
    gpus = ask.request.gpus
    if memory_bytes < ask.share_bytes:
        return replace(ask.request, gpus=replace(gpus, memory_bytes=max(gpus.memory_bytes, ask.share_bytes)))
    return replace(ask.request, gpus=replace(gpus, share=MilliGpu(-(-ask.share_bytes * WHOLE_GPU // memory_bytes))))


def _better(best: Placement, other: Placement) -> Placement:
    """The higher score of two placements; what both refused is counted together."""
    if not best.pool:
        return other
    first, second = best.choice, other.choice
    ahead = first.node is not None and (second.node is None or first.score >= second.score)
    winner, loser = (best, other) if ahead else (other, best)
    rejected = dict(winner.choice.rejected)
    for code, count in loser.choice.rejected.items():
        rejected[code] = rejected.get(code, 0) + count
    considered = first.considered + second.considered
    return Placement(winner.pool, replace(winner.choice, rejected=rejected, considered=considered))


def _with_unknown(placement: Placement, unknown: int) -> Placement:
    if unknown <= 0:
        return placement
    choice = placement.choice
    rejected = {**choice.rejected, Refusal.NO_SUCH_NODE: unknown}
    return Placement(placement.pool, replace(choice, rejected=rejected, considered=choice.considered + unknown))
