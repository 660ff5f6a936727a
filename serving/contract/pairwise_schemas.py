"""The typed requests and answers of ``/v1/bandwidth/pairs``; strict, as those of ``/v1/bandwidth``."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from kopt.core.bandwidth import MAX_BYTES, Collective
from kopt.core.pairs import Health
from kopt.serving.bandwidth_schemas import MAX_GPUS, Kind, NodeIn
from kopt.serving.schemas import ModelOut
from kopt.serving.wire import SCHEMA

MAX_PAIRS = 500
MAX_POINTS = 64
MAX_NODES = 1000
"""Topologies in one request."""
NAME = r"^[A-Za-z0-9]([-._A-Za-z0-9]{0,251}[A-Za-z0-9])?$"
"""Of clusters and nodes."""

Name = Annotated[str, Field(pattern=NAME)]
Said = Annotated[str, Field(max_length=1024)]
Time = Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PointIn(_Strict):
    """One size, as nccl-tests and rccl-tests time it."""

    bytes: Annotated[int, Field(ge=0, le=MAX_BYTES)]
    """Small sizes are rounded to whole elements per rank, to nothing at the least."""
    latency_us: Time


class PairIn(_Strict):
    """One collective between two nodes with ``gpus_per_node`` GPUs of each, by size; a failed one has no points."""

    nodes: Annotated[list[Name], Field(min_length=2, max_length=2)]
    """In the order of their names."""
    gpus_per_node: Annotated[int, Field(ge=1, le=MAX_GPUS)]
    collective: Kind
    measured_at: Annotated[float, Field(gt=0, le=1e11, allow_inf_nan=False)]
    """Unix seconds. Of one pair, collective and number of GPUs the newest is kept."""
    alpha_us: Number | None = None
    beta_gbps: Number | None = None
    """Latency and bus bandwidth (GB/s) of the line through the points."""
    points: Annotated[list[PointIn], Field(max_length=MAX_POINTS, fail_fast=True)] = []
    software: Said = ""
    health: Annotated[Health, Field(strict=False)] = Health.HEALTHY
    reason: Said = ""

    @model_validator(mode="after")
    def _whole(self) -> "PairIn":
        if self.nodes[0] >= self.nodes[1]:
            raise ValueError("nodes: two different ones, in the order of their names")
        if not self.points and self.health is not Health.FAILED:
            raise ValueError("points: only a failed pair has none")
        return self


class PairsRequest(_Strict):
    """What pairs of a cluster's nodes were measured to reach. Sending again is harmless."""

    cluster: Name
    pairs: Annotated[list[PairIn], Field(max_length=MAX_PAIRS, fail_fast=True)]
    topologies: Annotated[dict[Name, NodeIn], Field(max_length=MAX_NODES)] = {}
    """Documents of ``kopt topology parse``, of nodes that the endpoint may not know; ``unknown_nodes`` of the answer
    are those it still wants."""
    domains: Annotated[
        dict[Name, Annotated[list[Annotated[str, Field(max_length=253)]], Field(max_length=8)]],
        Field(max_length=MAX_NODES),
    ] = {}
    """The network levels that nodes are in, outermost first: block, rack."""
    deadline_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = None
    """As the header ``X-Kopt-Deadline-Ms``; the shorter counts."""


PAIRS_REQUEST = TypeAdapter(PairsRequest)


class PairsKept(BaseModel):
    schema_: Literal["kopt/v1"] = Field(SCHEMA, alias="schema")
    cluster: str
    kept: int
    """Pairs of the request that are what is kept now; those measured before what is kept already are not."""
    unknown_nodes: list[str]
    """Pairs of nodes whose topology is not known calibrate nothing."""
    model: ModelOut


class PointOut(BaseModel):
    bytes: int
    latency_us: float


class PairOut(BaseModel):
    nodes: list[str]
    gpus_per_node: int
    collective: Collective
    measured_at: float
    alpha_us: float | None
    beta_gbps: float | None
    points: list[PointOut]
    software: str
    health: Health
    reason: str
    predicted_gbps: float | None
    """Bus bandwidth in GB/s at the largest size that was measured, by the hardware and the cluster's healthy pairs;
    null where a node's topology is not known."""
    low_gbps: float | None
    high_gbps: float | None


class PairNodeOut(BaseModel):
    name: str
    health: Health
    """By what its pairs reach beside those of other nodes."""
    reason: str
    domains: list[str]
    machine: str | None
    """Nodes of the same hardware say the same; null where the topology is not known."""


class ExpectedOut(BaseModel):
    """What a pair of these machines is predicted to reach, measured or not."""

    machines: list[str]
    gpus_per_node: int
    collective: Collective
    bytes: int
    predicted_gbps: float
    low_gbps: float
    high_gbps: float


class PairsResponse(BaseModel):
    """Without ``cluster`` in the query: the names of the clusters alone."""

    schema_: Literal["kopt/v1"] = Field(SCHEMA, alias="schema")
    cluster: str | None
    clusters: list[str]
    nodes: list[PairNodeOut]
    pairs: list[PairOut]
    expected: list[ExpectedOut]
    model: ModelOut
