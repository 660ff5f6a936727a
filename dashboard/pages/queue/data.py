"""GPU workloads of the cluster, queue by queue."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kopt.core.scheduling.queued import Explanation, Queued, QueueState
from kopt.dashboard.data.access import Holds, pods_in
from kopt.dashboard.data.feed import Connections, Feed
from kopt.dashboard.data.masking import masked


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
    """Without the workloads of other namespaces, which are not named in the answers about one's own either."""
    visible = {namespace: holds(pods_in(namespace)) for namespace in {queued.namespace for queued in state.queued}}
    hidden = frozenset(namespace for namespace, is_visible in visible.items() if not is_visible)
    if not hidden:
        return state

    def explain(several: Sequence[Queued]) -> Mapping[str, Explanation]:
        explained = state.explain(several)
        return {uid: masked(explanation, hidden.__contains__) for uid, explanation in explained.items()}

    return replace(state, queued=tuple(queued for queued in state.queued if visible[queued.namespace]), explain=explain)


def _has_changed(old: QueueState, new: QueueState) -> bool:
    return old.queued is not new.queued or (old.ready, old.problems) != (new.ready, new.problems)


QUEUE: Feed[QueueState] = Feed("queue", QueueState, _Reader, _restrict, _has_changed)
