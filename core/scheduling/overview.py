"""What the controllers say in the cluster about lending and staging, as people read it on the page and the terminal.

Times are Unix seconds, None where nobody says. What an object leaves out, or says in a way that cannot be read, is
None or empty: these are views, nothing is decided on them.
"""

from dataclasses import dataclass

from kopt.core.cost.budgets import BudgetStanding
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import Entry
from kopt.core.switches import Switches


@dataclass(frozen=True)
class PoolMoment:
    """A pool at a moment of its history; every figure but the time in GPUs. ``p50`` and ``p99``: demand forecast for
    one lead time later."""

    at_s: float
    lent: float | None = None
    borrowed: float | None = None
    service: float | None = None
    provision: float | None = None
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Reclaiming:
    """GPUs that are being taken back, until when, and from whom (``namespace/name``)."""

    gpus: float | None
    since_s: float | None
    by_s: float | None
    victims: tuple[str, ...] = ()


@dataclass(frozen=True)
class PoolState:
    """A LendingPool. ``gpus`` are its GPUs, lent ones among them; ``verb``, ``verb_gpus`` and ``reasons`` are its last
    decision."""

    name: str
    mode: str = ""
    gpus: float | None = None
    lent: float | None = None
    borrowed: float | None = None
    service: float | None = None
    provision: float | None = None
    lead_time_s: float | None = None
    caution: float | None = None
    forecast: str = ""
    forecast_at_s: float | None = None
    forecast_model: str = ""
    verb: str = ""
    verb_gpus: float | None = None
    decided_at_s: float | None = None
    reasons: tuple[Reason, ...] = ()
    reclaiming: Reclaiming | None = None
    history: tuple[PoolMoment, ...] = ()
    services: tuple[str, ...] = ()
    borrowers: tuple[tuple[str, str, str], ...] = ()
    """(system, queue, flavor) of each."""
    troubles: tuple[str, ...] = ()
    """Sentences of its conditions that are not as they should be."""

    def lends_to(self, queues: tuple[str, ...], flavors: frozenset[str] = frozenset()) -> bool:
        """Whether what has quota in one of these queues runs on what it lends."""
        return any(
            queue in queues and (not flavor or not flavors or flavor in flavors) for _, queue, flavor in self.borrowers
        )


@dataclass(frozen=True)
class NodeCopy:
    """A node's copy of staged data."""

    node: str
    phase: str = ""
    bytes_done: int | None = None
    message: str = ""


@dataclass(frozen=True)
class StagedState:
    """A StagedData. ``users`` are ``kind/name`` in its namespace."""

    namespace: str
    name: str
    source: str = ""
    destination: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    bytes: int | None = None
    bytes_done: int | None = None
    objects: int | None = None
    objects_done: int | None = None
    bytes_per_second: float | None = None
    remaining_s: float | None = None
    at_s: float | None = None
    ready_at_s: float | None = None
    last_used_at_s: float | None = None
    attempts: int | None = None
    retry_at_s: float | None = None
    nodes: tuple[NodeCopy, ...] = ()
    users: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """How much of it is there, from 0 to 1; None where its size is not known."""
        if self.phase == "Ready":
            return 1.0
        if not self.bytes or self.bytes_done is None:
            return None
        return min(1.0, max(0.0, self.bytes_done / self.bytes))


@dataclass(frozen=True)
class Overview:
    """What controllers of ours say in a cluster. ``cluster`` is False where there is none; ``missing`` are kinds that
    are not installed; ``problems`` say what could not be read and since when, in sentences for the reader."""

    cluster: bool = False
    ready: bool = True
    """False until everything has been read once."""
    now_s: float = 0.0
    pools: tuple[PoolState, ...] = ()
    ledger: tuple[Entry, ...] = ()
    staged: tuple[StagedState, ...] = ()
    switches: Switches | None = None
    """None where they are not installed, or not for this reader."""
    budgets: tuple[BudgetStanding, ...] = ()
    missing: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
