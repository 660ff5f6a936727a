"""Where the pods of gangs are, and where the next one of each should be."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kopt.cluster.workloads.placement.gang_membership import Membership
from kopt.cluster.workloads.placement.pod_state import PodState
from kopt.controllers.extender.node_list import NodeNames
from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.fleet import Fleet
from kopt.policies.placement.pool import Pool
from kopt.policies.placement.state import FleetState
from kopt.topology.sets.across_nodes import Domain, shared
from kopt.topology.sets.gangs import GangOffer, Home, choose_home

Tiers = NDArray[np.int8]
Gang = tuple[str, str]
_SLOW = 64
"""Tiers that a node is put back that was slow with one where the gang has a pod."""
_DEEPEST = 16


@dataclass(frozen=True)
class Near:
    """The nodes where a pod of a gang should be: planned ones, else those that share the most levels with them."""

    home: Home
    pods: int
    placed: tuple[str, ...]
    inside: Mapping[Domain, AbstractSet[str]]
    slow: Mapping[str, float]

    def tiers(self, state: FleetState) -> Tiers:
        """Of every row, 0 for a planned node, one more for each level that is not shared."""
        domain = self.home.domain[:_DEEPEST]
        array = np.full(state.rows, 1 + len(domain), np.int8)
        for depth in range(1, len(domain) + 1):
            array[_rows(state, self.inside.get(domain[:depth], ()))] = 1 + len(domain) - depth
        array[_rows(state, (*self.home.nodes, *self.placed))] = 0
        array[_rows(state, self.slow)] += _SLOW
        return array

    def reason(self, gang: Gang, node: str, domains: Domain) -> Reason:
        """Where the gang is, and whether the pod's node is there as well."""
        home = self.home
        name, where = gang[1].rpartition("=")[2], "/".join(home.domain) or "the cluster"
        numbers: dict[str, float | int | str] = {"gang": name, "pods": self.pods, "placed": len(self.placed)}
        numbers |= {"gigabytes_per_s": home.gbps} if home.gbps else {}
        numbers |= {"busy_nodes": home.busy_nodes} if home.busy_nodes else {}
        if node not in home.nodes and home.domain != domains[: len(home.domain)]:
            away = f"Gang {name} is in {where}, where no node has room for this pod; it goes to {_in(node, domains)}."
            return Reason("GANG_AWAY", away, numbers)
        if len(home.nodes) == 1:
            where = f"node {home.nodes[0]}"
        speed = f", {home.gbps:.3g} GB/s predicted" if home.gbps else ""
        wider = f"; further apart they would reach {home.wider_gbps:.3g}" if home.wider_gbps else ""
        beside = f"; {len(self.placed)} of them are placed" if self.placed else ""
        holds = f"{where} holds all {self.pods} pods{speed}{wider}"
        if home.pods < self.pods:
            holds = (
                f"no group of nodes has room for all {self.pods} pods; they are placed as close together as possible"
            )
        counted = f"; other jobs' traffic on {home.busy_nodes} node(s) was counted" if home.busy_nodes else ""
        return Reason("GANG_TOGETHER", f"Gang {name}: {holds}{counted}{beside}.", numbers)


