"""The best set of a node by what the analytic layer says of a collective on it; what was worked out is kept."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from weakref import WeakKeyDictionary

from kopt.core.hardware.bandwidth import BandwidthKind, BandwidthMinimum, Collective
from kopt.topology.collective_cost import analytic
from kopt.topology.graph import Machine
from kopt.topology.set_links import GpuSet, Way, gpu_set
from kopt.topology.sets.best import SetChoice, best_set
from kopt.topology.sets.candidates import Limit
from kopt.topology.sets.link_table import table_of
from kopt.topology.sets.symmetry import canonical

GIB = 2**30
_MOST_CHOICES, _MOST_LIMITS = 4096, 64
_Question = tuple[tuple[int, ...], int, Collective, int]
_choices: "WeakKeyDictionary[Machine, dict[_Question, SetChoice | None]]" = WeakKeyDictionary()
_values: "WeakKeyDictionary[Machine, dict[_Question, float]]" = WeakKeyDictionary()
"""Of sets of one node: whatever is free, they are the same sets."""
_limits: "WeakKeyDictionary[Machine, dict[tuple[int, Collective, int], Limit | None]]" = WeakKeyDictionary()


def choose_gpus(
    machine: Machine, free: Sequence[int], count: int, kind: Collective = Collective.ALL_REDUCE, size_bytes: int = GIB
) -> SetChoice | None:
    """The best ``count`` of the ``free`` GPUs of one node for a collective; None where there are not so many.

    ``gbps`` of the answer is bus bandwidth. Free GPUs that lie as others did, turned or mirrored, are not asked again.
    Raises ValueError as ``best_set`` does.
    """
    table = table_of(machine.node)
    like, back = canonical(table, free)
    choices = _choices.setdefault(machine, {})
    question = (like, count, kind, size_bytes)
    if question not in choices:
        if len(choices) >= _MOST_CHOICES:
            choices.clear()
        values, limit = _values.setdefault(machine, {}), limit_of(machine, count, kind, size_bytes)
        if len(values) >= _MOST_CHOICES:
            values.clear()

        def value(gpus: tuple[int, ...]) -> float:
            key = (gpus, 1, kind, size_bytes)
            result = values.get(key)
            if result is None:
                result = values[key] = bus_gbps(machine, gpus, kind=kind, size_bytes=size_bytes)
            return result

        choices[question] = best_set(machine.node, like, count, value, limit)
    choice = choices[question]
    return choice and replace(choice, gpus=tuple(sorted(back[gpu] for gpu in choice.gpus)))


def limit_of(machine: Machine, count: int, kind: Collective, size_bytes: int) -> Limit | None:
    """What ``count`` GPUs reach at most, by the links of the GPU that has fewest; None where switches join them."""
    limits = _limits.setdefault(machine, {})
    question = (count, kind, size_bytes)
    if question not in limits:
        if len(limits) >= _MOST_LIMITS:
            limits.clear()
        limits[question] = _limit(machine, *question)
    return limits[question]


def _limit(machine: Machine, count: int, kind: Collective, size_bytes: int) -> Limit | None:
    node, software, gpu = machine.node, machine.software, machine.node.gpu
    if node.switched or count < 2:
        return None
    bus = max((edge.total_gbps for edge in node.parents.values()), default=0.0)

    def imagined(way: Way, gbps: float) -> float:
        """Of GPUs whose wires carry so much, whatever is asked of them."""
        gpus = GpuSet(gpu, way, count, 1, gbps, gbps, gbps, False, None, 0.0, 0.0, software)
        return _gbps(gpus, kind, size_bytes)

    @lru_cache(maxsize=256)
    def linked(degree: float) -> float:
        # Links that are alike to one hundredth are taken for equal.
        return imagined(Way.MESH, 1.01 * degree + 0.001)

    return Limit(linked, imagined(Way.PCIE, max(bus, gpu.pcie_gbps)))


def bus_gbps(
    machine: Machine,
    gpus: Sequence[int],
    nodes: int = 1,
    *,
    kind: Collective = Collective.ALL_REDUCE,
    size_bytes: int = GIB,
) -> float:
    """GB/s of bus bandwidth of a collective on these GPUs of each of ``nodes`` nodes; 0 where no network is known.

    One rank alone waits for nobody and has its memory's.
    """
    ranks = len(gpus) * nodes
    if nodes > 1 and machine.network is None:
        return 0.0
    if ranks < 2:
        return machine.node.gpu.memory_gbps or 1.0
    return _gbps(gpu_set(machine, gpus, nodes), kind, size_bytes)


def _gbps(gpus: GpuSet, kind: Collective, size_bytes: int) -> float:
    return size_bytes / analytic(gpus, kind, size_bytes).latency_us / 1e3 * kind.bus_factor(gpus.ranks)


def reaches(machine: Machine, gpus: Sequence[int], minimum: BandwidthMinimum) -> bool:
    """Whether a set of two GPUs or more reaches what is asked for."""
    if minimum.kind is BandwidthKind.LINK:
        return 2 * link_gbps(machine, gpus) >= minimum.gigabytes_per_s
    reached = bus_gbps(machine, gpus)
    if minimum.kind is BandwidthKind.ALGORITHM:
        reached /= Collective.ALL_REDUCE.bus_factor(len(gpus))
    return reached >= minimum.gigabytes_per_s


def link_gbps(machine: Machine, gpus: Sequence[int]) -> float:
    """GB/s per direction by the specification of a GPU's links to the others of the set, or of its bus; the least."""
    if len(gpus) < 2:
        return 0.0
    return gpu_set(machine, gpus).ring_gbps
