"""Values that several pages show; what only one shows stands in its own ``data.py``.

All of them are frozen, so that a page is drawn from one consistent state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kopt.core.hardware.node_topology import DegradedPart, NodeTopology
from kopt.core.hardware.pools import ClusterPools
from kopt.core.prediction import ModelVersion
from kopt.core.scheduling.gpu_map import GpuMap
from kopt.core.scheduling.overview import Overview
from kopt.core.scheduling.queue_standing import QueueTreeState
from kopt.core.scheduling.queued import QueueState
from kopt.dashboard.data.capacity import Capacity
from kopt.data.demand.table import DemandSeries
from kopt.serving.contract.demand_answers import SeriesForecast


@dataclass(frozen=True)
class Service:
    """One service: its demand on the forecast's grid, the newest forecast (None: not asked yet) and its GPUs.

    ``clock_s`` is now on the clock of the series: for series that keep Unix time the newest bucket of any of them,
    for the others the end of their own.
    """

    series: DemandSeries
    forecast: SeriesForecast | None
    capacity: Capacity
    clock_s: float

    @property
    def name(self) -> str:
        return self.series.name


@dataclass(frozen=True)
class Endpoint:
    """How the prediction endpoint did when it was last asked. ``problem`` is empty while it answers."""

    url: str
    problem: str = ""
    model: ModelVersion | None = None
    """Of demand."""
    models: tuple[ModelVersion, ...] = ()
    """All that answer, one per predictor."""


@dataclass(frozen=True)
class Snapshot:
    """All services at one moment. ``as_of_s`` is Unix time; ``problems`` are sentences for the page's banner."""

    services: Mapping[str, Service]
    endpoint: Endpoint
    as_of_s: float
    problems: tuple[str, ...] = ()
    ended_s: float | None = None
    """Where all histories that keep Unix time end long ago: that moment, which then is taken as now."""
    ready: bool = True
    """False before the first round of forecasts has come in."""


@dataclass(frozen=True)
class PastForecast:
    """A forecast whose time has come: made at ``made_s`` for the bucket at ``made_s + horizon_s``.

    ``actual`` is the demand of that bucket, None where collection failed.
    """

    made_s: float
    horizon_s: int
    quantiles: Mapping[float, float]
    actual: float | None


@dataclass(frozen=True)
class ClusterNode:
    """A node's topology, and what its object says is worse than it was."""

    topology: NodeTopology
    degraded: tuple[DegradedPart, ...] = ()


@dataclass(frozen=True)
class Nodes:
    """The nodes whose agents publish their topology. ``cluster`` is False where the pages have none, ``problem`` is
    a sentence for the banner."""

    nodes: tuple[ClusterNode, ...] = ()
    cluster: bool = False
    problem: str = ""


class Cluster(Protocol):
    """Reads a cluster. One that does not answer is a ``problem`` in what is told, not an exception."""

    async def nodes(self) -> Nodes:
        """The nodes' topologies."""

    def overview(self) -> Overview:
        """What the controllers say, as last heard; immediate."""

    async def queue(self) -> QueueState:
        """GPU workloads that wait and run, as last heard."""

    async def changed(self) -> None:
        """Return when ``queue`` would say something else than the last time."""

    async def queue_tree(self) -> QueueTreeState:
        """Queues with what runs and waits in them, and reservations, as last heard."""

    async def queue_tree_changed(self) -> None:
        """Return when ``queue_tree`` would say something else than the last time."""

    async def pools(self) -> ClusterPools:
        """Pools of GPUs and teams of namespaces, as last heard."""

    def gpus(self) -> GpuMap:
        """Who holds which GPU, and how busy it is, as last heard; immediate."""

    async def gpus_changed(self) -> None:
        """Return when ``gpus`` would say something else than the last time."""

    async def run(self) -> None:
        """Watch until cancelled; without it ``overview`` stays as it is."""

    async def close(self) -> None: ...
