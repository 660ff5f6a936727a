"""Groups machines of a cluster by hardware, and picks the measured points that calibrate each group."""

import copy
import hashlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.core.hardware.bandwidth import BandwidthError, Collective
from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint
from kopt.models.bandwidth.predictor import BandwidthPredictor, BandwidthQuestion
from kopt.serving.pairwise.table import KeptMeasurements, KeptNode
from kopt.topology.from_node import machine_from
from kopt.topology.graph import Machine
from kopt.topology.networks import software_of
from kopt.topology.set_links import gpu_set

_MOST_KINDS = 6
"""Of (collective, GPUs per node) that calibrate, those of most pairs."""
_MOST_SIZES = 8
"""Sizes of each: with ``_MOST_KINDS`` well below ``calibration.MOST``."""


@dataclass(frozen=True)
class Point:
    """The median of what healthy pairs took."""

    collective: Collective
    gpus_per_node: int
    bytes: int
    latency_us: float


@dataclass(frozen=True)
class Points:
    """``pair_count`` is how many pairs were used, ``software`` what the newest of them ran."""

    points: tuple[Point, ...] = ()
    pair_count: int = 0
    software: str = ""


def likeness(machine: Machine) -> str:
    """A key of the hardware: GPU model and count, links, cards; without addresses and names of cards."""
    node, network = machine.node, machine.network
    if len(node.gpus) > 1:
        whole = gpu_set(machine, node.gpus)
        links: tuple[object, ...] = (whole.way.value, round(whole.ring_gbps, 1), round(whole.spread_gbps, 1))
    else:
        links = ()
    # A tool says "NVIDIA H100 80GB HBM3" and a person "H100": what the catalogue knows of them is the same.
    gpus = (replace(node.gpu, name="" if node.gpu.known else node.gpu.name), len(node.gpus))
    cards = (round(network.total_gbps, 1), round(network.card_gbps, 1)) if network is not None else None
    return hashlib.sha256(repr((gpus, links, cards)).encode()).hexdigest()[:12]


def with_software(machine: Machine, software: str) -> Machine:
    """The machine with this communication library, on its own network."""
    if not software:
        return machine
    profile = software_of(software, "", machine.network)
    return replace(machine, software=replace(profile, transport=machine.software.transport))


class Machines:
    """The machine of every node whose topology is known; nodes of the same hardware share one object."""

    def __init__(self, nodes: Mapping[str, KeptNode]) -> None:
        self.of: dict[str, str] = {}
        self.alike: dict[str, Machine] = {}
        for name, node in nodes.items():
            machine = _machine(node.topology)
            if machine is not None:
                self.of[name] = likeness(machine)
                self.alike.setdefault(self.of[name], machine)


def _machine(document: str | None) -> Machine | None:
    """None for what is no node with GPUs."""
    if document is None:
        return None
    try:
        return machine_from(NodeTopology.from_dict(json.loads(document)))
    except (TopologyError, ValueError, RecursionError):
        return None


def points_of(kept: KeptMeasurements, alike: str, machines: Machines) -> Points:
    """Of healthy pairs whose nodes both are ``alike``: per collective and GPUs a few sizes, each with its median, so
    that a pair that is slow and was not noticed moves it little."""
    sound = [
        pair
        for pair in kept.measurements
        if pair.health is Health.HEALTHY and all(machines.of.get(name) == alike for name in pair.nodes)
    ]
    if not sound:
        return Points()
    kinds: dict[tuple[Collective, int], list[MeasuredPair]] = defaultdict(list)
    for measured_pair in sound:
        kinds[measured_pair.collective, measured_pair.gpus_per_node].append(measured_pair)
    most = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))[:_MOST_KINDS]
    points = [point for (kind, gpus), measured in most for point in _medians(kind, gpus, measured)]
    newest = max(sound, key=lambda measured_pair: measured_pair.measured_at)
    return Points(tuple(points), len({measured_pair.nodes for measured_pair in sound}), newest.software)


def _medians(kind: Collective, gpus: int, measured: Sequence[MeasuredPair]) -> Iterator[Point]:
    times: dict[int, list[float]] = defaultdict(list)
    for pair in measured:
        for point in pair.points:
            if point.latency_us > 0 and point.bytes > 0:
                times[point.bytes].append(point.latency_us)
    # A size that few pairs were measured at gives no reliable median.
    most = max(map(len, times.values()), default=0)
    sizes = sorted(size for size, values in times.items() if 2 * len(values) >= most)
    for size in _spread(sizes):
        # The lower median: faults only ever make a pair slower.
        yield Point(kind, gpus, size, statistics.median_low(times[size]))


def _spread(sizes: Sequence[int]) -> list[int]:
    """Some of the sizes, evenly from the smallest to the largest by their logarithms."""
    if len(sizes) <= _MOST_SIZES:
        return list(sizes)
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])
    wanted = [low + (high - low) * n / (_MOST_SIZES - 1) for n in range(_MOST_SIZES)]
    return sorted({min(sizes, key=lambda size: abs(math.log2(size) - at)) for at in wanted})


def calibrate(model: BandwidthPredictor, machine: Machine, points: Sequence[Point]) -> BandwidthPredictor:
    """A copy of the model calibrated with the points. Points that do not apply to the machine are skipped."""
    gpus = tuple(sorted(machine.node.gpus))
    calibrated = copy.copy(model)
    for point in points:
        if point.gpus_per_node <= len(gpus) and machine.network is not None:
            calibrated.observe(question(machine, point.gpus_per_node, point.collective, point.bytes), point.latency_us)
    return calibrated


def question(machine: Machine, gpus_per_node: int, kind: Collective, size_bytes: int) -> BandwidthQuestion:
    """Of a pair of such nodes."""
    gpus = tuple(sorted(machine.node.gpus))[:gpus_per_node]
    return BandwidthQuestion(machine, gpus, kind, size_bytes, 2)


def expected(
    model: BandwidthPredictor, machine: Machine, gpus_per_node: int, kind: Collective, size_bytes: int
) -> tuple[float, float, float] | None:
    """Bus bandwidth in GB/s with its interval; None where such nodes cannot do it."""
    try:
        bandwidth_estimate = model.estimate(question(machine, gpus_per_node, kind, size_bytes))
    except BandwidthError:
        return None
    return (
        bandwidth_estimate.bus_gigabytes_per_s,
        bandwidth_estimate.bus_low_gigabytes_per_s,
        bandwidth_estimate.bus_high_gigabytes_per_s,
    )


def largest(pair: MeasuredPair) -> MeasuredPoint | None:
    """None for a failed pair."""
    return max(pair.points, key=lambda point: point.bytes, default=None)
