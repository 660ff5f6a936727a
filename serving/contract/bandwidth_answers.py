"""What callers of ``/v1/bandwidth`` ask and get, as frozen values. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.core.hardware.bandwidth import BandwidthEstimate, BandwidthKind, Collective
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.units import GIB
from kopt.serving.contract.common import SCHEMA, AnswerError

GpuIndexes = tuple[int, ...]


class WrongQuestion(ValueError):
    """What cannot be answered; ``field`` is the path in the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


@dataclass(frozen=True)
class MeasuredCollective:
    """One collective as nccl-tests or rccl-tests timed it on this machine; ``nodes`` as in the question if None."""

    gpus: GpuIndexes
    collective: Collective
    bytes: int
    latency_us: float
    nodes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "gpus": list(self.gpus),
            "collective": self.collective.value,
            "bytes": self.bytes,
            "latency_us": self.latency_us,
        }
        return result if self.nodes is None else result | {"nodes": self.nodes}


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

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; what is not said is left out."""
        optional = {
            "minimum_gigabytes_per_s": self.minimum_gigabytes_per_s,
            "count": self.count,
            "free": None if self.free is None else list(self.free),
            "probes": [measured_collective.to_dict() for measured_collective in self.probes] or None,
            "cluster": self.cluster or None,
            "offers": [offered_node.to_dict() for offered_node in self.offers] or None,
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


@dataclass(frozen=True)
class SetBandwidth:
    """What one set reaches. ``meets``: the expected bandwidth is at least the minimum; None where no minimum was asked
    for, and where too little is known to say."""

    estimate: BandwidthEstimate
    meets: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        bandwidth_estimate = self.estimate
        share = bandwidth_estimate.algorithm_gigabytes_per_s / bandwidth_estimate.bus_gigabytes_per_s
        return {
            "gpus": list(bandwidth_estimate.gpus),
            "latency_us": bandwidth_estimate.latency_us,
            "latency_low_us": bandwidth_estimate.latency_low_us,
            "latency_high_us": bandwidth_estimate.latency_high_us,
            "algorithm_gigabytes_per_s": bandwidth_estimate.algorithm_gigabytes_per_s,
            "algorithm_low_gigabytes_per_s": share * bandwidth_estimate.bus_low_gigabytes_per_s,
            "algorithm_high_gigabytes_per_s": share * bandwidth_estimate.bus_high_gigabytes_per_s,
            "bus_gigabytes_per_s": bandwidth_estimate.bus_gigabytes_per_s,
            "bus_low_gigabytes_per_s": bandwidth_estimate.bus_low_gigabytes_per_s,
            "bus_high_gigabytes_per_s": bandwidth_estimate.bus_high_gigabytes_per_s,
            "link_gigabytes_per_s": bandwidth_estimate.link_gigabytes_per_s,
            "probability": bandwidth_estimate.probability,
            "algorithm": bandwidth_estimate.algorithm,
            "unknown": bandwidth_estimate.unknown,
            "meets": self.meets,
            "reasons": [reason.to_dict() for reason in bandwidth_estimate.reasons],
        }


@dataclass(frozen=True)
class BestSet:
    """The GPUs to take of those that are free, by what the wires carry: ``rest_gigabytes_per_s`` of bus bandwidth is
    left for the next job of this size (0: none fits), ``worst_gigabytes_per_s`` the worst set would have had."""

    found: SetBandwidth
    worst_gigabytes_per_s: float
    rest_gigabytes_per_s: float
    considered: int
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.found.to_dict(),
            "worst_gigabytes_per_s": self.worst_gigabytes_per_s,
            "rest_gigabytes_per_s": self.rest_gigabytes_per_s,
            "considered": self.considered,
            "exact": self.exact,
        }


@dataclass(frozen=True)
class Placement:
    """The nodes and the GPUs of each, all within ``domains``; ``found`` is what they reach together, told of the GPUs
    of the slowest of them. ``wider_gigabytes_per_s`` is what the best way further apart would reach, None where that
    is as much or none was compared."""

    found: SetBandwidth
    shares: tuple[tuple[str, GpuIndexes], ...]
    domains: tuple[str, ...]
    wider_gigabytes_per_s: float | None
    considered: int
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.found.to_dict(),
            "shares": [{"node": node, "gpus": list(gpus)} for node, gpus in self.shares],
            "domains": list(self.domains),
            "wider_gigabytes_per_s": self.wider_gigabytes_per_s,
            "considered": self.considered,
            "exact": self.exact,
        }


@dataclass(frozen=True)
class BandwidthAnswer:
    """Sets in the order asked. ``reasons`` say why the answer is the fallback, or what measurements did to it;
    ``warnings`` what the topology leaves unknown."""

    collective: Collective
    bytes: int
    nodes: int
    sets: tuple[SetBandwidth, ...]
    best: BestSet | None
    model: ModelVersion
    fallback: bool = False
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()
    placement: Placement | None = None

    def to_dict(self) -> dict[str, Any]:
        """The document of ``/v1/bandwidth``."""
        return {
            "schema": SCHEMA,
            "collective": self.collective.value,
            "bytes": self.bytes,
            "nodes": self.nodes,
            "sets": [set_bandwidth.to_dict() for set_bandwidth in self.sets],
            "best": None if self.best is None else self.best.to_dict(),
            "placement": None if self.placement is None else self.placement.to_dict(),
            "model": self.model.to_dict(),
            "fallback": self.fallback,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "warnings": list(self.warnings),
        }


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


def parse_bandwidth(document: Mapping[str, Any]) -> BandwidthAnswer:
    """What ``/v1/bandwidth`` says. Raises AnswerError for anything else."""
    if document.get("schema") != SCHEMA:
        raise AnswerError(f"expected a {SCHEMA} document, got {str(document.get('schema'))[:40]!r}")
    try:
        model = ModelVersion(*(str(document["model"][name]) for name in ("name", "version", "digest")))
        best, placed = document["best"], document.get("placement")
        empty = BandwidthAnswer(
            Collective(document["collective"]),
            int(document["bytes"]),
            int(document["nodes"]),
            (),
            None,
            model,
            bool(document["fallback"]),
            _reasons(document),
            tuple(map(str, document["warnings"])),
        )
        return replace(
            empty,
            sets=tuple(_set(item, empty) for item in document["sets"]),
            best=None
            if best is None
            else BestSet(
                _set(best, empty),
                float(best["worst_gigabytes_per_s"]),
                float(best["rest_gigabytes_per_s"]),
                int(best["considered"]),
                bool(best["exact"]),
            ),
            placement=None if placed is None else _placement(placed, empty),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AnswerError(f"/v1/bandwidth answered something unexpected: {error!r}") from error


def _placement(item: Mapping[str, Any], answer: BandwidthAnswer) -> Placement:
    shares = tuple((str(share["node"]), tuple(map(int, share["gpus"]))) for share in item["shares"])
    wider = item["wider_gigabytes_per_s"]
    return Placement(
        _set(item, replace(answer, nodes=len(shares))),
        shares,
        tuple(map(str, item["domains"])),
        None if wider is None else float(wider),
        int(item["considered"]),
        bool(item["exact"]),
    )


def _set(item: Mapping[str, Any], answer: BandwidthAnswer) -> SetBandwidth:
    numbers = {
        name: float(item[name])
        for name in (
            "latency_us",
            "latency_low_us",
            "latency_high_us",
            "algorithm_gigabytes_per_s",
            "bus_gigabytes_per_s",
            "bus_low_gigabytes_per_s",
            "bus_high_gigabytes_per_s",
            "link_gigabytes_per_s",
            "probability",
        )
    }
    estimate = BandwidthEstimate(
        gpus=tuple(map(int, item["gpus"])),
        nodes=answer.nodes,
        collective=answer.collective,
        bytes=answer.bytes,
        algorithm=str(item["algorithm"]),
        unknown=bool(item["unknown"]),
        model=answer.model,
        reasons=_reasons(item),
        **numbers,
    )
    return SetBandwidth(estimate, item["meets"])


def _reasons(document: Mapping[str, Any]) -> tuple[Reason, ...]:
    return tuple(Reason(item["code"], item["message"], item["numbers"]) for item in document["reasons"])
