"""A node's wires as tables over its GPUs, made once per node: many sets of them are looked up at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kopt.topology.graph import Device, DeviceGraph, DeviceKind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Members = NDArray[np.bool_]
"""Sets of GPUs, shape (sets, GPUs): is the GPU in the set?"""
LINKED, BRIDGED, SAME_NUMA, ACROSS = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class LinkTable:
    """Rows and columns are the GPUs in ascending order."""

    gpus: tuple[int, ...]
    gbps: Floats
    """GB/s per direction of the direct links of a pair."""
    switched: Floats
    """GB/s per direction from each GPU into link switches, 0 without."""
    far: Ints
    """How far apart two are: under one bridge, under one NUMA node, from one to another."""
    hops: Ints
    """The same with links, which are nearer than all."""
    numa: Ints
    """A number of each GPU's NUMA node."""
    bus: Ints
    """A number of how fast each GPU's way up to there is."""
    twin: Ints
    """A number of each GPU's class of twins: GPUs that may be swapped without changing anything."""

    def members(self, sets: Sequence[Sequence[int]]) -> Members:
        """Sets of GPUs by their indexes."""
        row_of = {gpu: n for n, gpu in enumerate(self.gpus)}
        array = np.zeros((len(sets), len(self.gpus)), np.bool_)
        for row, item in enumerate(sets):
            array[row, [row_of[gpu] for gpu in item]] = True
        return array

    def degrees(self, members: Members) -> Floats:
        """GB/s of each GPU's links to those of the set, shape (sets, GPUs)."""
        array: Floats = members @ self.gbps
        return array


_made: "WeakKeyDictionary[DeviceGraph, LinkTable]" = WeakKeyDictionary()


def table_of(graph: DeviceGraph) -> LinkTable:
    """The node's table, made when it is first asked for."""
    if graph not in _made:
        _made[graph] = _read(graph)
    return _made[graph]


def _read(graph: DeviceGraph) -> LinkTable:
    gpus = tuple(sorted(graph.gpus))
    gbps = np.array([[graph.between.get((a, b), 0.0) for b in gpus] for a in gpus])
    switched = np.array([graph.switched.get(gpu, 0.0) for gpu in gpus])
    ways = [graph.way_up(Device(DeviceKind.GPU, gpu))[1:] for gpu in gpus]
    bridges = [{device for device in way if device.kind is DeviceKind.PCIE_SWITCH} for way in ways]
    under = np.array([[not set(devices).isdisjoint(other) for other in ways] for devices in ways])
    bridged = np.array([[not bridge.isdisjoint(other) for other in bridges] for bridge in bridges])
    linked = (gbps > 0) | ((switched > 0)[:, None] & (switched > 0))
    far = np.where(bridged, BRIDGED, np.where(under, SAME_NUMA, ACROSS)).astype(np.int64)
    hops = np.where(linked, LINKED, far)
    numa = _numbered([way[-1] if way else None for way in ways])
    above = _numbered([tuple(way) for way in ways])
    bus = _numbered([_speeds(graph, gpu) for gpu in gpus])
    return LinkTable(gpus, gbps, switched, far, hops, numa, bus, _twins(gbps, switched, above, bus))


def _speeds(graph: DeviceGraph, gpu: int) -> tuple[float, ...]:
    way = graph.way_up(Device(DeviceKind.GPU, gpu))
    return tuple(graph.parents[device].total_gbps for device in way[:-1])


def _numbered(things: Sequence[object]) -> Ints:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(thing, len(numbers)) for thing in things], np.int64)


def _twins(gbps: Floats, switched: Floats, above: Ints, bus: Ints) -> Ints:
    """Two are twins when they hang on the same bridge and have the same links to all the others. Being twins is
    transitive, as swaps are."""
    # A pair that is linked differs in what it says of itself: a link to the other, none to oneself.
    differ = (gbps[:, None, :] != gbps[None, :, :]).sum(axis=2) - 2 * (gbps != 0)
    alike = (differ == 0) & (switched[:, None] == switched) & (above[:, None] == above) & (bus[:, None] == bus)
    return np.unique(alike.argmax(axis=1), return_inverse=True)[1].astype(np.int64)
