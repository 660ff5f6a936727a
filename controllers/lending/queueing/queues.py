"""The queues of borrowers, in any queueing system."""

from kopt.controllers.lending.queueing.borrowers import Weighing
from kopt.controllers.lending.queueing.kai import Kai
from kopt.controllers.lending.queueing.kueue import Kueue
from kopt.controllers.lending.queueing.volcano import Volcano
from kopt.controllers.lending.state import LiveCluster
from kopt.controllers.lending.views import BorrowingQueue
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.lending_pool import Borrower


class Queues:
    """``queues(borrower, resource, now_s, weigh=True)``: a borrower's queue as it is now, with what each would lose."""

    def __init__(self, cluster: LiveCluster, stale_s: float, workload_may_lower: bool | None = None) -> None:
        weighing = Weighing(cluster, stale_s, workload_may_lower)
        self._systems: dict[System, Kueue | Kai | Volcano] = {
            System.KUEUE: Kueue(cluster, weighing),
            System.KAI: Kai(cluster, weighing),
            System.VOLCANO: Volcano(cluster, weighing),
        }

    def __call__(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> BorrowingQueue:
        return self._systems[borrower.system].queue(borrower, gpu, now_s, weigh=weigh)