class Gangs:
    """Pods of gangs by gang, and the home of each gang that has one."""

    def __init__(self, fleet: Fleet, now: Callable[[], float] = time.time) -> None:
        self._fleet, self._now = fleet, now
        self._pods: dict[Gang, dict[str, PodState]] = {}
        self._homes: dict[Gang, Home] = {}

    def saw(self, member: PodState) -> None:
        """Keep a pod that is there."""
        if member.membership is not None:
            self._pods.setdefault(member.membership.gang, {})[member.uid] = member

    def forget(self, member: PodState) -> None:
        """A pod is gone; with the last one of a gang its home is."""
        gang = member.membership.gang if member.membership is not None else None
        pods = self._pods.get(gang) if gang is not None else None
        if gang is None or pods is None:
            return
        pods.pop(member.uid, None)
        if not pods:
            del self._pods[gang]
            self._homes.pop(gang, None)

    def unplaced(self, member: PodState) -> list[PodState]:
        """The other pods of a pod's gang that ask for the same and hold nothing, those that may go where it may."""
        gang = member.membership.gang if member.membership is not None else ("", "")
        return [
            pod
            for pod in self._pods.get(gang, {}).values()
            if pod.uid != member.uid
            and pod.kin == member.kin != 0
            and not pod.node
            and pod.ask == member.ask
            and pod.uid not in self._fleet.holdings
        ]

    def near(self, member: PodState, names: NodeNames) -> Near | None:
        """Where a pod should be; None for one without a gang, and for the only one of its gang."""
        membership = member.membership
        if membership is None or member.ask.pool not in self._fleet.pools:
            return None
        placed = self._placed(membership.gang, member.uid)
        pods = max(membership.pods, len(self._pods.get(membership.gang, {}).keys() | {member.uid}))
        if pods < 2:
            return None
        home = self._home(member, membership, pods, placed, names)
        slow = {other: gbps for node in set(placed) for other, gbps in self._fleet.complaints.slow_with(node).items()}
        return Near(home, pods, placed, self._fleet.inside, slow)

    def _placed(self, gang: Gang, but: str) -> tuple[str, ...]:
        holdings = self._fleet.holdings
        return tuple(holdings[uid].node for uid in self._pods.get(gang, {}) if uid != but and uid in holdings)

    def _home(
        self, member: PodState, membership: Membership, pods: int, placed: tuple[str, ...], names: NodeNames
    ) -> Home:
        """The gang's home; chosen anew when it has no pod placed, and when it has more pods than it was chosen for."""
        held = self._homes.get(membership.gang)
        if held is not None and placed and held.pods >= pods:
            return held
        offers, each = list(self._offers(member, names)), member.ask.request.gpus.count
        well = [offer for offer in offers if not self._fleet.complaints.degraded(offer.name)]
        near = shared([self._fleet.domains(node) for node in placed]) if placed else None
        wanted, slow = max(1, pods - len(placed)), self._fleet.complaints.slow_bandwidths()
        home = choose_home(well, wanted, each, slow, near) or choose_home(offers, wanted, each, slow, near)
        busy = sum(offer.machine is not None and bool(offer.machine.card_shares) for offer in offers)
        home = replace(home, busy_nodes=busy) if home is not None else None
        if home is None:
            # Not all of them find room: together as long as there is some, then wherever.
            home = Home(near or (), placed, len(placed))
        elif near is not None:
            nodes = tuple(dict.fromkeys((*placed, *home.nodes)))
            home = Home(shared([near, home.domain]), nodes, pods)
        self._homes[membership.gang] = home
        return home

    def _offers(self, member: PodState, names: NodeNames) -> Iterator[GangOffer]:
        """The named nodes with room for a pod, and the GPUs that pods of the gang could have there."""
        pool, request = self._fleet.pools[member.ask.pool], member.ask.request
        rows = pool.rows(names)
        fits = rows[pool.cache.outlook(pool.state, request).refusal[rows] == Refusal.NONE]
        for row in fits.tolist():
            name = pool.state.names[row]
            machine = self._fleet.machine(name, pool.resource, self._now())
            free = np.flatnonzero(pool.state.gpu_free_milli[row] >= WHOLE_GPU).tolist()
            most = _most_pods(pool, row, member) * request.gpus.count
            yield GangOffer(name, tuple(free[:most]), self._fleet.domains(name), machine)


def _most_pods(pool: Pool, row: int, member: PodState) -> int:
    """How many such pods a node has CPU and memory for."""
    request, state = member.ask.request, pool.state
    by_cpu = int(state.cpu_free_milli[row]) // request.cpu_milli if request.cpu_milli else state.slots
    by_memory = int(state.memory_free_bytes[row]) // request.memory_bytes if request.memory_bytes else state.slots
    return min(by_cpu, by_memory, state.slots)


def _rows(state: FleetState, names: Iterable[str]) -> NDArray[np.int64]:
    return np.array([state.index[name] for name in names if name in state.index], np.int64)


def _in(node: str, domains: Domain) -> str:
    return f"{node} in {'/'.join(domains)}" if domains else node
