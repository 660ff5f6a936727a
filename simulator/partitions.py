"""A stream of requests for partitions of a pool of GPUs: how many get one, and how much of the pool is used.

Poisson arrivals, exponential stays with a mean of 1, profiles drawn from a mix. The load is the mean of the compute
slices that are asked for at a time, over all that there are. A request that finds no room is gone; nothing waits.
"""

import heapq
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field

import numpy as np

from kopt.core.hardware.mig import MigGeometry
from kopt.policies.partitions.layouts import Instance, Layouts, layouts_of
from kopt.policies.partitions.moves import Move, MoveBudget, consolidate, is_worth_moves, make_room
from kopt.policies.partitions.placement import POLICIES, Placement, PlacementPolicy, Pool
from kopt.simulator.workers import worker_processes

REQUESTS = 20_000


@dataclass(frozen=True)
class PartitionStream:
    """``mix``: the share of requests by profile, in any unit. ``moves_per_request``: partitions that may be moved."""

    geometry: MigGeometry
    gpus: int
    mix: Mapping[str, float]
    load: float
    moves_per_request: float = 0.0
    requests: int = REQUESTS

    def __post_init__(self) -> None:
        """Raises MigError for a profile that the model lacks, ValueError for what cannot be."""
        for profile in self.mix:
            self.geometry.index(profile)
        if not self.mix or min(self.mix.values()) < 0 or sum(self.mix.values()) <= 0:
            raise ValueError("a mix needs a profile with a share above 0, and none below")
        if self.gpus < 1 or self.load <= 0 or self.moves_per_request < 0 or self.requests < 1:
            raise ValueError("GPUs, load and requests must be positive, and moves not negative")

    def draw(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(profiles, arrivals, stays), each (requests,); times in mean stays."""
        rng = np.random.default_rng(seed)
        numbers = [self.geometry.index(name) for name in self.mix]
        shares = np.array(list(self.mix.values()), dtype=float)
        shares /= shares.sum()
        slices = np.array([self.geometry.profiles[number].compute_slices for number in numbers])
        rate = self.load * self.gpus * self.geometry.compute_slices / float(slices @ shares)
        profiles = rng.choice(numbers, size=self.requests, p=shares)
        return profiles, np.cumsum(rng.exponential(1 / rate, self.requests)), rng.exponential(1.0, self.requests)


@dataclass(frozen=True)
class PartitionRun:
    """Shares of requests that were accepted and of compute slices that were used, over time; moves per request."""

    policy: str
    seed: int
    accepted: float
    slices_used: float
    moves_per_request: float


@dataclass
class _Pool:
    """What lies where. ``homes``: GPU and instance of each request that is in a partition."""

    layouts: Layouts
    numbers: Pool
    homes: dict[int, tuple[int, Instance]] = field(default_factory=dict)
    used: int = 0

    def put(self, request: int, profile: int, placement: Placement) -> None:
        self.numbers[placement.gpu] = placement.layout
        self.homes[request] = placement.gpu, (profile, placement.start)
        self.used += self.layouts.geometry.profiles[profile].compute_slices

    def drop(self, request: int) -> None:
        gpu, instance = self.homes.pop(request)
        self.numbers[gpu] = self.layouts.without(int(self.numbers[gpu]), instance)
        self.used -= self.layouts.geometry.profiles[instance[0]].compute_slices

    def move(self, move: Move) -> None:
        """Names where a request lies now; the layouts are set by the caller."""
        home = move.source, move.instance
        request = next(request for request, at in self.homes.items() if at == home)
        self.homes[request] = move.target, (move.instance[0], move.start)


def replay(stream: PartitionStream, policy_name: str, seed: int) -> PartitionRun:
    """One policy over one draw of the stream."""
    layouts = layouts_of(stream.geometry)
    policy, pool = POLICIES[policy_name](layouts), _Pool(layouts, np.zeros(stream.gpus, dtype=np.int64))
    budget = MoveBudget(stream.moves_per_request)
    departures: list[tuple[float, int]] = []
    accepted = moves = 0
    now = slice_time = 0.0
    profiles, arrivals, stays = stream.draw(seed)
    for request, (profile, at, stay) in enumerate(zip(profiles.tolist(), arrivals, stays, strict=True)):
        while departures and departures[0][0] <= at:
            until, departed = heapq.heappop(departures)
            slice_time += pool.used * (until - now)
            now = until
            pool.drop(departed)
        slice_time += pool.used * (at - now)
        now = at
        policy.observe(profile)
        budget.grow()
        moves += _consolidate(policy, pool, budget)
        placement, moved = _accept(policy, pool, profile, budget)
        moves += moved
        if placement is not None:
            pool.put(request, profile, placement)
            accepted += 1
            heapq.heappush(departures, (at + stay, request))
    slices = stream.gpus * stream.geometry.compute_slices
    return PartitionRun(
        policy_name, seed, accepted / stream.requests, slice_time / now / slices, moves / stream.requests
    )


def _consolidate(policy: PlacementPolicy, pool: _Pool, budget: MoveBudget) -> int:
    if budget.for_fragmentation < 1 or (better := consolidate(policy, pool.numbers)) is None:
        return 0
    move, pool.numbers = better
    pool.move(move)
    budget.saved -= 1
    return 1


def _accept(policy: PlacementPolicy, pool: _Pool, profile: int, budget: MoveBudget) -> tuple[Placement | None, int]:
    """Where a request goes, and how many partitions moved for it."""
    placement = policy.placement(profile, pool.numbers)
    if placement is not None or budget.for_requests < 1 or not is_worth_moves(policy.layouts, profile):
        return placement, 0
    relocation = make_room(policy, profile, pool.numbers, budget.for_requests)
    if relocation is None:
        return None, 0
    pool.numbers = relocation.pool
    for move in relocation.moves:
        pool.move(move)
    budget.saved -= len(relocation.moves)
    return relocation.placement, len(relocation.moves)


def replay_all(
    stream: PartitionStream,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: int | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[PartitionRun]:
    """Every policy over every seed, in this order, in so many processes (default: one per core)."""
    jobs = [(policy, seed) for policy in policies for seed in seeds]
    with worker_processes(min(workers or os.cpu_count() or 1, len(jobs))) as pool:
        futures = [pool.submit(replay, stream, policy, seed) for policy, seed in jobs]
        for done, _ in enumerate(as_completed(futures), 1):
            advance(done, len(jobs))
        return [future.result() for future in futures]
