"""What the pages show, and the one interface they get it through.

``Source`` is the seam: the platform's is ``live.LiveSource``; tests pass one over real series and a real endpoint.
Everything it hands out is frozen, so a page is drawn from one consistent moment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kopt.core.overview import Overview
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.topology import DegradedPart, NodeTopology
from kopt.dashboard.capacity import Capacity
from kopt.data.demand.table import DemandSeries
from kopt.models.registry import MetricRow, RegisteredModel
from kopt.serving.answers import ModelHealth, SeriesForecast
from kopt.serving.bandwidth_pairs_answers import ClusterPairs
from kopt.serving.checkpoint_answers import FollowedJobView
from kopt.serving.size_advice import SizeAdvice


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


@dataclass(frozen=True)
class Snapshot:
    """All services at one moment. ``taken_s`` is Unix time; ``problems`` are sentences for the page's banner."""

    services: Mapping[str, Service]
    endpoint: Endpoint
    taken_s: float
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
class Past:
    """Earlier forecasts of a service. ``replayed``: today's model asked again about moments that have passed."""

    forecasts: tuple[PastForecast, ...] = ()
    replayed: bool = False
    problem: str = ""
    pending: bool = False
    """Being asked for right now; there will be more in a moment."""


@dataclass(frozen=True)
class Models:
    """The registry's versions of demand, newest first, and the health report, each with what kept it away."""

    versions: tuple[RegisteredModel, ...] = ()
    metrics: tuple[MetricRow, ...] = ()
    """Champion and challenger side by side, in this order."""
    compared: tuple[RegisteredModel, ...] = ()
    health: ModelHealth | None = None
    refused: tuple[Reason, ...] = ()
    problems: tuple[str, ...] = field(default_factory=tuple)
    others: tuple[RegisteredModel, ...] = ()
    """Versions of the other predictors."""
    serving: tuple[ModelVersion, ...] = ()
    """The versions that the endpoint answers with, one per predictor."""


@dataclass(frozen=True)
class Sizes:
    """The newest size of every job type that was asked about, newest first, or what kept them away."""

    found: tuple[SizeAdvice, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Jobs:
    """The jobs whose logs are followed, heard of last first, as of ``now_s``; or what kept them away."""

    found: tuple[FollowedJobView, ...] = ()
    now_s: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class ClusterNode:
    """A node's topology, and what its object says is worse than it was."""

    topology: NodeTopology
    degraded: tuple[DegradedPart, ...] = ()


@dataclass(frozen=True)
class Nodes:
    """The nodes whose agents publish their topology. ``cluster`` is False where the pages have none, ``problem`` is
    a sentence for the banner."""

    found: tuple[ClusterNode, ...] = ()
    cluster: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Pairs:
    """What pairs of nodes were measured to reach, by cluster; or what kept them away."""

    found: tuple[ClusterPairs, ...] = ()
    problem: str = ""


class Cluster(Protocol):
    """Reads a cluster. One that does not answer is a ``problem`` in what is told, not an exception."""

    async def nodes(self) -> Nodes:
        """The nodes' topologies."""

    def overview(self) -> Overview:
        """What the controllers say, as last heard; immediate."""

    async def run(self) -> None:
        """Watch until cancelled; without it ``overview`` stays as it is."""

    async def close(self) -> None: ...


class Source(Protocol):
    """Where the pages get their content. No method raises for a platform that is down: the answer says so."""

    async def snapshot(self) -> Snapshot:
        """The newest round of histories and forecasts; immediate, never waits for the network."""

    async def past(self, service: Service) -> Past:
        """Earlier forecasts of one service beside what came."""

    async def models(self) -> Models:
        """Registry and model health."""

    async def sizes(self) -> Sizes:
        """Sizes of job types, of the last refresh."""

    async def jobs(self) -> Jobs:
        """Jobs whose logs are followed, of the last refresh."""

    async def nodes(self) -> Nodes:
        """Nodes of the cluster, of the last refresh."""

    async def pairs(self) -> Pairs:
        """Measured pairs of nodes, of the last refresh."""

    async def overview(self) -> Overview:
        """What the controllers in the cluster say, now."""
