"""How well a node's free GPUs satisfy a pod's topology preference, and which of them to use.

The links come as one `GpuLinks` per make of node. Nodes of one make with the same GPUs free are interchangeable, so
each such pattern is evaluated once and cached.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.bandwidth import BandwidthMinimum
from kopt.core.scheduling.placement import PodRequest, TopologyPreference
from kopt.policies.placement.state import FleetState
from kopt.topology.graph import Machine
from kopt.topology.set_links import Way, gpu_set
from kopt.topology.sets.within_node import choose_gpus, reaches

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_MOST_SETS = 20_000
_MOST_SLOTS = 48


@dataclass(frozen=True)
class GpuLinks:
    """One make of node: ``gbps[a][b]`` of the direct link between two GPU slots (0: none), and the PCIe ``switch`` and
    ``numa`` node of each slot. Raises ValueError where these do not fit together.
    """

    gbps: tuple[tuple[float, ...], ...]
    switch: tuple[int, ...]
    numa: tuple[int, ...]
    machine: Machine | None = field(default=None, compare=False, repr=False)
    """For predictions of bandwidth; its GPUs in ascending order are the slots."""

    def __post_init__(self) -> None:
        count = len(self.gbps)
        square = all(len(row) == count for row in self.gbps)
        if not square or len(self.switch) != count or len(self.numa) != count:
            raise ValueError(f"links of {count} GPUs need a square table, and a switch and a NUMA node for each")
        if any(not math.isfinite(value) or value < 0 for row in self.gbps for value in row):
            raise ValueError("a link's speed must be finite and not negative")

    @property
    def fastest(self) -> float:
        return max((value for row in self.gbps for value in row), default=0.0)


@dataclass(frozen=True)
class Fit:
    """The best GPUs of a pattern: how well they satisfy the preference (0-1), their slots (empty if there are none),
    and whether they reach the requested bandwidth."""

    quality: float
    slots: tuple[int, ...] = ()
    reaches: bool = True


@dataclass
class Topologies:
    """Links by the name in ``FleetNode.topology``; the caller keeps it. Unknown names rank as 0."""

    links: Mapping[str, GpuLinks] = field(default_factory=dict)
    _by_pattern: dict[tuple[str, int, int, TopologyPreference, BandwidthMinimum | None], Fit] = field(
        default_factory=dict
    )

    def rate(self, state: FleetState, request: PodRequest, rows: Ints) -> Floats:
        """Quality of the best free GPUs on each of ``rows``, shape (rows,)."""
        fits, index = self._fits(state, request, rows)
        rated: Floats = np.array([fit.quality for fit in fits])[index]
        return rated

    def reach(self, state: FleetState, request: PodRequest, rows: Ints) -> NDArray[np.bool_]:
        """Whether the best free GPUs on each of ``rows`` reach the requested bandwidth. Rows with unknown links count
        as reaching it unless the request requires its topology."""
        fits, index = self._fits(state, request, rows)
        array: NDArray[np.bool_] = np.array([fit.reaches for fit in fits], np.bool_)[index]
        return array

    def _fits(self, state: FleetState, request: PodRequest, rows: Ints) -> tuple[list[Fit], Ints]:
        """The fits of the patterns among ``rows``, and the index of each row's pattern."""
        if state.slots > _MOST_SLOTS:
            return [_unknown(request)], np.zeros(len(rows), np.int64)
        free = state.gpu_free_milli[rows] >= request.gpus.share
        masks = free @ (np.int64(1) << np.arange(state.slots, dtype=np.int64))
        patterns, index = np.unique(masks * (len(state.topologies) + 1) + state.topology[rows] + 1, return_inverse=True)
        return [self._pattern(state, request, int(pattern)) for pattern in patterns], index

    def slots(self, state: FleetState, request: PodRequest, row: int) -> tuple[int, ...]:
        """The best free GPUs of one node; empty if its links are unknown."""
        if state.slots > _MOST_SLOTS:
            return ()
        free = np.flatnonzero(state.gpu_free_milli[row] >= request.gpus.share)
        mask = sum(1 << int(slot) for slot in free)
        code = int(state.topology[row])
        return self._pattern(state, request, mask * (len(state.topologies) + 1) + code + 1).slots

    def _pattern(self, state: FleetState, request: PodRequest, pattern: int) -> Fit:
        mask, code = divmod(pattern, len(state.topologies) + 1)
        name = state.topologies[code - 1] if code else ""
        key = (name, mask, request.gpus.count, request.topology, request.minimum)
        if key not in self._by_pattern:
            links = self.links.get(name)
            if links is None:
                return _unknown(request)
            else:
                self._by_pattern[key] = best_set(links, mask, request.gpus.count, request.topology, request.minimum)
        return self._by_pattern[key]


