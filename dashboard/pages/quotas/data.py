"""Queues, reservations and the use of a week, as their reader may see them."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kopt.core.scheduling.queue_standing import QueueHistory, QueueTreeState
from kopt.dashboard.data.access import CLUSTER_QUEUES, Holds, pods_in
from kopt.dashboard.data.costs import Costs
from kopt.dashboard.data.feed import Background, Connections, Feed
from kopt.dashboard.data.gpu_hours import GpuHoursError
from kopt.dashboard.data.sources import Cluster
from kopt.serving.base.database.interface import DatabaseError

STEP_S, STEPS = 3600, 7 * 24
_HISTORY_EVERY_S, _WAITS_EVERY_S = 60.0, 300.0


@dataclass(frozen=True)
class Quotas:
    """``history`` is None where these pages know neither a meter's database nor a Prometheus. ``hides``: whether there
    are queues that the reader may not see."""

    tree: QueueTreeState = field(default_factory=QueueTreeState)
    history: QueueHistory | None = None
    hides: bool = False


class _Reader:
    """Asks the cluster's watch, and now and then the meter's database and a Prometheus."""

    def __init__(self, connections: Connections) -> None:
        self._cluster, self._costs, self._clock = connections.cluster, connections.records.costs, connections.clock
        self._latest = Quotas(QueueTreeState(cluster=self._cluster is not None, ready=self._cluster is None))
        self._use: Mapping[tuple[str, str], tuple[float | None, ...]] = {}
        self._start_s, self._due_s, self._problem = 0.0, 0.0, ""
        self._gpu_hours, self._waits_problem = connections.records.gpu_hours, ""
        self._waits: Mapping[str, tuple[float | None, ...]] = {}
        self.background = Background(self._read_waits, self._clock)

    async def refresh(self) -> None:
        if self._cluster is None:
            return
        tree = await self._cluster.queue_tree()
        if self._costs is not None and self._clock() >= self._due_s:
            await self._read(self._costs)
        if self._gpu_hours is not None:
            self.background.begin()
        problems = filter(None, (self._problem, self._waits_problem))
        tree = replace(tree, problems=(*tree.problems, *problems))
        self._latest = Quotas(tree, self._history(tree))

    async def latest(self) -> Quotas:
        return self._latest

    async def _read(self, costs: Costs) -> None:
        self._due_s = self._clock() + _HISTORY_EVERY_S
        start_s = self._first_step_s()
        try:
            self._use = await asyncio.to_thread(costs.queue_use, 1000 * start_s, 1000 * STEP_S, STEPS)
            self._start_s, self._problem = float(start_s), ""
        except DatabaseError as error:
            self._problem = f"What queues used before is not known: {error}"

    async def _read_waits(self) -> float:
        assert self._gpu_hours is not None
        try:
            waits = await asyncio.to_thread(self._gpu_hours.queue_waits, float(self._first_step_s()), STEP_S, STEPS)
            self._waits, self._waits_problem = waits, ""
        except GpuHoursError as error:
            self._waits_problem = f"{error}"
            return _HISTORY_EVERY_S
        return _WAITS_EVERY_S

    def _first_step_s(self) -> int:
        return (int(self._clock()) // STEP_S - STEPS + 1) * STEP_S

    def _history(self, tree: QueueTreeState) -> QueueHistory | None:
        """Both kinds are of the same hours, but in the minutes in which an hour has been read of one alone."""
        if self._costs is None and self._gpu_hours is None:
            return None
        used = _with_departments(tree, ((tree.local_queues.get(local, ""), use) for local, use in self._use.items()))
        return QueueHistory(self._start_s, STEP_S, used, _with_departments(tree, self._waits.items()))


def _with_departments(
    tree: QueueTreeState, leaves: Iterable[tuple[str, tuple[float | None, ...]]]
) -> dict[str, tuple[float | None, ...]]:
    """Of each queue, with those below it."""
    parents = {queue.name: queue.parent for queue in tree.queues}
    result: dict[str, tuple[float | None, ...]] = {}
    for leaf, amounts in leaves:
        name = leaf
        while name in parents:
            result[name] = _added(result[name], amounts) if name in result else amounts
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
        history = replace(
            history,
            used={name: used for name, used in history.used.items() if name in names},
            waited={name: waited for name, waited in history.waited.items() if name in names},
        )
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
