"""Borrowers' queues, whatever system they are of."""

from kopt.controllers.reallocation.kai import Kai
from kopt.controllers.reallocation.kueue import Kueue
from kopt.controllers.reallocation.live import LiveCluster
from kopt.controllers.reallocation.views import QueueView
from kopt.controllers.reallocation.volcano import Volcano
from kopt.core.evictions import System
from kopt.core.lending_pools import Borrower


class Queues:
    """``queues(borrower, resource, now_s, weigh=True)``: a borrower's queue as it is now, with what each would lose."""

    def __init__(self, cluster: LiveCluster, stale_s: float) -> None:
        self._systems: dict[System, Kueue | Kai | Volcano] = {
            System.KUEUE: Kueue(cluster, stale_s), System.KAI: Kai(cluster, stale_s),
            System.VOLCANO: Volcano(cluster, stale_s),
        }  # fmt: skip

    def __call__(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> QueueView:
        return self._systems[borrower.system].queue(borrower, gpu, now_s, weigh=weigh)