def _unknown(request: PodRequest) -> Fit:
    return Fit(0.0, reaches=request.minimum is None or not request.topology_required)


def best_set(
    links: GpuLinks, mask: int, count: int, preference: TopologyPreference, minimum: BandwidthMinimum | None = None
) -> Fit:
    """The ``count`` GPUs among the free ones (bits of ``mask``) that satisfy the preference best.

    With known links, NVLinkOptimal, and Any with a minimum, use the set with the fastest all-reduce
    (``topology.sets``). Otherwise ties are broken by the total speed of links, then the first set wins; up to twenty
    thousand sets are compared.
    """
    free = [slot for slot in range(len(links.gbps)) if mask >> slot & 1]
    by_speed = preference is TopologyPreference.NVLINK_OPTIMAL or (preference is TopologyPreference.ANY and minimum)
    if by_speed and links.machine is not None and count > 1:
        fit = _fastest(links.machine, free, count)
        fit = replace(fit, quality=1.0) if preference is TopologyPreference.ANY and fit.slots else fit
    else:
        sets = islice(combinations(free, count), _MOST_SETS)
        ranked = ((quality(links, subset, preference), _total(links, subset), subset) for subset in sets)
        best = max(ranked, key=lambda item: item[:2], default=None)
        fit = Fit(0.0) if best is None else Fit(best[0], best[2])
    return fit if minimum is None or count < 2 else replace(fit, reaches=_reaches(links, fit, minimum))


def _reaches(links: GpuLinks, fit: Fit, minimum: BandwidthMinimum) -> bool:
    if links.machine is None or not fit.slots:
        return False
    return reaches(links.machine, [links.machine.node.gpus[slot] for slot in fit.slots], minimum)


def _fastest(machine: Machine, free: Sequence[int], count: int) -> Fit:
    """By bandwidth relative to the best set of an empty node; 0 if the GPUs' own links close no ring."""
    gpus = machine.node.gpus
    choice = choose_gpus(machine, [gpus[slot] for slot in free], count)
    best = choose_gpus(machine, gpus, count)
    if choice is None or best is None:
        return Fit(0.0)
    joined = gpu_set(machine, choice.gpus).way is not Way.PCIE
    slots = tuple(gpus.index(gpu) for gpu in choice.gpus)
    return Fit(min(1.0, choice.gbps / best.gbps) if joined else 0.0, slots)


def quality(links: GpuLinks, slots: tuple[int, ...], preference: TopologyPreference) -> float:
    """How well a set of GPUs satisfies the preference, 0 (not at all) to 1 (fully)."""
    count = len(slots)
    if count < 2 or preference is TopologyPreference.ANY:
        return 1.0
    if preference is TopologyPreference.NVLINK_OPTIMAL:
        slowest = min(links.gbps[a][b] for a, b in combinations(slots, 2))
        return slowest / links.fastest if links.fastest else 0.0
    group_of = links.switch if preference is TopologyPreference.SAME_SWITCH else links.numa
    where = [group_of[slot] for slot in slots]
    if preference is TopologyPreference.SPREAD:
        return (len(set(where)) - 1) / max(1, min(count, len(set(group_of))) - 1)
    return (max(where.count(number) for number in where) - 1) / (count - 1)


def satisfies(preference: TopologyPreference, rated: Floats) -> NDArray[np.bool_]:
    """Whether a required preference is satisfied. NVLink: the GPUs' own links join them all; the others: fully."""
    if preference is TopologyPreference.ANY:
        return np.ones(len(rated), dtype=np.bool_)
    return rated > 0 if preference is TopologyPreference.NVLINK_OPTIMAL else rated >= 1


def _total(links: GpuLinks, slots: tuple[int, ...]) -> float:
    return sum(links.gbps[a][b] for a, b in combinations(slots, 2))
