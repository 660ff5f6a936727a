"""Everything that decides whether a workload can start now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.diagnosis import Binding
from kopt.core.scheduling.placement import PodRequest
from kopt.core.scheduling.quota import Admitted, Demand, PodSetDemand, QueueRules
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.state import FleetState
from kopt.policies.quota import QuotaTree

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rule:
    """What keeps pods off nodes, however much is free there.

    ``excluded``: by row of the fleet, (rows,). ``flavors``: of Kueue, that it excludes. ``owned``: the workload's owner
    can drop it; a node that is not ready is nobody's to ignore. ``values``: what the rule would exclude, nodes and
    flavours, if it named another value that some node has.
    """

    code: Binding
    name: str
    excluded: Bools
    flavors: frozenset[str] = frozenset()
    owned: bool = True
    values: Mapping[str, tuple[Bools, frozenset[str]]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class NodeLimit:
    """Another resource of nodes, in any one unit: what a pod needs, what is free and what there is, both (rows,)."""

    resource: str
    wanted: int
    free: Ints
    total: Ints


@dataclass(frozen=True, eq=False)
class PodShape:
    """``count`` equal pods that have no node; they start if at least ``least`` of them find room together.

    ``resource``: the GPU resource that they request, empty for none.
    """

    name: str
    count: int
    least: int
    request: PodRequest
    resource: str = ""
    rules: tuple[Rule, ...] = ()
    limits: tuple[NodeLimit, ...] = ()


@dataclass(frozen=True)
class Ceiling:
    """What a queue of KAI's or Volcano's, or one above it, may use at most: milli-GPU."""

    queue: str
    limit: int
    used: int
    code: Binding = Binding.QUEUE_LIMIT


@dataclass(frozen=True, eq=False)
class KueueSide:
    """Quota as Kueue sees it for a workload that has none yet.

    ``flavor_rows``: the nodes of each flavour, (rows,). ``rank``: its position in the queue, from 1; ``strict``: what
    is ahead has to be admitted first (StrictFIFO). ``is_counted``: Kueue said what it charges, which is the demand.
    """

    queue: str
    demand: Demand
    rules: QueueRules
    tree: QuotaTree
    admitted: Sequence[Admitted]
    flavor_rows: Mapping[str, Bools] = field(default_factory=dict)
    rank: int = 1
    strict: bool = False
    ahead: tuple[str, ...] = ()
    is_counted: bool = False


@dataclass(frozen=True)
class RunningWorkload:
    """What has GPUs and will end. ``slots``: what each of its pods holds of the fleet, as (row, GPU indexes, request);
    ``milli_gpus`` of them all; ``queues``: those whose limits it counts against."""

    name: str
    slots: tuple[tuple[int, tuple[int, ...], PodRequest], ...] = ()
    milli_gpus: int = 0
    queues: tuple[str, ...] = ()
    terminating: bool = False
    preemptible: bool = True


class RunningColumns:
    """Running workloads as arrays by name, (workloads,); ``rows``: of the fleet, that of its first pod or -1."""

    def __init__(self, workloads: Sequence[RunningWorkload]) -> None:
        # They mostly come sorted.
        self.workloads = running = sorted(workloads, key=attrgetter("name"))
        self.names = [workload.name for workload in running]
        self.rows = np.array([workload.slots[0][0] if workload.slots else -1 for workload in running], np.int64)
        self.milli_gpus = np.array([workload.milli_gpus for workload in running], np.int64)
        self.terminating = np.array([workload.terminating for workload in running], np.bool_)
        self._slot_rows = np.array([row for workload in running for row, _, _ in workload.slots], np.int64)
        self._slots_of = np.repeat(np.arange(len(running)), [len(workload.slots) for workload in running])

    def on(self, rows: Bools) -> Bools:
        """Which have a pod on any of these rows of the fleet (rows,)."""
        result: Bools = np.zeros(len(self.names), np.bool_)
        result[self._slots_of[rows[self._slot_rows]]] = True
        return result


@dataclass(frozen=True, eq=False)
class Situation:
    """``fleet`` is None where nodes cannot be read, or play no part. ``queues`` are other queues that the workload
    could be submitted to, by name. Functions that change ``fleet`` or a tree for a while leave them as they were."""

    shapes: tuple[PodShape, ...]
    fleet: FleetState | None = None
    kueue: KueueSide | None = None
    ceilings: tuple[Ceiling, ...] = ()
    running: tuple[RunningWorkload, ...] = ()
    queues: Mapping[str, KueueSide] = field(default_factory=dict)
    held: tuple[Ints, Ints] | None = None
    """CPU and memory that ``running`` holds of each row, (rows,), where the caller has the sums."""
    columns: RunningColumns | None = None
    """Of ``running``, where the caller has them."""

    @cached_property
    def empty(self) -> FleetState | None:
        """The fleet when all that runs has ended."""
        if self.fleet is None:
            return None
        fleet = self.fleet.copy()
        cpu_milli, memory_bytes = self.held or held_by(self.running, fleet.rows)
        fleet.cpu_free_milli += cpu_milli
        fleet.memory_free_bytes += memory_bytes
        exists = np.arange(fleet.slots)[None, :] < fleet.gpu_count[:, None]
        fleet.gpu_free_milli[:] = np.where(exists, int(WHOLE_GPU), 0)
        return fleet

    def with_shape(self, index: int, shape: PodShape) -> "Situation":
        """The same with other pods; quota is asked for what these need."""
        shapes = (*self.shapes[:index], shape, *self.shapes[index + 1 :])
        sides = {name: _with_shape(side, index, shape) for name, side in self.queues.items()}
        kueue = None if self.kueue is None else _with_shape(self.kueue, index, shape)
        changed = replace(self, shapes=shapes, kueue=kueue, queues=sides)
        if "empty" in self.__dict__:
            changed.__dict__["empty"] = self.empty
        return changed


def held_by(running: Sequence[RunningWorkload], rows: int) -> tuple[Ints, Ints]:
    """CPU and memory that running workloads hold of each row, (rows,)."""
    cpu_milli, memory_bytes = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for workload in running:
        for row, _, request in workload.slots:
            cpu_milli[row] += request.cpu_milli
            memory_bytes[row] += request.memory_bytes
    return cpu_milli, memory_bytes


def _with_shape(side: KueueSide, index: int, shape: PodShape) -> KueueSide:
    demand = side.demand
    if index >= len(demand.pod_sets):
        return side
    before, excluded = demand.pod_sets[index], {name for rule in shape.rules for name in rule.flavors}
    amounts = {
        "pods": 1000 * shape.count,
        "cpu": shape.request.cpu_milli * shape.count,
        "memory": 1000 * shape.request.memory_bytes * shape.count,
        shape.resource: 1000 * shape.request.gpus.count * shape.count,
    }
    amounts |= {limit.resource: 1000 * limit.wanted * shape.count for limit in shape.limits}
    requests = {name: amounts.get(name, amount) for name, amount in before.requests.items()}
    flavors = frozenset(name for group in side.rules.groups for name in group.flavors) - excluded
    pod_sets = (*demand.pod_sets[:index], PodSetDemand(requests, flavors), *demand.pod_sets[index + 1 :])
    return replace(side, demand=replace(demand, pod_sets=pod_sets))
