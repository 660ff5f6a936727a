"""Queues, reservations and the use of a week, as their reader may see them."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kopt.core.scheduling.queue_standing import QueueHistory, QueueTreeState
from kopt.dashboard.data.access import CLUSTER_QUEUES, Holds, pods_in
from kopt.dashboard.data.costs import Costs
from kopt.dashboard.data.feed import Connections, Feed
from kopt.dashboard.data.sources import Cluster
from kopt.serving.base.database.interface import DatabaseError

STEP_S, STEPS = 3600, 7 * 24
_HISTORY_EVERY_S = 60.0


@dataclass(frozen=True)
class Quotas:
    """``history`` is None where no meter's database is known to these pages. ``hides``: whether there are queues that
    the reader may not see."""

    tree: QueueTreeState = field(default_factory=QueueTreeState)
    history: QueueHistory | None = None
    hides: bool = False


class _Reader:
    """Asks the cluster's watch, and now and then the meter's database."""

    def __init__(self, connections: Connections) -> None:
        self._cluster, self._costs, self._clock = connections.cluster, connections.costs, connections.clock
        self._latest = Quotas(QueueTreeState(cluster=self._cluster is not None, ready=self._cluster is None))
        self._use: Mapping[tuple[str, str], tuple[float | None, ...]] = {}
        self._start_s, self._due_s, self._problem = 0.0, 0.0, ""

    async def refresh(self) -> None:
        if self._cluster is None:
            return
        tree = await self._cluster.queue_tree()
        if self._costs is not None and self._clock() >= self._due_s:
            await self._read(self._costs)
        if self._problem:
            tree = replace(tree, problems=(*tree.problems, self._problem))
        history = None if self._costs is None else QueueHistory(self._start_s, STEP_S, self._by_queue(tree))
        self._latest = Quotas(tree, history)

    async def latest(self) -> Quotas:
        return self._latest

    async def _read(self, costs: Costs) -> None:
        self._due_s = self._clock() + _HISTORY_EVERY_S
        start_s = (int(self._clock()) // STEP_S - STEPS + 1) * STEP_S
        try:
            self._use = await asyncio.to_thread(costs.queue_use, 1000 * start_s, 1000 * STEP_S, STEPS)
            self._start_s, self._problem = float(start_s), ""
        except DatabaseError as error:
            self._problem = f"What queues used before is not known: {error}"

    def _by_queue(self, tree: QueueTreeState) -> dict[str, tuple[float | None, ...]]:
        """Of each queue, with those below it."""
        parents = {queue.name: queue.parent for queue in tree.queues}
        result: dict[str, tuple[float | None, ...]] = {}
        for local, used in self._use.items():
            name = tree.local_queues.get(local, "")
            while name in parents:
                result[name] = _added(result[name], used) if name in result else used
                name = parents[name]
        return result


def _added(first: Collection[float | None], other: Collection[float | None]) -> tuple[float | None, ...]:
    return tuple(None if a is None or b is None else a + b for a, b in zip(first, other, strict=True))


def _restrict(quotas: Quotas, holds: Holds) -> Quotas:
    """Who may list ClusterQueues sees all of them, others those that take jobs of a namespace whose pods they may list,
    with the departments above. Reservations are seen with the pods of their namespace."""
    tree = quotas.tree
    spaces = {name for queue in tree.queues for name in queue.namespaces}
    spaces |= {each.namespace for each in tree.reservations}
    visible = {name for name in sorted(spaces) if holds(pods_in(name))}
    sees_all = holds(CLUSTER_QUEUES)
    queues = tuple(
        replace(queue, namespaces=queue.namespaces & visible)
        for queue in tree.queues
        if sees_all or queue.namespaces & visible
    )
    names = {queue.name for queue in queues}
    history = quotas.history
    if history is not None:
        history = replace(history, used={name: used for name, used in history.used.items() if name in names})
    restricted = replace(
        tree,
        queues=queues,
        reservations=tuple(each for each in tree.reservations if each.namespace in visible),
        local_queues={key: name for key, name in tree.local_queues.items() if key[0] in visible},
        skipped=tree.skipped if sees_all else (),
    )
    return Quotas(restricted, history, len(queues) < len(tree.queues))


def _has_changed(old: Quotas, new: Quotas) -> bool:
    def compared(each: Quotas) -> tuple[object, ...]:
        tree = each.tree
        return tree.ready, tree.queues, tree.reservations, tree.skipped, tree.problems

    return compared(old) != compared(new)


async def _news(cluster: Cluster) -> None:
    await cluster.queue_tree_changed()


QUOTAS: Feed[Quotas] = Feed("quotas", Quotas, _Reader, _restrict, _has_changed, _news)
