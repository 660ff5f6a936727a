"""A pool of GPUs that inference services share and lend to training: what it is to be, and how it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import System


class ForecastState(StrEnum):
    """Whether lending may rest on forecasts."""

    FRESH = "Fresh"
    STALE = "Stale"
    MISSING = "Missing"


class Verb(StrEnum):
    """What was decided about the GPUs that are lent."""

    LEND = "lend"
    RECLAIM = "reclaim"
    KEEP = "keep"


@dataclass(frozen=True)
class PoolService:
    """A service of the pool: its pods by namespace and labels, its demand by the name of a series.

    ``capacity_per_gpu`` is the demand in five minutes, in the series' unit, that one GPU serves.
    """

    name: str
    namespace: str
    labels: Mapping[str, str]
    series: str
    capacity_per_gpu: float
    minimum_gpus: int = 0


@dataclass(frozen=True)
class Borrower:
    """A queue of pre-emptible training: Kueue's ClusterQueue, KAI's or Volcano's Queue. ``flavor`` is Kueue's."""

    system: System
    queue: str
    flavor: str = ""

    @property
    def key(self) -> tuple[System, str]:
        return self.system, self.queue


@dataclass(frozen=True)
class LendingPool:
    """The spec. ``lead_time_s`` is None where it is learned."""

    name: str
    gpus: int
    services: tuple[PoolService, ...]
    borrowers: tuple[Borrower, ...] = ()
    resource: str = "nvidia.com/gpu"
    violation_target: float = 0.01
    lead_time_s: float | None = None
    hold_s: float = 1800.0
    hysteresis_gpus: int = 1
    mode: Mode = Mode.OBSERVE


@dataclass(frozen=True)
class Memory:
    """What has to outlive a restart. ``recent`` and ``promised`` are (Unix seconds, GPUs), ``level`` a normal score.

    ``starts`` are cold starts of service pods as (uid, seconds), ``saves`` are seconds that borrowers took to save,
    the newest last.
    """

    recent: tuple[tuple[float, int], ...] = ()
    level: float | None = None
    promised: tuple[tuple[float, int], ...] = ()
    starts: tuple[tuple[str, float], ...] = ()
    saves: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reclaiming:
    """GPUs that are being taken back: since when, by when they are needed, who was told to go ("namespace/name")."""

    gpus: int
    since_s: float
    by_s: float
    victims: tuple[str, ...] = ()


@dataclass(frozen=True)
class HistoryPoint:
    """GPUs at one moment; ``p50`` and ``p99`` are the demand forecast for one lead time later."""

    at_s: float
    lent: int
    borrowed: int
    service: int
    provision: int
    p50: int | None = None
    p99: int | None = None


@dataclass(frozen=True)
class LastDecision:
    """``gpus`` is by how many the lent GPUs changed."""

    verb: Verb
    gpus: int
    at_s: float
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A condition as Kubernetes has them."""

    type: str
    status: bool
    reason: str
    message: str
    since_s: float = 0.0


@dataclass(frozen=True)
class PoolStatus:
    """The status; ``caution`` is the probability that is provisioned at."""

    generation: int = 0
    lent_gpus: int = 0
    borrowed_gpus: int = 0
    service_gpus: int = 0
    provision_gpus: int = 0
    lead_time_s: float = 0.0
    caution: float | None = None
    forecast: ForecastState = ForecastState.MISSING
    forecast_at_s: float | None = None
    forecast_model: str = ""
    decision: LastDecision | None = None
    reclaiming: Reclaiming | None = None
    memory: Memory = field(default_factory=Memory)
    history: tuple[HistoryPoint, ...] = ()
    conditions: tuple[Condition, ...] = ()
