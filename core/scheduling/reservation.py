"""Reservations of future capacity (``KaiwoReservation``) and how each went. Times are Unix seconds, GPUs whole ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Where a reservation stands; of one that recurs, its current or next occurrence."""

    REFUSED = "Refused"
    """It contradicts itself, its pool, its queue or an older reservation; its condition says how."""
    SCHEDULED = "Scheduled"
    """Nothing is held yet."""
    BACKFILLED = "Backfilled"
    """Idle GPUs are held; what ends in time, or can be stopped in time, runs on the others."""
    RECLAIMING = "Reclaiming"
    """The lead has begun: what does not end in time is stopped."""
    ACTIVE = "Active"
    """It has started: its owner's jobs run on it, or it is held for them."""
    RELEASED = "Released"
    """It was not used for ``unused_after_s``; others have its GPUs until it ends."""
    EXPIRED = "Expired"
    """It has ended, and does not recur."""


@dataclass(frozen=True)
class Reservation:
    """As its owner declares it. ``name`` is namespace/name; ``queue`` a LocalQueue of the namespace, whose jobs it is
    for; ``pool`` a ResourceFlavor of Kueue's, empty for the only one of the queue.

    ``nodes`` times ``gpus_per_node`` are reserved from ``start_s`` until ``until_s``, and again at each time of
    ``recurrence`` (RFC 5545, from ``start_s`` on, at the same time of day in ``time_zone``).
    """

    name: str
    queue: str
    nodes: int
    gpus_per_node: int
    start_s: float
    until_s: float
    pool: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    lead_s: float = 600.0
    unused_after_s: float = 900.0
    recurrence: str = ""
    time_zone: str = "UTC"
    created_s: float = 0.0

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True, order=True)
class Occurrence:
    """One window of a reservation."""

    start_s: float
    until_s: float


@dataclass(frozen=True)
class Account:
    """What has happened from ``opened_s``, when GPUs began to be held, until ``since_s``, in GPU-seconds; ``used`` and
    ``backfilled`` GPUs from then on. ``met_s``: when all of its GPUs were held or in use by its owner, its lead having
    begun, for the first time."""

    occurrence: Occurrence
    opened_s: float
    since_s: float
    met_s: float | None = None
    used: int = 0
    backfilled: int = 0
    used_gpu_s: float = 0.0
    backfilled_gpu_s: float = 0.0
    last_used_s: float | None = None
    released_s: float | None = None
    reclaimed: int = 0
    """Workloads that were stopped for it."""


@dataclass(frozen=True)
class Result:
    """How an occurrence went. ``met_s`` None: never. ``used_share`` of its GPU time by its owner; ``backfilled_share``
    of the GPU time for which it was held before its start, by others."""

    occurrence: Occurrence
    met_s: float | None
    used_share: float
    backfilled_share: float
    reclaimed: int
    released_s: float | None = None

    @property
    def late_s(self) -> float | None:
        """How much later than asked it could start; None where it never could."""
        return None if self.met_s is None else max(0.0, self.met_s - self.occurrence.start_s)
