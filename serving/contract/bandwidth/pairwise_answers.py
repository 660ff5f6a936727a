"""The answers of ``/v1/bandwidth/pairs``, declared once for the endpoint and its clients. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint
from kopt.serving.contract.common import SCHEMA, ModelOut
from kopt.serving.contract.reading import read_answer

# Docstrings of these classes are published in docs/openapi.json, and their names are.


@dataclass(frozen=True, kw_only=True)
class PairsKept:
    schema: Literal["kopt/v1"] = SCHEMA
    cluster: str
    kept: int
    """Pairs of the request that are what is kept now; those measured before what is kept already are not."""
    unknown_nodes: tuple[str, ...]
    """Pairs of nodes whose topology is not known calibrate nothing."""
    model: ModelOut


@dataclass(frozen=True)
class PointOut:
    bytes: int
    latency_us: float


@dataclass(frozen=True)
class PairOut:
    nodes: tuple[str, ...]
    gpus_per_node: int
    collective: Collective
    measured_at: float
    alpha_us: float | None
    beta_gbps: float | None
    points: tuple[PointOut, ...]
    software: str
    health: Health
    reason: str
    predicted_gbps: float | None
    """Bus bandwidth in GB/s at the largest size that was measured, by the hardware and the cluster's healthy pairs;
    null where a node's topology is not known."""
    low_gbps: float | None
    high_gbps: float | None

    def __post_init__(self) -> None:
        # Refuses what no pair can be.
        _ = self.pair

    @classmethod
    def of(
        cls, pair: MeasuredPair, predicted: float | None = None, low: float | None = None, high: float | None = None
    ) -> "PairOut":
        """A pair beside what it is predicted to reach."""
        points = tuple(PointOut(point.bytes, point.latency_us) for point in pair.points)
        return cls(
            pair.nodes,
            pair.gpus_per_node,
            pair.collective,
            pair.measured_at,
            pair.alpha_us,
            pair.beta_gbps,
            points,
            pair.software,
            pair.health,
            pair.reason,
            predicted,
            low,
            high,
        )

    @cached_property
    def pair(self) -> MeasuredPair:
        """What was measured alone."""
        first, second = self.nodes
        return MeasuredPair(
            (first, second),
            self.gpus_per_node,
            self.collective,
            self.measured_at,
            tuple(MeasuredPoint(point.bytes, point.latency_us) for point in self.points),
            self.alpha_us,
            self.beta_gbps,
            self.software,
            self.health,
            self.reason,
        )

    @property
    def measured_gbps(self) -> float | None:
        return measured_gbps(self.pair)


@dataclass(frozen=True)
class PairNodeOut:
    name: str
    health: Health
    """By what its pairs reach beside those of other nodes."""
    reason: str
    domains: tuple[str, ...]
    machine: str | None
    """Nodes of the same hardware say the same; null where the topology is not known."""


@dataclass(frozen=True)
class ExpectedOut:
    """What a pair of these machines is predicted to reach, measured or not."""

    machines: tuple[str, ...]
    gpus_per_node: int
    collective: Collective
    bytes: int
    predicted_gbps: float
    low_gbps: float
    high_gbps: float


@dataclass(frozen=True, kw_only=True)
class PairsResponse:
    """Without ``cluster`` in the query: the names of the clusters alone."""

    schema: Literal["kopt/v1"] = SCHEMA
    cluster: str | None
    clusters: tuple[str, ...]
    nodes: tuple[PairNodeOut, ...]
    pairs: tuple[PairOut, ...]
    expected: tuple[ExpectedOut, ...]
    model: ModelOut

    @property
    def name(self) -> str:
        """Of the cluster; empty without one."""
        return self.cluster or ""


def measured_gbps(pair: MeasuredPair) -> float | None:
    """Bus bandwidth at the largest size; None for a failed pair."""
    point = max(pair.points, key=lambda measured_point: measured_point.bytes, default=None)
    if point is None or point.latency_us <= 0:
        return None
    return point.bytes / point.latency_us / 1e3 * pair.collective.bus_factor(2 * pair.gpus_per_node)


def pairwise_request(
    cluster: str,
    measurements: Sequence[MeasuredPair],
    topologies: Mapping[str, NodeTopology] | None = None,
    domains: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The body of a POST."""
    return {
        "cluster": cluster,
        "pairs": [pair.to_dict() for pair in measurements],
        "topologies": {name: node_topology.to_dict() for name, node_topology in (topologies or {}).items()},
        "domains": {name: list(levels) for name, levels in (domains or {}).items()},
    }


def parse_kept(document: Mapping[str, Any]) -> PairsKept:
    """The answer to a POST. Raises AnswerError for anything else."""
    return read_answer(PairsKept, "/v1/bandwidth/pairs", document)


def parse_pairwise(document: Mapping[str, Any]) -> PairsResponse:
    """The answer to a GET. Raises AnswerError for anything else."""
    return read_answer(PairsResponse, "/v1/bandwidth/pairs", document)
