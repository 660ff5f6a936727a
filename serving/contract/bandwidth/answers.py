"""What callers of ``/v1/bandwidth`` ask and get, as frozen values. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kopt.core.hardware.bandwidth import BandwidthEstimate, BandwidthKind, Collective, MeasuredCollective
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.reason import Reason
from kopt.core.units import GIB
from kopt.serving.contract.common import SCHEMA, ModelOut, ReasonOut, reasons_out
from kopt.serving.contract.reading import added_later, read_answer

GpuIndexes = tuple[int, ...]


class WrongQuestion(ValueError):
    """What cannot be answered; ``field`` is the path in the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


@dataclass(frozen=True)
class OfferedNode:
    """A node with the GPUs that are free on it (None: all). ``domains`` are the levels of the network that it is in,
    outermost first; ``topology`` is its own, None where it is like that of the question."""

    name: str
    free: Sequence[int] | None = None
    domains: Sequence[str] = ()
    topology: NodeTopology | Mapping[str, Any] | str | None = None

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {"name": self.name, "domains": list(self.domains)}
        result |= {} if self.free is None else {"free": list(self.free)}
        return result if self.topology is None else result | {"topology": _document(self.topology)}


@dataclass(frozen=True)
class BandwidthQuery:
    """A request to ``/v1/bandwidth``: what each of ``gpu_sets`` reaches, and, with ``count``, which are the best of the
    ``free`` GPUs (of all, where they are not said).

    With ``offers`` the ``count`` GPUs are chosen among those nodes: one of them where it holds the job, else as many of
    each of a few. ``slow`` pairs of them, with what they were measured to reach (GB/s), are kept apart.

    ``topology`` is a node, the document of ``kopt topology parse`` or a tool's output. ``gpu``, ``nics`` and
    ``software`` say what the tool did not: MI300X, 8x NDR400 IB, nccl 2.27. The minimum is of the ``of`` kind.
    """

    topology: NodeTopology | Mapping[str, Any] | str
    gpu_sets: Sequence[GpuIndexes] = ()
    collective: Collective = Collective.ALL_REDUCE
    bytes: int = GIB
    nodes: int = 1
    gpu: str = ""
    nics: str = ""
    software: str = ""
    minimum_gigabytes_per_s: float | None = None
    of: BandwidthKind = BandwidthKind.BUS
    count: int | None = None
    free: Sequence[int] | None = None
    probes: Sequence[MeasuredCollective] = ()
    cluster: str = ""
    """Whose measured pairs of such nodes calibrate the answer."""
    offers: Sequence[OfferedNode] = ()
    slow: Mapping[tuple[str, str], float] = field(default_factory=dict)
    traffic: Sequence[LinkTraffic] = ()
    """What other jobs put on links now."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; what is not said is left out."""
        optional = {
            "minimum_gigabytes_per_s": self.minimum_gigabytes_per_s,
            "count": self.count,
            "free": None if self.free is None else list(self.free),
            "probes": [measured_collective.to_dict() for measured_collective in self.probes] or None,
            "cluster": self.cluster or None,
            "offers": [offered_node.to_dict() for offered_node in self.offers] or None,
            "traffic": [item.to_dict() for item in self.traffic] or None,
            "slow": [{"nodes": list(pair), "gigabytes_per_s": gbps} for pair, gbps in self.slow.items()] or None,
        }
        return {
            "topology": _document(self.topology),
            "gpu_sets": [list(gpu_set) for gpu_set in self.gpu_sets],
            "collective": self.collective.value,
            "bytes": self.bytes,
            "nodes": self.nodes,
            "gpu": self.gpu,
            "nics": self.nics,
            "software": self.software,
            "of": self.of.value,
        } | {name: value for name, value in optional.items() if value is not None}


def _document(node: NodeTopology | Mapping[str, Any] | str) -> dict[str, Any]:
    return {"text": node} if isinstance(node, str) else node.to_dict() if isinstance(node, NodeTopology) else dict(node)


# Docstrings of the classes below are published in docs/openapi.json, and their names are.


