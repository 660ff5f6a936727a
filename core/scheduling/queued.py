"""A GPU workload that waits or runs, as people read it on the page and the terminal. Times are Unix seconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kopt.core.scheduling.classify import Classified
from kopt.core.scheduling.diagnosis import Diagnosis
from kopt.core.scheduling.eviction import System
from kopt.core.workload.checkpoint import Source


class State(StrEnum):
    """Ordered as they are listed: what runs, what will, what cannot."""

    RUNNING = "running"
    EVICTING = "leaving"
    """It was evicted and still has its GPUs."""
    STARTING = "starting"
    """It has quota; not all of its pods are ready."""
    PENDING = "waiting"
    HELD = "held"
    STOPPED = "stopped"
    """Its owner or an administrator has taken it out of its queue."""


@dataclass(frozen=True)
class Queued:
    """A GPU workload in a queue. ``name`` is that of the job where one owns it; ``gpus`` are milli-GPU.

    ``since_s``: since when it is in its state. ``position``: among those that wait in ``queue``, from 1; None for what
    does not wait. ``risk_gpu_s``: work that would be lost now, by the
    word of ``risk_source``. ``pool``: the LendingPool whose GPUs it uses.
    """

    namespace: str
    name: str
    kind: str
    uid: str
    owner_uid: str
    workload: str
    system: System
    local_queue: str
    queue: str
    priority: int | None
    gpus: int
    state: State
    created_s: float
    ordered_s: float
    since_s: float | None = None
    holder: str = ""
    message: str = ""
    flavors: frozenset[str] = frozenset()
    position: int | None = None
    risk_gpu_s: float | None = None
    risk_source: Source | None = None
    pool: str = ""
    classified: Classified | None = field(default=None, compare=False)
    """Its class; None where nothing was read of it."""
    order: int | None = None
    """Its number in an order by class, age and GPUs, which its queue goes by in place of ``priority``."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def queue_priority(self) -> int:
        """What its queue goes by."""
        return (self.priority or 0) if self.order is None else self.order

    @property
    def workload_class(self) -> str:
        """Empty where it is not known."""
        return "" if self.classified is None else str(self.classified.workload_class)

    @property
    def has_gpus(self) -> bool:
        return self.state in (State.RUNNING, State.STARTING, State.EVICTING)

    @property
    def state_text(self) -> str:
        """``waiting``, ``held by staging``."""
        return self.state.value + (f" by {self.holder}" if self.state is State.HELD and self.holder else "")


@dataclass(frozen=True)
class Explanation:
    """What ``kopt why`` says about a workload. ``sentences`` have the most important first; ``next`` is what a person
    can do, empty where nothing; ``unread`` are kinds that could have said more. ``diagnosis`` is None for what does not
    wait; ``document`` is all of it as ``kopt why -o json`` prints it."""

    summary: str
    sentences: tuple[str, ...] = ()
    next: str = ""
    unread: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    document: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueState:
    """Every GPU workload of a cluster, by queue and in its order. ``cluster`` is False where there is none; ``missing``
    are kinds that are not installed; ``problems`` say what could not be read, in sentences for the reader."""

    cluster: bool = False
    ready: bool = True
    """False until everything has been read once."""
    now_s: float = 0.0
    queued: tuple[Queued, ...] = ()
    missing: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    explain: "Callable[[Sequence[Queued]], Mapping[str, Explanation]]" = field(default=lambda _: {}, compare=False)
    """Explanations of some of them, by uid. It takes milliseconds for each, and is called in a thread."""
