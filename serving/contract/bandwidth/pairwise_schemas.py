"""The typed requests of ``/v1/bandwidth/pairs``; strict, as those of ``/v1/bandwidth``."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from kopt.core.hardware.bandwidth import MAX_BYTES
from kopt.core.hardware.pairwise import Health
from kopt.serving.contract.bandwidth.schemas import MAX_GPUS, Kind, NodeIn

MAX_MEASUREMENTS = 500
MAX_POINTS = 64
MAX_NODES = 1000
"""Topologies in one request."""
NAME = r"^[A-Za-z0-9]([-._A-Za-z0-9]{0,251}[A-Za-z0-9])?$"
"""Of clusters and nodes."""

Name = Annotated[str, Field(pattern=NAME)]
ShortText = Annotated[str, Field(max_length=1024)]
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
    software: ShortText = ""
    health: Annotated[Health, Field(strict=False)] = Health.HEALTHY
    reason: ShortText = ""

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
    pairs: Annotated[list[PairIn], Field(max_length=MAX_MEASUREMENTS, fail_fast=True)]
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


PAIRWISE_REQUEST = TypeAdapter(PairsRequest)
