"""A GPU workload that waits or runs, as people read it on the page and the terminal. Times are Unix seconds."""

from dataclasses import dataclass
from enum import StrEnum

from kopt.core.scheduling.eviction import System
from kopt.core.workload.checkpoint import Source


class State(StrEnum):
    """Ordered as they are listed: what runs, what will, what cannot."""

    RUNNING = "running"
    EVICTING = "leaving"
    """It was evicted and still has its GPUs."""
    STARTING = "starting"
    """It has quota; not all of its pods are ready."""
    WAITING = "waiting"
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

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"