@dataclass(frozen=True)
class SetOut:
    """What one set reaches. Bandwidths in GB/s (1e9): *algorithm* is message by time, *bus* what nccl-tests prints
    beside it, *link* the specification per GPU and direction. Intervals hold with ``probability``."""

    gpus: GpuIndexes
    latency_us: float
    latency_low_us: float
    latency_high_us: float
    algorithm_gigabytes_per_s: float
    algorithm_low_gigabytes_per_s: float
    algorithm_high_gigabytes_per_s: float
    bus_gigabytes_per_s: float
    bus_low_gigabytes_per_s: float
    bus_high_gigabytes_per_s: float
    link_gigabytes_per_s: float
    probability: float
    algorithm: str
    unknown: bool
    """The GPU, a link or the network is not known, and the interval is wide for that."""
    meets: bool | None
    """The expected bandwidth is at least the minimum. None without a minimum, and where the hardware is unknown or the
    answer is the fallback and the interval does not decide it."""
    reasons: tuple[ReasonOut, ...]

    @classmethod
    def of(cls, estimate: BandwidthEstimate, meets: bool | None, *before: Reason) -> "SetOut":
        """An estimate on the wire; its reasons follow those ``before``."""
        share = estimate.algorithm_gigabytes_per_s / estimate.bus_gigabytes_per_s
        return cls(
            estimate.gpus,
            estimate.latency_us,
            estimate.latency_low_us,
            estimate.latency_high_us,
            estimate.algorithm_gigabytes_per_s,
            share * estimate.bus_low_gigabytes_per_s,
            share * estimate.bus_high_gigabytes_per_s,
            estimate.bus_gigabytes_per_s,
            estimate.bus_low_gigabytes_per_s,
            estimate.bus_high_gigabytes_per_s,
            estimate.link_gigabytes_per_s,
            estimate.probability,
            estimate.algorithm,
            estimate.unknown,
            meets,
            reasons_out((*before, *estimate.reasons)),
        )


@dataclass(frozen=True)
class BestSetOut(SetOut):
    """The set to take. It is chosen by what links and algorithms are known to carry, on one node."""

    worst_gigabytes_per_s: float
    """Bus bandwidth of the worst set of so many free GPUs."""
    rest_gigabytes_per_s: float
    """Of the best set that remains for the next job of this size; 0 where none fits."""
    considered: int
    exact: bool
    """Every set was looked at."""


@dataclass(frozen=True)
class ShareOut:
    node: str
    gpus: GpuIndexes


@dataclass(frozen=True)
class PlacementOut(SetOut):
    """The nodes to take and the GPUs of each; what they reach together is told of the GPUs of the slowest node."""

    shares: tuple[ShareOut, ...]
    domains: tuple[str, ...]
    """The levels of the network that all of them are in."""
    wider_gigabytes_per_s: float | None
    """Bus bandwidth of the best way further apart, by links and slow pairs; None where that is as much, and where
    none was compared."""
    considered: int
    exact: bool
    """Every set of every node that was looked at was compared."""


@dataclass(frozen=True, kw_only=True)
class BandwidthResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    collective: Collective
    bytes: int
    nodes: int
    sets: tuple[SetOut, ...]
    """In the order of the request."""
    best: BestSetOut | None
    """None where ``count`` is not given, and with ``offers``."""
    placement: PlacementOut | None = added_later(absent=None)
    """None without ``offers``."""
    model: ModelOut
    fallback: bool
    reasons: tuple[ReasonOut, ...]
    """Why this is the fallback, or what measurements did to it."""
    warnings: tuple[str, ...]
    """What the topology leaves unknown."""


def meets(
    bandwidth_estimate: BandwidthEstimate, minimum: float | None, kind: BandwidthKind, *, sure: bool = True
) -> bool | None:
    """Held against the expected value; None without a minimum, and where the hardware is unknown (or the answer not
    ``sure``) and the interval does not decide it."""
    if minimum is None:
        return None
    if kind is BandwidthKind.LINK:
        return (
            None
            if bandwidth_estimate.unknown or bandwidth_estimate.link_gigabytes_per_s <= 0
            else bandwidth_estimate.meets(minimum, kind)
        )
    share = 1.0
    if kind is BandwidthKind.ALGORITHM:
        share = bandwidth_estimate.algorithm_gigabytes_per_s / bandwidth_estimate.bus_gigabytes_per_s
    low, high = share * bandwidth_estimate.bus_low_gigabytes_per_s, share * bandwidth_estimate.bus_high_gigabytes_per_s
    if (bandwidth_estimate.unknown or not sure) and low < minimum <= high:
        return None
    return bandwidth_estimate.meets(minimum, kind)


def parse_bandwidth(document: Mapping[str, Any]) -> BandwidthResponse:
    """What ``/v1/bandwidth`` says. Raises AnswerError for anything else."""
    return read_answer(BandwidthResponse, "/v1/bandwidth", document)
