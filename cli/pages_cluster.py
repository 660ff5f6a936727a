"""What the controllers say in the cluster, for the pages: kept by watches, so that a page never waits for a server."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.cluster.api import ApiError, Forbidden, Kube, NoCluster, NotFound, Unauthorized, Unreachable
from kopt.cluster.evictions import entry_of
from kopt.cluster.informer import Informer, InformerSettings
from kopt.cluster.node_topologies import degraded_of, topology_of
from kopt.cluster.resources import EVICTIONS, LENDING_POOLS, NODE_TOPOLOGIES, Object
from kopt.cluster.staged_data import STAGED_DATA
from kopt.controllers.overview.documents import pool_of, staged_of
from kopt.controllers.overview.words import span
from kopt.core.evictions import Entry
from kopt.core.overview import Overview, PoolState, StagedState
from kopt.dashboard.sources import ClusterNode, Nodes

STALE_S = 150.0
"""The server tells that a watch lives every 60 to 75 s."""


@dataclass(frozen=True)
class Torn:
    """A NodeTopology that contradicts itself."""


class ClusterWatch:
    """LendingPools, the ledger, StagedData and NodeTopologies as last heard. ``clock`` gives Unix seconds."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.time, settings: InformerSettings | None = None,
                 patience_s: float = 5.0) -> None:  # fmt: skip
        self._clock = clock
        self._pools: Informer[PoolState] = Informer(kube, LENDING_POOLS, keep=pool_of, settings=settings)
        self._ledger: Informer[Entry] = Informer(kube, EVICTIONS, keep=entry_of, settings=settings)
        self._staged: Informer[StagedState] = Informer(kube, STAGED_DATA, keep=staged_of, settings=settings)
        self._nodes: Informer[ClusterNode | Torn] = Informer(kube, NODE_TOPOLOGIES, keep=_node, settings=settings)
        self._patience_s = patience_s

    @property
    def _all(self) -> tuple[Informer[Any], ...]:
        return self._pools, self._ledger, self._staged

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for one in (*self._all, self._nodes):
                tasks.create_task(one.run())

    async def nodes(self) -> Nodes:
        """By name, those that cannot be read named. Waits a little for the first list."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._nodes.synced.wait()
        problem = _problem(self._nodes)
        if problem:
            problem = f"Nodes are from the last time the cluster told them. {problem}"
        known = sorted(self._nodes.objects.items())
        torn = [name for (_, name), one in known if isinstance(one, Torn)]
        more = f" and {len(torn) - 3} more" if len(torn) > 3 else ""
        if torn and not problem:
            problem = f"Left out, as their objects contradict themselves: {', '.join(torn[:3])}{more}."
        return Nodes(tuple(one for _, one in known if isinstance(one, ClusterNode)), True, problem)

    def overview(self) -> Overview:
        """Of now."""
        return Overview(
            cluster=True, ready=all(one.synced.is_set() or one.trouble is not None for one in self._all),
            now_s=self._clock(), pools=tuple(self._pools.objects.values()), ledger=tuple(self._ledger.objects.values()),
            staged=tuple(self._staged.objects.values()),
            missing=frozenset(one.resource.plural for one in self._all if isinstance(one.trouble, NotFound)),
            problems=_problems(self._all),
        )  # fmt: skip


def _node(document: Object) -> ClusterNode | Torn:
    try:
        return ClusterNode(topology_of(document), degraded_of(document))
    except (ValueError, KeyError, TypeError):
        return Torn()


def _problems(informers: Sequence[Informer[Any]]) -> tuple[str, ...]:
    """What is wrong; a server that is away is said once."""
    away = [one for one in informers if isinstance(one.trouble, NoCluster | Unreachable)]
    if len(away) == len(informers) and (told := [one for one in informers if _problem(one)]):
        newest_s = min(one.age_s() for one in told)
        old = "nothing of it has been read yet" if newest_s == float("inf") else f"this is {span(newest_s)} old"
        return (f"The cluster does not answer, {old}: {_short(told[0].trouble)}",)
    return tuple(sentence for one in informers if (sentence := _problem(one)))


def _problem(one: Informer[Any]) -> str:
    """What is wrong with one kind, as the reader has to know it; empty for what is well or not installed."""
    name, trouble = f"{one.resource.plural}.{one.resource.group}", one.trouble
    if trouble is None or isinstance(trouble, NotFound):
        return ""
    if isinstance(trouble, Forbidden | Unauthorized):
        return f"These pages may not read {name}: {trouble.message}"
    if not one.synced.is_set():
        return f"{name} could not be read yet: {_short(trouble)}"
    if one.age_s() > STALE_S:
        return f"What is told of {name} is {span(one.age_s())} old: {_short(trouble)}"
    return ""


def _short(trouble: ApiError | None) -> str:
    return trouble.message[:300] if trouble is not None else "nobody says why"
