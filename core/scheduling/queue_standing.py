"""The queues of a cluster and its reservations at one moment, as pages and the terminal show them. Times are Unix
seconds, amounts milli-GPU over all pools unless something else is said."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kopt.core.scheduling.reservation import Result


@dataclass(frozen=True)
class QueueStanding:
    """A queue, of a department with all below it. ``depth`` 0 is a root. ``quota``, ``limit``: None without a bound.

    ``pending_gpus`` is what its ``pending`` workloads request. ``ideal`` is its share by dominant resource fairness,
    ``lacks`` what it demands of its quota and does not have. ``namespaces``: whose jobs it takes, by its LocalQueues.
    """

    name: str
    parent: str
    depth: int
    quota: int | None
    limit: int | None
    guarantee: int
    use: int
    pending_gpus: int
    pending: int
    borrowing: int
    lacks: int
    ideal: int
    is_leaf: bool
    namespaces: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReservationStanding:
    """A reservation's present or next occurrence. ``name`` is namespace/name, ``queue`` its LocalQueue. ``gpus``,
    ``held`` and ``used`` are whole GPUs: all, those that are held for it, and those that its owner uses.

    ``backfilled_share``: of the GPU time for which it was held so far, what others used; None where nothing was held
    yet. ``message``: why it stands as it does.
    """

    name: str
    queue: str
    pool: str
    gpus: int
    start_s: float | None
    until_s: float | None
    phase: str
    held: int = 0
    used: int = 0
    backfilled_share: float | None = None
    message: str = ""
    is_refused: bool = False
    results: tuple[Result, ...] = ()

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class QueueHistory:
    """Means of steps of ``step_s``, the first of which begins at ``start_s``; None where nothing was recorded."""

    start_s: float
    step_s: float
    used: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """By queue, milli-GPU."""
    waited: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """For how many its workloads waited, by queue, milli-GPU."""


@dataclass(frozen=True)
class QueueTreeState:
    """``cluster`` is False where there is none. ``queues``: parents before their children. ``local_queues``: the queue
    of each LocalQueue, by (namespace, name). ``skipped``: objects that could not be read as queues, in words."""

    cluster: bool = False
    ready: bool = True
    now_s: float = 0.0
    queues: tuple[QueueStanding, ...] = ()
    reservations: tuple[ReservationStanding, ...] = ()
    local_queues: Mapping[tuple[str, str], str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
