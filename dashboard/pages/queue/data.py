"""GPU workloads of the cluster, queue by queue."""

from dataclasses import replace

from kopt.core.scheduling.queued import QueueState
from kopt.dashboard.data.access import Holds, pods_in
from kopt.dashboard.data.feed import Connections, Feed


class _Reader:
    """Asks the cluster's watch, which has everything at hand."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._latest = QueueState(cluster=connections.cluster is not None, ready=False)

    async def refresh(self) -> None:
        cluster = self._connections.cluster
        if cluster is not None:
            self._latest = await cluster.queue()

    async def latest(self) -> QueueState:
        return self._latest


def _restrict(state: QueueState, holds: Holds) -> QueueState:
    return replace(state, queued=tuple(each for each in state.queued if holds(pods_in(each.namespace))))


QUEUE: Feed[QueueState] = Feed("queue", QueueState, _Reader, _restrict)
