"""What is to be done about a pool, as data: the planner makes it, the executor applies it, the status reports it."""

from dataclasses import dataclass, field

from kopt.cluster.client.errors import ApiError
from kopt.controllers.lending.return_order import Queued
from kopt.controllers.lending.views import Borrowing, BorrowingQueue
from kopt.core.scheduling.lending_pool import ForecastState, LendingPool, Memory
from kopt.core.units import WHOLE_GPU
from kopt.policies.lending import Choice, LeadTime, Plan


@dataclass(frozen=True)
class Evaluation:
    """A pool at one time: its queues in the order of its borrowers, and the state once the plan is applied."""

    pool: LendingPool
    now_s: float
    queues: tuple[BorrowingQueue, ...]
    lead: LeadTime
    plan: Plan
    service_gpus: int
    forecast: ForecastState
    memory: Memory
    needy: str
    """namespace/name of the service that asks for most."""
    queued: tuple[Queued, ...]
    """For each queue its workloads that were asked to stop and have not returned."""

    @property
    def borrowed(self) -> int:
        return sum(queue.borrowed for queue in self.queues)

    @property
    def by_s(self) -> float:
        """When GPUs that are to be taken back have to be free."""
        need_in_s = min(self.plan.need_in_s, self.lead.seconds)
        return self.now_s + max(0.0, need_in_s - self.lead.needed_s)

    @property
    def missing(self) -> int:
        """Milli-GPUs that all queues use beyond what is lent, without what is terminating."""
        return max(0, sum(queue.beyond for queue in self.queues if queue.problem is None) - self.plan.lent * WHOLE_GPU)


@dataclass(frozen=True)
class QueuePlan:
    """What is to be done about a borrowing queue; ``queue`` is as it will be once the victims are asked to stop."""

    queue: BorrowingQueue
    running: tuple[Borrowing, ...]
    """What runs in it now, victims included."""
    share: int
    """GPUs beyond its own that it may use."""
    lent: int
    """GPUs beyond its own that its quota is to allow now: fewer than ``share`` while others return first."""
    returning: tuple[Borrowing, ...]
    """Held workloads that may run again."""

    @property
    def lowers_quota(self) -> bool:
        return self.lent < self.queue.stands - self.queue.own

    @property
    def raises_quota(self) -> bool:
        """Also where only its marks are to go: nothing is lent to it any more."""
        beyond = self.queue.stands - self.queue.own
        return self.lent > beyond or (self.queue.marked and self.lent == 0 >= beyond)


@dataclass(frozen=True)
class PoolPlan:
    """``queues`` without those that have a problem; empty where the pool's mode is not ``enforce``."""

    evaluation: Evaluation
    by_s: float
    """When GPUs that are taken back have to be free."""
    queues: tuple[QueuePlan, ...]
    choice: Choice | None
    """How missing GPUs are taken back; None where none are missing."""
    victims: tuple[Borrowing, ...]


@dataclass
class Outcome:
    """What became of a plan, as far as it was applied."""

    victims: list[str] = field(default_factory=list)
    """Workloads that were asked to stop."""
    refused: list[str] = field(default_factory=list)
    """Workloads whose change, or whose queue's change, the API server refuses."""
    saves_s: list[float] = field(default_factory=list)
    """How long victims took to save, from the request to the checkpoint."""
    again_s: float = 30.0
    """When to reconcile again if nothing changes before."""
    error: ApiError | None = None
    """The first write that failed; others were tried all the same."""
